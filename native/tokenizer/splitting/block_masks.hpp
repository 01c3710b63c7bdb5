// Bit masks of 64 bytes of text: a bit for each byte that is a letter, a number, a space, and so on.
// The starts of pieces are then found for all 64 of them at once.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>

namespace lowtide {
namespace {

struct BlockMasks {
  uint64_t letter, upper, number, space, blank, newline, high, apostrophe, slash;
  // All bytes of a character that is not ASCII are of its kind, see add_high.
  uint64_t caseless = 0;  // letters that are neither upper nor lower case
  uint64_t follow = 0;    // bytes of a character except its first
};

// Positions of bytes that distinguish characters of common scripts.
struct HighBytes {
  uint64_t follow;                     // 80 to BF
  uint64_t from_9e, from_a0, from_b0;  // of those
  uint64_t b7;
  uint64_t d0, d1, e4, e4_e9, ea, eb_ec, ed;
};

// Bytes 9 to 13 are the ASCII blanks besides the space.
__attribute__((target("avx512f,avx512bw,bmi,bmi2,lzcnt,popcnt"), always_inline)) inline BlockMasks
classify_avx512(const uint8_t* p) {
  const __m512i x = _mm512_loadu_si512(p);
  const __m512i folded = _mm512_or_si512(x, _mm512_set1_epi8(0x20));
  BlockMasks m;
  m.letter =
      _mm512_cmplt_epu8_mask(_mm512_sub_epi8(folded, _mm512_set1_epi8('a')), _mm512_set1_epi8(26));
  m.number =
      _mm512_cmplt_epu8_mask(_mm512_sub_epi8(x, _mm512_set1_epi8('0')), _mm512_set1_epi8(10));
  m.space = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(' '));
  m.blank = m.space |
            _mm512_cmplt_epu8_mask(_mm512_sub_epi8(x, _mm512_set1_epi8(9)), _mm512_set1_epi8(5));
  m.upper = m.letter & ~_mm512_test_epi8_mask(x, _mm512_set1_epi8(0x20));
  m.newline = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('\n')) |
              _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('\r'));
  m.high = _mm512_movepi8_mask(x);
  m.apostrophe = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('\''));
  m.slash = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('/'));
  return m;
}

__attribute__((target("avx512f,avx512bw,bmi,bmi2,lzcnt,popcnt"), always_inline)) inline HighBytes
find_high_avx512(const uint8_t* p) {
  const __m512i x = _mm512_loadu_si512(p);
  const auto from = [&](int first, int count) __attribute__((
                        target("avx512f,avx512bw,bmi,bmi2,lzcnt,popcnt"), always_inline)) {
    return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(x, _mm512_set1_epi8(static_cast<char>(first))),
                                  _mm512_set1_epi8(static_cast<char>(count)));
  };
  return {from(0x80, 0x40), from(0x9E, 0x22), from(0xA0, 0x20), from(0xB0, 0x10),
          from(0xB7, 1),    from(0xD0, 1),    from(0xD1, 1),    from(0xE4, 1),
          from(0xE4, 6),    from(0xEA, 1),    from(0xEB, 2),    from(0xED, 1)};
}

__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"), always_inline)) inline uint64_t join_avx2(
    __m256i low, __m256i high) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"), always_inline)) inline __m256i below_avx2(
    __m256i x, char base, char count) {
  const __m256i shifted = _mm256_sub_epi8(x, _mm256_set1_epi8(base));
  return _mm256_cmpeq_epi8(_mm256_min_epu8(shifted, _mm256_set1_epi8(count - 1)), shifted);
}

__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"), always_inline)) inline uint64_t equal_avx2(
    __m256i x, __m256i y, char byte) {
  const __m256i wanted = _mm256_set1_epi8(byte);
  return join_avx2(_mm256_cmpeq_epi8(x, wanted), _mm256_cmpeq_epi8(y, wanted));
}

__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"), always_inline)) inline BlockMasks
classify_avx2(const uint8_t* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  const __m256i fold = _mm256_set1_epi8(0x20);
  BlockMasks m;
  m.letter = join_avx2(below_avx2(_mm256_or_si256(x, fold), 'a', 26),
                       below_avx2(_mm256_or_si256(y, fold), 'a', 26));
  m.number = join_avx2(below_avx2(x, '0', 10), below_avx2(y, '0', 10));
  m.upper = m.letter & ~join_avx2(_mm256_cmpeq_epi8(_mm256_and_si256(x, fold), fold),
                                  _mm256_cmpeq_epi8(_mm256_and_si256(y, fold), fold));
  m.space = equal_avx2(x, y, ' ');
  m.blank = m.space | join_avx2(below_avx2(x, 9, 5), below_avx2(y, 9, 5));
  m.newline = equal_avx2(x, y, '\n') | equal_avx2(x, y, '\r');
  m.high = join_avx2(x, y);
  m.apostrophe = equal_avx2(x, y, '\'');
  m.slash = equal_avx2(x, y, '/');
  return m;
}

__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"), always_inline)) inline HighBytes
find_high_avx2(const uint8_t* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  const auto from = [&](int first, int count) __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"),
                                                             always_inline)) {
    return join_avx2(below_avx2(x, static_cast<char>(first), static_cast<char>(count)),
                     below_avx2(y, static_cast<char>(first), static_cast<char>(count)));
  };
  return {from(0x80, 0x40), from(0x9E, 0x22), from(0xA0, 0x20), from(0xB0, 0x10),
          from(0xB7, 1),    from(0xD0, 1),    from(0xD1, 1),    from(0xE4, 1),
          from(0xE4, 6),    from(0xEA, 1),    from(0xEB, 2),    from(0xED, 1)};
}

}  // namespace
}  // namespace lowtide
#endif
