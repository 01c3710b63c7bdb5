// Words (sequences of symbols) with their counts in one flat array, shortened in place by merges.
//
// Memory:  8 bytes per word and one symbol (2 or 4 bytes) for each symbol of its initial length
//
// A word is identified by its offset: its count, its length and its symbols are stored there together,
// usually in one cache line. Merging visits words in random order and is limited by memory latency:
// with counts and lengths in a separate table, and 8 bytes per symbol, it took twice as long.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "system/mapped_array.hpp"
#include "tokenizer/learning/pair_scan.hpp"

namespace lowtide {

template <typename Symbol>
class WordStore {
 public:
  struct Head {
    uint32_t count;  // kLarge: in large_
    uint32_t length;
  };
  static constexpr size_t kHeadUnits = sizeof(Head) / sizeof(Symbol);
  static constexpr size_t kMostUnits = std::numeric_limits<uint32_t>::max();
  static size_t units_of(size_t length) { return kHeadUnits + length; }

  // Makes room after the last word.
  void grow(size_t units) {
    const size_t size = units_.size() + units;
    if (size > kMostUnits) throw std::runtime_error("more than 4 billion symbols");
    const size_t needed = size + kReadBehind;
    if (needed > units_.bytes() / sizeof(Symbol)) units_.reserve(needed + needed / 4);
    units_.resize(size);
  }
  size_t num_units() const { return units_.size(); }
  // Writes a word's count and length into existing room; the caller writes its symbols.
  Symbol* begin_word(size_t at, size_t length, uint64_t count) {
    Head head{static_cast<uint32_t>(count), static_cast<uint32_t>(length)};
    if (count >= kLarge) {
      head.count = kLarge;
      const std::lock_guard hold(large_mutex_);
      large_.emplace_back(static_cast<uint32_t>(at), count);
    }
    write_head(static_cast<uint32_t>(at), head);
    return units_.data() + at + kHeadUnits;
  }
  // To be called after the last word, before the first count is read.
  void seal() { std::sort(large_.begin(), large_.end()); }

  Head head(uint32_t at) const {
    Head found;
    std::memcpy(&found, &units_[at], sizeof(Head));
    return found;
  }
  void write_head(uint32_t at, const Head& head) { std::memcpy(&units_[at], &head, sizeof(Head)); }
  int64_t count(uint32_t at, const Head& head) const {
    return head.count == kLarge ? large_count(at) : int64_t{head.count};
  }
  Symbol* symbols(uint32_t at) { return units_.data() + at + kHeadUnits; }
  const Symbol* symbols(uint32_t at) const { return &units_[at] + kHeadUnits; }
  // Every third word is in two cache lines: without prefetching the second, merging took a quarter
  // longer.
  void prefetch(uint32_t at) const {
    __builtin_prefetch(&units_[at], 1);
    __builtin_prefetch(&units_[at + kHeadUnits + 8], 1);
  }
  size_t bytes() const { return units_.bytes() + large_.capacity() * sizeof(large_[0]); }

 private:
  static constexpr uint32_t kLarge = std::numeric_limits<uint32_t>::max();

  int64_t large_count(uint32_t at) const {
    const auto found = std::lower_bound(large_.begin(), large_.end(), std::pair(at, uint64_t{0}));
    return static_cast<int64_t>(found->second);
  }

  MappedArray<Symbol> units_;
  std::mutex large_mutex_;
  std::vector<std::pair<uint32_t, uint64_t>> large_;  // counts of 32 bits and more, by word
};

}  // namespace lowtide
