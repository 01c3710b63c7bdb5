// The hash of a word, for loops over many words: without branches on the length of short words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "corpus/text_hash.hpp"
#include "quality/words.hpp"

namespace lowtide {

constexpr uint64_t kHashA = 0x9E3779B97F4A7C15ULL, kHashB = 0xC2B2AE3D27D4EB4FULL;
constexpr size_t kShortWord = 16;  // bytes; longer words have another hash function

inline uint64_t hash_two(uint64_t first, uint64_t second, size_t size) {
  return scatter64(fold_multiply(first ^ kHashA, second ^ kHashB ^ (size << 56)));
}

// How a word of up to 16 bytes is read as two numbers, by its size: as in hash_word, without
// branching on its three cases.
struct Loads {
  uint64_t first, second;  // masks
  uint8_t offset, shift;   // of the second
};
constexpr std::array<Loads, kShortWord + 1> make_loads() {
  std::array<Loads, kShortWord + 1> loads{};
  for (size_t size = 1; size <= kShortWord; ++size) {
    Loads& row = loads[size];
    if (size >= 8) {
      row = {~uint64_t{0}, ~uint64_t{0}, static_cast<uint8_t>(size - 8), 0};
    } else if (size >= 4) {
      row = {0xFFFFFFFF, 0xFFFFFFFF, 0, static_cast<uint8_t>(8 * (size - 4))};
    } else {
      row = {(uint64_t{1} << (8 * size)) - 1, 0, 0, 0};
    }
  }
  return loads;
}
constexpr std::array<Loads, kShortWord + 1> kLoads = make_loads();

// hash_word of a word of 1 to 16 bytes that begins at least 8 before the end of the text.
inline uint64_t hash_short_word(const char* word, size_t size) {
  const Loads& loads = kLoads[size];
  const uint64_t second = load64(word + loads.offset) >> loads.shift;
  return hash_two(load64(word) & loads.first, second & loads.second, size);
}

// hash_word of a word in a text that ends at `text_end`.
inline uint64_t hash_word_before(const char* word, size_t size, const char* text_end) {
  if (size <= kShortWord && text_end - word >= 8) return hash_short_word(word, size);
  return hash_word({word, size});
}

}  // namespace lowtide
