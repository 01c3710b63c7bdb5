// A cache of the sums of the rows of words.
//
// With subwords (character n-grams), a word has a dozen rows, and nine of ten words of a text occurred
// in it before. Every word has one slot in the table, where it replaces the previous word, so the
// memory is fixed. A sum depends only on the word and starts at zero, so a cached sum equals a
// recomputed one.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "quality/line_allocator.hpp"

namespace lowtide {

class WordSums {
 public:
  static constexpr size_t kLongestWord = 24;

  // A word, and the position of its sum.
  struct Key {
    std::array<uint64_t, kLongestWord / 8> word{};  // its bytes, then zeros, which no word has
    size_t place = 0;
  };
  struct Sum {
    std::array<uint64_t, kLongestWord / 8> word{};
    uint32_t hash = 0;  // as fastText hashes it
    uint32_t num_rows = 0;
    float* values() { return reinterpret_cast<float*>(this + 1); }
  };

  // Clear the cache; sums have `width` numbers.
  void reset(size_t width) {
    width_ = width;
    step_ = (sizeof(Sum) + width * sizeof(float) + 7) / 8 * 8;
    const size_t places = std::bit_floor(std::max<size_t>(kTableBytes / step_, 2));
    shift_ = 64 - static_cast<unsigned>(std::countr_zero(places));
    table_.assign(places * step_, std::byte{0});
  }

  // The key of a word of at most kLongestWord bytes, with `readable` bytes from its beginning on;
  // also prefetches its slot.
  Key locate(std::string_view word, size_t readable) const {
    Key key;
    if (readable >= kLongestWord) {
      // Three loads, masked after the word, because a copy of its bytes would have to be stored
      // first.
      std::memcpy(key.word.data(), word.data(), kLongestWord);
      for (size_t at = 0; at < key.word.size(); ++at) {
        const size_t left = word.size() > 8 * at ? word.size() - 8 * at : 0;
        key.word[at] &= left >= 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * left) - 1;
      }
    } else {
      std::memcpy(key.word.data(), word.data(), word.size());
    }
    uint64_t mixed = key.word[0] * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 32) ^ key.word[1]) * 0xD6E8FEB86659FD93u;
    mixed = (mixed ^ (mixed >> 32) ^ key.word[2]) * 0xCA5A826395121157u;
    key.place = static_cast<size_t>(mixed >> shift_) * step_;
    __builtin_prefetch(table_.data() + key.place, 1);
    __builtin_prefetch(table_.data() + key.place + 64, 1);
    return key;
  }

  // The sum of a word, and whether it was cached; if not, the slot is now the word's, all zeros.
  bool find(const Key& key, Sum*& sum) {
    sum = reinterpret_cast<Sum*>(table_.data() + key.place);
    const uint64_t other =
        (sum->word[0] ^ key.word[0]) | (sum->word[1] ^ key.word[1]) | (sum->word[2] ^ key.word[2]);
    if (other == 0) return true;
    *sum = {key.word, 0, 0};
    std::fill_n(sum->values(), width_, 0.0f);
    return false;
  }

 private:
  static constexpr size_t kTableBytes = 1 << 19;  // small compared to a block

  size_t width_ = 0, step_ = 0;  // numbers of a sum; stride in bytes
  unsigned shift_ = 63;
  LineVector<std::byte> table_;  // sums, each followed by its numbers
};

}  // namespace lowtide
