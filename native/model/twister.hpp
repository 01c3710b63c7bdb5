// The Mersenne Twister (MT19937) of torch's CPU generator, which can be passed over quickly.
//
// First weights are one stream of words for each seed. To draw it in parts by several threads, one
// of them goes ahead: making the next 624 words takes a few instructions for eight or sixteen of
// them at once, and nobody has to look at words that are passed over. A part begins with a copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lowtide {

class Twister {
 public:
  static constexpr size_t kWords = 624;

  explicit Twister(uint32_t seed);

  // The next word.
  uint32_t next();

  // Passes over words.
  void skip(uint64_t count);

  // Writes numbers from 0 to below 1: the low 24 bits of a word each.
  void fill(float* out, size_t count);

  // The words as they are before the last mixing, and how many of them are used: 1 to 624.
  const std::array<uint32_t, kWords>& words() const { return words_; }
  size_t num_used() const { return num_used_; }

 private:
  std::array<uint32_t, kWords> words_;
  size_t num_used_ = kWords;
};

}  // namespace lowtide
