// Merge a piece of any length in a fixed amount of memory, with the same ids as merging it as a whole.
//
// Merging takes the pair of the lowest rank first, so a token can depend on bytes far to its right. But
// independence can be proved while the piece is read. For any table of merges:
//
//  1. Where the tokens of a text have a border, the text may be cut: each side merges as if the other
//     were not there. (No merge ever crossed the border, and the merges of one side, taken in their
//     order, are always the best of that side.)
//  2. Whether two adjacent texts keep the border between them depends only on the last token of the
//     first and the first token of the second: merging these two alone gives the answer. (Up to the
//     first merge across the border both runs do the same there.)
//  3. So let s be the part of a piece read so far, and b a border in it. Whatever follows s, the last
//     border at or before the end of s is at one of the last `longest` positions (no token is longer).
//     If for each of these positions the text up to it has a border at b, then so has the whole piece,
//     whatever follows; by 2, that takes one check of the tokens on both sides of b for each position.
//
// A piece is therefore merged in chunks: the ids before a proven border are output, the rest starts the
// next chunk. If no border can be proved (this was never seen outside tests), the chunk doubles.
//
// Memory:  about 40 bytes per byte of a chunk
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tokenizer/encoding/piece_merge.hpp"
#include "tokenizer/encoding/vocabulary.hpp"

namespace lowtide {

class LongPieceMerger {
 public:
  static constexpr size_t kChunk = 1 << 17;

  explicit LongPieceMerger(const Vocabulary& vocabulary, size_t chunk = kChunk);

  // Calls sink(ids) chunk by chunk.
  template <typename Sink>
  void merge(const uint8_t* piece, size_t length, const Sink& sink) {
    size_t chunk = chunk_;
    while (length > chunk) {
      const std::span<const uint32_t> ids = merge_chunk(piece, chunk);
      size_t bytes = 0;
      const size_t proven = count_proven(piece, chunk, ids, bytes);
      if (proven == 0) {
        chunk *= 2;
        continue;
      }
      sink(ids.first(proven));
      piece += bytes;
      length -= bytes;
      chunk = chunk_;
    }
    if (length > 0) sink(merge_chunk(piece, length));
    ids_ = {};
  }

 private:
  std::span<const uint32_t> merge_chunk(const uint8_t* text, size_t length);
  // How many of the ids end before a border that stays, for any following text; `bytes` is their
  // size.
  size_t count_proven(const uint8_t* text, size_t length, std::span<const uint32_t> ids,
                      size_t& bytes);
  bool stays(const uint8_t* text, size_t length, size_t border, uint32_t left);
  bool keep_apart(uint32_t left, uint32_t right);

  const Vocabulary& vocabulary_;
  const PieceMerger merger_;
  const size_t longest_, chunk_;
  std::vector<uint32_t> ids_, tail_ids_;
  std::vector<uint8_t> pair_;
};

}  // namespace lowtide
