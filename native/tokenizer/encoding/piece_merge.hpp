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
  uint32_t* num_ids;  // how many there are
};

class PieceMerger {
 public:
  // The fastest that this machine can run; `at_most` is for tests of the slower ones.
  explicit PieceMerger(Instructions at_most = Instructions::kAvx512);

  // Takes n log n steps for a piece of n bytes.
  void merge(const MergeTable& table, const PieceToMerge& piece) const;
  // The same for many pieces, several at a time. They begin with what `characters` knows.
  void merge_all(const MergeTable& table, const SolidCharacters& characters,
                 std::span<const PieceToMerge> pieces);

  // A piece at the beginning of merging: the tokens in `ids`, where the fewer come, too.
  struct Start {
    uint32_t* ids;
    uint32_t count;
    const uint8_t*
        bytes;      // where the tokens are these bytes, one by one, and not in `ids`; or null
    uint64_t open;  // a bit for each that may merge with the one behind it
    uint32_t* num_ids;
  };
  using Function = void (*)(const MergeTable&, const Start*, unsigned count);
  // For one piece and for several, by the places they need: 16, 32 or 64.
  static constexpr size_t kNumWidths = 3;
  struct Functions {
    Function alone[kNumWidths], together[kNumWidths];
  };

 private:
  Functions functions_;
  std::array<std::vector<Start>, kNumWidths> starts_;  // that wait for others, by width
};

}  // namespace lowtide
