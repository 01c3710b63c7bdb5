// Merge the bytes of one piece into tokens: the pair of the lowest rank first, of equal ones the
// leftmost, until no pair merges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tokenizer/encoding/merge_table.hpp"
#include "tokenizer/splitting/splitter.hpp"

namespace lowtide {

struct PieceToMerge {
  const uint8_t* bytes;
  size_t length;      // at least 1
  uint32_t* out;      // room for `length` ids
  uint32_t* num_ids;  // how many there are
};

class PieceMerger {
 public:
  // The fastest that this machine can run; `at_most` is for tests of the slower ones.
  explicit PieceMerger(Instructions at_most = Instructions::kAvx512);

  // Takes n log n steps for a piece of n bytes.
  void merge(const MergeTable& table, const PieceToMerge& piece) const;
  // The same for many pieces of at most kShort bytes, several at a time.
  static constexpr size_t kShort = 16;
  void merge_short(const MergeTable& table, std::span<const PieceToMerge> pieces) const;

  using Function = void (*)(const MergeTable&, const PieceToMerge*, unsigned count);
  struct Functions {
    Function together;      // several pieces of up to kShort bytes
    Function by_length[4];  // one piece, by the number of sixteens it fills
  };

 private:
  Functions functions_;
};

}  // namespace lowtide
