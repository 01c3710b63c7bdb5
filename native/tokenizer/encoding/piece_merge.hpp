// Merge the bytes of one piece into tokens: the pair of the lowest rank first, of equal ones the
// leftmost, until no pair merges.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tokenizer/encoding/merge_table.hpp"
#include "tokenizer/encoding/solid_characters.hpp"
#include "tokenizer/splitting/splitter.hpp"

namespace lowtide {

struct PieceToMerge {
  const uint8_t* bytes;
  size_t length;      // at least 1
  uint32_t* out;      // room for `length` ids
  uint32_t* num_ids;  // number of ids
};

class PieceMerger {
 public:
  // The fastest version for this machine; `at_most` is for tests of the slower ones.
  explicit PieceMerger(Instructions at_most = Instructions::kAvx512);

  // Takes n log n steps for a piece of n bytes.
  void merge(const MergeTable& table, const PieceToMerge& piece) const;
  // The same for many pieces, several at a time. They start with the tokens of `characters`.
  void merge_all(const MergeTable& table, const SolidCharacters& characters,
                 std::span<const PieceToMerge> pieces);

  // A piece at the start of merging: its tokens are in `ids`, where the merged ones are written,
  // too.
  struct Start {
    uint32_t* ids;
    uint32_t count;
    const uint8_t* bytes;  // if not null: tokens are single bytes, not in `ids`
    uint64_t open;         // a bit for each that may merge with the next one
    uint32_t* num_ids;
  };
  using Function = void (*)(const MergeTable&, const Start*, unsigned count);
  // For one piece and for several, by the number of places: 16, 32 or 64.
  static constexpr size_t kNumWidths = 3;
  struct Functions {
    Function alone[kNumWidths], together[kNumWidths];
  };

 private:
  Functions functions_;
  std::array<std::vector<Start>, kNumWidths> starts_;  // that wait for others, by width
};

}  // namespace lowtide
