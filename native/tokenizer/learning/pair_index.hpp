// A hash table from pairs of symbols to numbers, initially zero. Pairs of bytes have a plain table
// instead, because every pair of a corpus is looked up when merging starts.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace lowtide {

class PairIndex {
 public:
  explicit PairIndex(size_t num_symbols) {
    if (num_symbols <= 256) {
      bytes_.resize(256 * 256);
    } else {
      slots_.resize(1 << 12);
    }
  }
  uint32_t& at(uint32_t left, uint32_t right) {
    if (!bytes_.empty()) return bytes_[left << 8 | right];
    const uint64_t key = uint64_t{left} << 32 | right;
    if (size_ * 3 >= slots_.size() * 2) grow();
    Slot& found = slot(key);
    if (found.key == kEmpty) {
      found.key = key;
      ++size_;
    }
    return found.number;
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    uint32_t number = 0;
  };
  Slot& slot(uint64_t key) {
    size_t i =
        static_cast<size_t>(key * 0x9E3779B97F4A7C15 >> (64 - std::countr_zero(slots_.size())));
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& moved : old) {
      if (moved.key != kEmpty) slot(moved.key) = moved;
    }
  }

  std::vector<uint32_t> bytes_;
  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace lowtide
