// Find a pair of symbols in a word: eight symbols of two bytes at a time with vector instructions,
// which saves a tenth of the learning time, and nine tenths where a text is a single word (DNA).
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

namespace lowtide {

// Symbols after a word that may be read, whatever their values.
constexpr size_t kReadBehind = 8;

// The first position of the pair from `begin` on, or one where no pair can begin: the last symbol's, or
// one after it. Reads up to `read_behind` symbols after the word, which must not be written meanwhile.
template <size_t read_behind = 0, typename Symbol>
size_t find_pair(const Symbol* symbols, size_t begin, size_t length, Symbol left, Symbol right) {
  size_t i = begin;
#if defined(__SSE2__)
  if constexpr (sizeof(Symbol) == 2) {
    static_assert(read_behind == 0 || read_behind == kReadBehind);
    const __m128i lefts = _mm_set1_epi16(static_cast<int16_t>(left));
    const __m128i rights = _mm_set1_epi16(static_cast<int16_t>(right));
    const auto load = [&](size_t at) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols + at));
    };
    for (; i + (read_behind ? 1 : 8) < length; i += 8) {
      const __m128i found =
          _mm_and_si128(_mm_cmpeq_epi16(load(i), lefts), _mm_cmpeq_epi16(load(i + 1), rights));
      const auto bits = static_cast<uint32_t>(_mm_movemask_epi8(found));
      if (bits != 0) return i + static_cast<size_t>(std::countr_zero(bits)) / 2;
    }
    if (read_behind) return length;
  }
#endif
  while (i + 1 < length && (symbols[i] != left || symbols[i + 1] != right)) ++i;
  return i;
}

}  // namespace lowtide
