// The Mersenne Twister (MT19937) of torch's CPU generator, which can skip ahead quickly.
//
// Initial weights are one stream of random words for each seed. To generate it in parts on several
// threads, one thread skips ahead: computing the next state of 624 words takes a few instructions for
// eight or sixteen words at once, and skipped words need no output step. A part starts with a copy of
// the state.
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

  // Skips words.
  void skip(uint64_t count);

  // Writes numbers in [0, 1), each from the low 24 bits of a word.
  void fill(float* out, size_t count);

  // The words before the last mixing (tempering), and how many of them are used: 1 to 624.
  const std::array<uint32_t, kWords>& words() const { return words_; }
  size_t num_used() const { return num_used_; }

 private:
  std::array<uint32_t, kWords> words_;
  size_t num_used_ = kWords;
};

}  // namespace lowtide
