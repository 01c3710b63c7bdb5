// What 64 bytes of a text are, as bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace lowtide {

constexpr size_t kMaskedBytes = 64;

struct ByteMasks {
  uint64_t letters = 0, spaces = 0;  // of ASCII, as str.isalpha and str.isspace have them
  uint64_t high = 0;                 // beyond ASCII
};

#if defined(__x86_64__)
// Vectors of 16 bytes: every processor of this kind has them.
inline ByteMasks mask_64_bytes(const char* bytes) {
  ByteMasks masks;
  // `last` and the `count - 1` bytes before it become the largest signed numbers.
  const auto is_within = [](__m128i there, char last, char count) {
    const __m128i moved = _mm_add_epi8(there, _mm_set1_epi8(static_cast<char>(0x7F - last)));
    return _mm_cmpgt_epi8(moved, _mm_set1_epi8(static_cast<char>(0x7F - count)));
  };
  const auto bits_of = [](__m128i there) {
    return uint64_t{static_cast<uint32_t>(_mm_movemask_epi8(there))};
  };
  for (int part = 0; part < 4; ++part) {
    const __m128i there = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * part));
    const __m128i letters = is_within(_mm_or_si128(there, _mm_set1_epi8(0x20)), 'z', 26);
    const __m128i spaces = _mm_or_si128(is_within(there, ' ', 5), is_within(there, '\r', 5));
    masks.letters |= bits_of(letters) << (16 * part);
    masks.spaces |= bits_of(spaces) << (16 * part);
    masks.high |= bits_of(there) << (16 * part);
  }
  return masks;
}
#else
inline ByteMasks mask_64_bytes(const char* bytes) {
  ByteMasks masks;
  for (size_t at = 0; at < kMaskedBytes; ++at) {
    const uint32_t byte = static_cast<unsigned char>(bytes[at]);
    masks.high |= uint64_t{byte >> 7} << at;
    masks.letters |= uint64_t{(byte | 0x20) - 'a' < 26} << at;
    masks.spaces |= uint64_t{byte - 9 < 5 || byte - 28 < 5} << at;
  }
  return masks;
}
#endif

// Of `size` bytes, at most 64; whitespace follows where there are fewer.
inline ByteMasks mask_bytes(const char* bytes, size_t size) {
  if (size >= kMaskedBytes) return mask_64_bytes(bytes);
  char padded[kMaskedBytes];
  std::memset(padded, ' ', sizeof padded);
  std::memcpy(padded, bytes, size);
  return mask_64_bytes(padded);
}

}  // namespace lowtide
