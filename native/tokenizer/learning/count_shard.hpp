// A hash table from pieces to counts: one of those shared by all threads of a counter.
//
// Open addressing with linear probing, in two tables: pieces of up to fifteen bytes are stored in the
// slots themselves, longer ones in an arena, and found by their hash. Both double at a load of three
// quarters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/learning/count_runs.hpp"
#include "tokenizer/splitting/pieces.hpp"

namespace lowtide {

// Batch size of a thread; a table has room for it before it is checked whether it is full.
constexpr size_t kCountBatch = 128;  // pieces
constexpr size_t kLongBatchBytes = 4096;
constexpr size_t kLongPiece = 1 << 16;  // goes to the shared table at once

// One of the shared tables.
class CountShard {
 public:
  CountShard();
  void add(const PieceKey& key, uint64_t hash, uint64_t count);
  void add_long(const uint8_t* bytes, size_t length, uint64_t hash, uint64_t count);
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }

  void for_each(const CountSink& sink) const;
  void write_run(const std::string& path) const;  // sorted by bytes
  void clear();

  size_t bytes() const;
  size_t bytes_after_growth() const;  // possible size with one more piece
  size_t size() const { return used_ + long_used_; }
  uint64_t piece_bytes() const { return piece_bytes_; }  // of all distinct pieces together

 private:
  struct Slot {
    PieceKey key;
    uint64_t count;  // 0: empty
  };
  struct LongSlot {
    uint64_t hash;
    uint64_t count;
    uint32_t offset, length;
  };
  struct Entry {
    const uint8_t* bytes;
    size_t length;
    uint64_t count;
  };
  void grow();
  void grow_long();

  std::vector<Slot> slots_;
  std::vector<LongSlot> long_slots_;
  std::vector<uint8_t> arena_;
  size_t mask_, long_mask_;
  size_t used_ = 0, long_used_ = 0;
  uint64_t piece_bytes_ = 0;
};

// Here, so that the loop over a batch has it inline.
inline void CountShard::add(const PieceKey& key, uint64_t hash, uint64_t count) {
  size_t i = hash & mask_;
  while (slots_[i].count != 0) {
    if (slots_[i].key == key) {
      slots_[i].count += count;
      return;
    }
    i = (i + 1) & mask_;
  }
  slots_[i] = {key, count};
  piece_bytes_ += key.length();
  if (++used_ * 4 > slots_.size() * 3) grow();
}

}  // namespace lowtide
