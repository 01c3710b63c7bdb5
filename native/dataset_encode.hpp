// Documents of a block to ids, in the order they will have in the dataset.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "corpus_dedup.hpp"
#include "encoder.hpp"

namespace lowtide {

// Ids of single characters, for character-level tokenizers.
class CharacterTable {
 public:
  // `codes[i]` has the id `ids[i]`; any other character has `unknown`.
  CharacterTable(std::span<const uint32_t> codes, std::span<const uint32_t> ids, uint32_t unknown);

  template <typename Id>
  void encode_ordinary(std::string_view text, std::vector<Id>& ids) const;

 private:
  std::vector<uint32_t> table_;
};

// `order` names the documents in the order wanted; where `ending[document]`, `end_id` follows (if it
// is not negative). Appends to `ids`, and each document's number of ids to `lengths`.
template <typename Coder, typename Id>
void encode_documents(Coder& coder, const KeptDocuments& kept, std::span<const uint64_t> order,
                      std::span<const uint8_t> ending, int64_t end_id, std::vector<Id>& ids,
                      std::vector<uint64_t>& lengths) {
  lengths.reserve(order.size());
  for (const uint64_t document : order) {
    const size_t before = ids.size();
    coder.encode_ordinary(kept.documents[document], ids);
    if (ending[document] != 0 && end_id >= 0) ids.push_back(static_cast<Id>(end_id));
    lengths.push_back(ids.size() - before);
  }
}

}  // namespace lowtide
