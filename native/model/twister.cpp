#include "model/twister.hpp"

#include <algorithm>

#include "system/clones.hpp"

namespace lowtide {
namespace {

constexpr size_t kWords = Twister::kWords;
constexpr size_t kShift = 397;

inline uint32_t mix(uint32_t high, uint32_t low) {
  const uint32_t both = (high & 0x80000000U) | (low & 0x7FFFFFFFU);
  return (both >> 1) ^ ((low & 1U) * 0x9908B0DFU);
}

inline uint32_t temper(uint32_t word) {
  word ^= word >> 11;
  word ^= (word << 7) & 0x9D2C5680U;
  word ^= (word << 15) & 0xEFC60000U;
  return word ^ (word >> 18);
}

// Computes the next words. The nearest word that a word depends on is 227 positions before it, so
// the compiler vectorizes the loop.
LOWTIDE_CLONES void twist(uint32_t* words, uint64_t times) {
  for (; times > 0; --times) {
    for (size_t i = 0; i < kWords - kShift; ++i) {
      words[i] = words[i + kShift] ^ mix(words[i], words[i + 1]);
    }
    for (size_t i = kWords - kShift; i < kWords - 1; ++i) {
      words[i] = words[i - (kWords - kShift)] ^ mix(words[i], words[i + 1]);
    }
    words[kWords - 1] = words[kShift - 1] ^ mix(words[kWords - 1], words[0]);
  }
}

LOWTIDE_CLONES void to_numbers(const uint32_t* words, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<int32_t>(temper(words[i]) & 0xFFFFFFU)) * 0x1p-24F;
  }
}

}  // namespace

Twister::Twister(uint32_t seed) {
  words_[0] = seed;
  for (uint32_t i = 1; i < kWords; ++i) {
    words_[i] = 1812433253U * (words_[i - 1] ^ (words_[i - 1] >> 30)) + i;
  }
}

uint32_t Twister::next() {
  skip(1);
  return temper(words_[num_used_ - 1]);
}

void Twister::skip(uint64_t count) {
  const uint64_t left = kWords - num_used_;
  if (count > left) {
    const uint64_t times = (count - left + kWords - 1) / kWords;
    twist(words_.data(), times);
    num_used_ = static_cast<size_t>(count - left - (times - 1) * kWords);
  } else {
    num_used_ += static_cast<size_t>(count);
  }
}

void Twister::fill(float* out, size_t count) {
  while (count > 0) {
    if (num_used_ == kWords) {
      twist(words_.data(), 1);
      num_used_ = 0;
    }
    const size_t some = std::min(count, kWords - num_used_);
    to_numbers(words_.data() + num_used_, out, some);
    num_used_ += some;
    out += some;
    count -= some;
  }
}

}  // namespace lowtide
