// Encode the documents of a block, in the order they will have in the dataset.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "corpus/duplicates.hpp"
#include "tokenizer/encoding/encoder.hpp"

namespace lowtide {

// Ids of single characters, for character-level tokenizers.
class CharacterTable {
 public:
  // `codes[i]` has the id `ids[i]`; any other character has `unknown`.
  CharacterTable(std::span<const uint32_t> codes, std::span<const uint32_t> ids, uint32_t unknown);

  template <typename Id>
  void encode_ordinary(std::string_view text, std::vector<Id>& ids) const;
  uint32_t largest_id() const { return largest_id_; }

 private:
  std::vector<uint32_t> table_;
  uint32_t largest_id_;
};

// Ids from a callback, for tokenizers not supported by native code; called by several threads.
class CalledCoder {
 public:
  // Returns the ids of a text, each below `vocab_size`.
  using Encode = std::function<std::vector<uint32_t>(std::string_view)>;
  CalledCoder(Encode encode, uint32_t vocab_size)
      : encode_(std::move(encode)), vocab_size_(vocab_size) {}

  template <typename Id>
  void encode_ordinary(std::string_view text, std::vector<Id>& ids) const;
  uint32_t vocab_size() const { return vocab_size_; }

 private:
  Encode encode_;
  uint32_t vocab_size_;
};

// One document of an encoded block, as stored in work files.
struct EncodedRow {
  uint64_t key;     // place in the shuffle
  uint64_t split;   // content hash
  uint64_t tokens;  // with end-of-text
  uint64_t ends;    // 1 when the document ends here
};

// The document whose continuation is the block's first one.
struct Identity {
  uint64_t input_index, ordinal, hash_low;
};

struct EncodeOptions {
  bool shuffle;
  uint64_t seed;
  uint64_t block;  // its index in the corpus: the order of its documents without the shuffle
  std::optional<Identity> carried;
  int64_t end_id;  // appended to every document that ends; negative: nothing
};

// A document's place in the shuffle, from only the seed and its identity.
uint64_t shuffle_key(uint64_t seed, uint64_t input_index, uint64_t ordinal);

struct EncodedBlock {
  std::vector<EncodedRow> index;  // by key
  std::vector<uint16_t> narrow;   // the ids are in one of these two
  std::vector<uint32_t> wide;
  uint64_t num_tokens = 0;
  uint32_t max_id = 0;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> sources;  // input: documents that end, tokens
  std::array<RuleCount, kNumRules> counts{};
  std::vector<Sample> samples;
  std::vector<uint64_t> remnants;  // as in KeptDocuments
};

// Encode the kept documents of a block, ordered by key; `rows` are all its documents.
template <typename Coder, typename Id>
void encode_documents(Coder& coder, const KeptDocuments& kept, std::span<const DocumentRow> rows,
                      const EncodeOptions& options, std::vector<Id>& ids, EncodedBlock& encoded);

}  // namespace lowtide
