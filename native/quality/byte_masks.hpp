// Classify 64 bytes of a text at once, as bit masks.
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
  uint64_t letters = 0, spaces = 0;  // of ASCII, by str.isalpha and str.isspace
  uint64_t high = 0;                 // beyond ASCII
};

// Of the bytes of a chunk: letters, digits, and marks that separate words only at the ends of a
// chunk.
struct BareMasks {
  uint64_t letters = 0, digits = 0, marks = 0;
  uint64_t percents = 0;  // these are marks, too
};

#if defined(__x86_64__)
// Vectors of 16 bytes, which every processor of this architecture has.
inline ByteMasks mask_64_bytes(const char* bytes) {
  ByteMasks masks;
  // Maps `last` and the `count - 1` bytes before it to the largest signed numbers.
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

inline void mask_bare_bytes(const char* bytes, size_t size, BareMasks& masks) {
  const auto is_within = [](__m128i there, char last, char count) {
    const __m128i moved = _mm_add_epi8(there, _mm_set1_epi8(static_cast<char>(0x7F - last)));
    return _mm_cmpgt_epi8(moved, _mm_set1_epi8(static_cast<char>(0x7F - count)));
  };
  const auto is = [](__m128i there, char byte) {
    return _mm_cmpeq_epi8(there, _mm_set1_epi8(byte));
  };
  const auto bits_of = [](__m128i there, size_t at) {
    return uint64_t{static_cast<uint32_t>(_mm_movemask_epi8(there))} << at;
  };
  for (size_t at = 0; at < size; at += 16) {
    const __m128i there = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + at));
    const __m128i lower = _mm_or_si128(there, _mm_set1_epi8(0x20));
    const __m128i percents = is(there, '%');
    const __m128i brackets =
        _mm_or_si128(_mm_or_si128(is(lower, '{'), is(lower, '}')), is_within(there, ')', 2));
    const __m128i others = _mm_or_si128(_mm_or_si128(is_within(there, '#', 3), is(there, '&')),
                                        _mm_or_si128(is(there, '?'), percents));
    masks.letters |= bits_of(is_within(lower, 'z', 26), at);
    masks.digits |= bits_of(is_within(there, '9', 10), at);
    masks.marks |= bits_of(_mm_or_si128(brackets, others), at);
    masks.percents |= bits_of(percents, at);
  }
}
#else
inline void mask_bare_bytes(const char* bytes, size_t size, BareMasks& masks) {
  for (size_t at = 0; at < size; ++at) {
    const uint32_t byte = static_cast<unsigned char>(bytes[at]);
    const bool is_mark =
        byte != 0 && std::strchr("!\"#%&()?[]{}", static_cast<int>(byte)) != nullptr;
    masks.letters |= uint64_t{(byte | 0x20) - 'a' < 26} << at;
    masks.digits |= uint64_t{byte - '0' < 10} << at;
    masks.marks |= uint64_t{is_mark} << at;
    masks.percents |= uint64_t{byte == '%'} << at;
  }
}

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

// Of `size` bytes, at most 64; if fewer, padded with whitespace.
inline ByteMasks mask_bytes(const char* bytes, size_t size) {
  if (size >= kMaskedBytes) return mask_64_bytes(bytes);
  char padded[kMaskedBytes];
  std::memset(padded, ' ', sizeof padded);
  std::memcpy(padded, bytes, size);
  return mask_64_bytes(padded);
}

// Of `size` bytes, at most 64, of which `readable` can be read; no bits are set after them.
inline BareMasks mask_bare(const char* bytes, size_t size, size_t readable) {
  BareMasks masks;
  if (readable >= (size + 15) / 16 * 16) {
    mask_bare_bytes(bytes, size, masks);
  } else {
    char padded[kMaskedBytes] = {};
    std::memcpy(padded, bytes, size);
    mask_bare_bytes(padded, size, masks);
  }
  const uint64_t within = ~uint64_t{0} >> (kMaskedBytes - size);
  masks.letters &= within, masks.digits &= within, masks.marks &= within;
  masks.percents &= within;
  return masks;
}

}  // namespace lowtide
