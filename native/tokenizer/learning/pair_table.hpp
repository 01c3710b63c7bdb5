// Pairs of symbols in an array, and a hash table from a pair to its index.
//
// Memory:  32 bytes per pair, and 6 to 12 for its slots
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>

#include "system/mapped_array.hpp"

namespace lowtide {

class PairTable {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Pair {
    int64_t count;
    uint64_t postings;  // start of the list of its words
    uint32_t num_words;
    uint32_t left, right;
  };

  Pair& operator[](size_t pair) { return pairs_[pair]; }
  const Pair& operator[](size_t pair) const { return pairs_[pair]; }
  uint32_t size() const { return static_cast<uint32_t>(pairs_.size()); }
  size_t bytes() const { return pairs_.bytes() + slots_.bytes(); }

  // The index of a pair, or kNone.
  uint32_t find(uint32_t left, uint32_t right) const {
    if (pairs_.size() == 0) return kNone;
    for (size_t at = first_slot(left, right);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == 0) return kNone;
      const Pair& found = pairs_[slots_[at] - 1];
      if (found.left == left && found.right == right) return slots_[at] - 1;
    }
  }
  // Adds a new pair, without comparisons with existing ones.
  uint32_t add(const Pair& pair) {
    const uint32_t number = size();
    if (number == kNone - 1) throw std::runtime_error("more than 4 billion distinct pairs");
    if ((size_t{number} + 1) * 3 > slots_.size() * 2) grow();
    pairs_.push_back(pair);
    place(pair, number);
    return number;
  }
  void prefetch(uint32_t pair) const { __builtin_prefetch(&pairs_[pair]); }
  // Looking up a pair takes two memory accesses: its slot, and the pair that the slot refers to.
  void prefetch_slot(uint32_t left, uint32_t right) const {
    __builtin_prefetch(&slots_[first_slot(left, right)]);
  }
  void prefetch_pair(uint32_t left, uint32_t right) const {
    const uint32_t number = slots_[first_slot(left, right)];
    if (number != 0) __builtin_prefetch(&pairs_[number - 1]);
  }

 private:
  size_t first_slot(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    return static_cast<size_t>(key * 0x9E3779B97F4A7C15 >> shift_);
  }
  void place(const Pair& pair, uint32_t number) {
    size_t at = first_slot(pair.left, pair.right);
    while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = number + 1;
  }
  void grow() {
    const size_t size = std::max<size_t>(1 << 12, slots_.size() * 2);
    MappedArray<uint32_t>().swap(slots_);  // freed first: both would need half as much memory again
    slots_.resize(size);
    shift_ = 64 - std::countr_zero(size);
    for (uint32_t i = 0; i < pairs_.size(); ++i) {
      place(pairs_[i], i);
    }
  }

  MappedArray<Pair> pairs_;
  MappedArray<uint32_t> slots_;  // an index plus one; 0: empty
  int shift_ = 64;
};

}  // namespace lowtide
