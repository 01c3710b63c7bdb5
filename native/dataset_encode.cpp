#include "dataset_encode.hpp"

#include "corpus_unicode.hpp"

namespace lowtide {

CharacterTable::CharacterTable(std::span<const uint32_t> codes, std::span<const uint32_t> ids,
                               uint32_t unknown)
    : table_(0x110000, unknown) {
  for (size_t row = 0; row < codes.size() && row < ids.size(); ++row) {
    if (codes[row] < table_.size()) table_[codes[row]] = ids[row];
  }
}

template <typename Id>
void CharacterTable::encode_ordinary(std::string_view text, std::vector<Id>& ids) const {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (size_t at = 0; at < text.size();) {
    const Decoded next = decode_utf8(bytes + at, text.size() - at);
    ids.push_back(static_cast<Id>(table_[next.code]));
    at += next.size;
  }
}

template void CharacterTable::encode_ordinary(std::string_view, std::vector<uint16_t>&) const;
template void CharacterTable::encode_ordinary(std::string_view, std::vector<uint32_t>&) const;

}  // namespace lowtide
