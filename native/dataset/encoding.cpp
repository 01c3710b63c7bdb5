#include "dataset/encoding.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "text/code_points.hpp"

namespace lowtide {

CharacterTable::CharacterTable(std::span<const uint32_t> codes, std::span<const uint32_t> ids,
                               uint32_t unknown)
    : table_(0x110000, unknown), largest_id_(unknown) {
  for (size_t row = 0; row < codes.size() && row < ids.size(); ++row) {
    if (codes[row] >= table_.size()) continue;
    table_[codes[row]] = ids[row];
    largest_id_ = std::max(largest_id_, ids[row]);
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

template <typename Id>
void CalledCoder::encode_ordinary(std::string_view text, std::vector<Id>& ids) const {
  for (const uint32_t id : encode_(text)) {
    if (id >= vocab_size_) {
      throw std::out_of_range("id " + std::to_string(id) + ", the vocabulary has " +
                              std::to_string(vocab_size_));
    }
    ids.push_back(static_cast<Id>(id));
  }
}

uint64_t shuffle_key(uint64_t seed, uint64_t input_index, uint64_t ordinal) {
  // The constant keeps seed 0 from being a fixed point, which would put document 0 first.
  const uint64_t mixed_seed = scatter64(seed + 0x9E3779B97F4A7C15ULL);
  return scatter64(scatter64(scatter64(input_index ^ mixed_seed) ^ ordinal) + mixed_seed);
}

template <typename Coder, typename Id>
void encode_documents(Coder& coder, const KeptDocuments& kept, std::span<const DocumentRow> rows,
                      const EncodeOptions& options, std::vector<Id>& ids, EncodedBlock& encoded) {
  struct Place {
    uint64_t key;
    size_t document;
  };
  std::vector<Place> order(kept.documents.size());
  size_t bytes = 0;
  for (size_t document = 0; document < order.size(); ++document) {
    const DocumentRow& row = rows[kept.rows[document]];
    const bool began = document == 0 && options.carried.has_value();
    const uint64_t input = began ? options.carried->input_index : row.input_index;
    const uint64_t ordinal = began ? options.carried->ordinal : row.ordinal;
    order[document] = {options.shuffle ? shuffle_key(options.seed, input, ordinal)
                                       : (options.block << 32) + document,
                       document};
    bytes += kept.documents[document].size();
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Place& a, const Place& b) { return a.key < b.key; });
  ids.reserve(bytes / 4 + order.size());
  encoded.index.reserve(order.size());
  for (const auto [key, document] : order) {
    const DocumentRow& row = rows[kept.rows[document]];
    const bool began = document == 0 && options.carried.has_value();
    const bool ends = (row.flags & kDocumentLast) != 0;
    const size_t before = ids.size();
    coder.encode_ordinary(kept.documents[document], ids);
    if (ends && options.end_id >= 0) ids.push_back(static_cast<Id>(options.end_id));
    const uint64_t tokens = ids.size() - before;
    encoded.index.push_back(
        {key, began ? options.carried->hash_low : row.hash_low, tokens, uint64_t{ends}});
    auto& [documents, total] =
        encoded.sources[began ? options.carried->input_index : row.input_index];
    documents += ends;
    total += tokens;
  }
  encoded.num_tokens = ids.size();
  Id highest = 0;
  for (const Id id : ids) highest = std::max(highest, id);
  encoded.max_id = highest;
}

template void encode_documents(Encoder&, const KeptDocuments&, std::span<const DocumentRow>,
                               const EncodeOptions&, std::vector<uint16_t>&, EncodedBlock&);
template void encode_documents(Encoder&, const KeptDocuments&, std::span<const DocumentRow>,
                               const EncodeOptions&, std::vector<uint32_t>&, EncodedBlock&);
template void encode_documents(const CharacterTable&, const KeptDocuments&,
                               std::span<const DocumentRow>, const EncodeOptions&,
                               std::vector<uint16_t>&, EncodedBlock&);
template void encode_documents(const CharacterTable&, const KeptDocuments&,
                               std::span<const DocumentRow>, const EncodeOptions&,
                               std::vector<uint32_t>&, EncodedBlock&);

template void encode_documents(const CalledCoder&, const KeptDocuments&,
                               std::span<const DocumentRow>, const EncodeOptions&,
                               std::vector<uint16_t>&, EncodedBlock&);
template void encode_documents(const CalledCoder&, const KeptDocuments&,
                               std::span<const DocumentRow>, const EncodeOptions&,
                               std::vector<uint32_t>&, EncodedBlock&);

}  // namespace lowtide
