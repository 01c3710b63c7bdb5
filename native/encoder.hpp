// Encode text into token ids, one Encoder per thread.
//
// In:      bytes (any bytes)
// Out:     ids, the same as merging each piece by rank gives
// Memory:  `cache_bytes` for the caches; scratch in proportion to the longest piece
//
// Most pieces were seen before: a piece of up to 15 bytes with up to 4 tokens is found in one cache
// line. Longer ones go to a second cache. What is in neither is merged: short pieces by looking for
// the lowest rank again and again, long ones with a heap, so that a megabyte of one letter takes
// n log n and not n squared steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "huge_array.hpp"
#include "vocabulary.hpp"

namespace lowtide {

class Encoder {
 public:
  Encoder(std::shared_ptr<const Vocabulary> vocabulary, size_t cache_bytes);

  // Appends the ids of `text`; special tokens in it are ordinary text.
  void encode_ordinary(std::string_view text, std::vector<uint32_t>& ids);
  // Appends the ids of `text`; special tokens in it become their ids.
  void encode_with_specials(std::string_view text, std::vector<uint32_t>& ids);
  // The same into 16 bits an id; the vocabulary must fit.
  void encode_ordinary(std::string_view text, std::vector<uint16_t>& ids);
  void encode_with_specials(std::string_view text, std::vector<uint16_t>& ids);

  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  struct Slot {
    PieceKey key;
    uint32_t ids[4];  // the number of them in the highest byte of the first
  };
  struct alignas(64) Set {
    Slot ways[2];
  };
  struct LongSlot {
    uint64_t hash;  // 0: empty
    uint32_t offset, length, num_ids;
  };

  // Calls sink(ids, count) batch by batch.
  template <typename Sink>
  void encode_text(const uint8_t* text, size_t length, const Sink& sink);
  template <typename Sink>
  void encode_part(const uint8_t* text, size_t length, const Sink& sink);
  template <typename Sink>
  void encode_any(std::string_view text, bool specials, const Sink& sink);

  size_t set_of(uint64_t hash) const {
    return static_cast<size_t>((hash >> 32) * sets_.size() >> 32);
  }
  uint32_t* encode_pieces(const uint8_t* text, size_t length, size_t begin, size_t count,
                          uint32_t* out);
  uint32_t* encode_miss(const PieceKey& key, uint64_t hash, const uint8_t* piece, uint32_t* out);
  uint32_t* encode_long(const uint8_t* piece, size_t length, uint32_t* out);
  const LongSlot* find_long(const uint8_t* piece, size_t length, uint64_t hash) const;
  void keep_long(const uint8_t* piece, size_t length, uint64_t hash, const uint32_t* ids,
                 size_t num_ids);
  size_t merge_piece(const uint8_t* piece, size_t length, uint32_t* out);
  size_t merge_short(const uint8_t* piece, size_t length, uint32_t* out) const;
  size_t merge_with_heap(const uint8_t* piece, size_t length, uint32_t* out) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  SplitFunction split_;
  HugeArray<Set> sets_;
  std::vector<LongSlot> long_slots_;
  size_t long_mask_;
  std::vector<uint32_t> arena_;  // bytes, then ids, of each piece in long_slots_
  size_t arena_used_ = 0;
  std::vector<uint32_t> ends_;
  std::vector<uint32_t> scratch_;  // the ids of one batch
};

}  // namespace lowtide
