#include "corpus/line_scan.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>

namespace lowtide {
namespace {

bool is_printable(uint8_t byte) { return byte >= 0x20 && byte <= 0x7E; }

bool is_plain(const char* bytes, size_t size) {
  uint8_t odd = 0;
  const auto* line = reinterpret_cast<const uint8_t*>(bytes);
  if (size == 0) return true;
  odd |= !is_printable(line[0]);
  for (size_t at = 1; at < size; ++at) {
    const uint8_t here = line[at], before = line[at - 1];
    odd |= static_cast<uint8_t>((here < 0x20) | (here > 0x7E) | ((here == ' ') & (before == ' ')));
  }
  return odd == 0 && line[size - 1] != ' ';
}

constexpr ptrdiff_t kPlainBytes = 32;

// True if a range within a line is plain; it neither begins nor ends with a blank.
bool is_plain_block(const unsigned char* bytes) {
  uint8_t odd = bytes[0] == ' ' || bytes[kPlainBytes - 1] == ' ' || !is_printable(bytes[0]);
  for (ptrdiff_t at = 1; at < kPlainBytes; ++at) {
    odd |= static_cast<uint8_t>((bytes[at] < 0x20) | (bytes[at] > 0x7E) |
                                ((bytes[at] == ' ') & (bytes[at - 1] == ' ')));
  }
  return odd == 0;
}

LineScan scan_line_plainly(const char* at, const char* end) {
  const auto* newline = static_cast<const char*>(std::memchr(at, '\n', end - at));
  const char* line_end = newline != nullptr ? newline : end;
  const auto size = static_cast<size_t>(line_end - at);
  return {line_end, newline != nullptr, is_plain(at, size), count_repeated_bytes(at, size)};
}

size_t copy_plain_plainly(const unsigned char* begin, const unsigned char* end, char* out) {
  if (end - begin < kPlainBytes || out[-1] == ' ' || out[-1] == '\t' || !is_plain_block(begin)) {
    return 0;
  }
  std::memcpy(out, begin, kPlainBytes);
  return kPlainBytes;
}

#if defined(__x86_64__)
#define LOWTIDE_AVX512 __attribute__((target("avx512f,avx512bw,bmi,bmi2,popcnt")))

LOWTIDE_AVX512 inline uint64_t first_bits(ptrdiff_t count) {
  return count >= 64 ? ~uint64_t{0} : _bzhi_u64(~uint64_t{0}, static_cast<unsigned>(count));
}

// Which of 64 bytes are not printable ASCII.
LOWTIDE_AVX512 inline uint64_t odd_bytes(__m512i bytes) {
  const __m512i shifted = _mm512_sub_epi8(bytes, _mm512_set1_epi8(0x20));
  return _mm512_cmpgt_epu8_mask(shifted, _mm512_set1_epi8(0x7E - 0x20));
}

LOWTIDE_AVX512 LineScan scan_line_avx512(const char* at, const char* end) {
  const __m512i newlines = _mm512_set1_epi8('\n'), blanks = _mm512_set1_epi8(' ');
  uint64_t odd = 0, blank_before = 0, not_first = ~uint64_t{1};
  size_t repeated = 0;
  const char* const begin = at;
  for (; at < end; at += 64) {
    const uint64_t there = first_bits(end - at);
    const __m512i bytes = _mm512_maskz_loadu_epi8(there, at);
    const uint64_t newline = _mm512_mask_cmpeq_epi8_mask(there, bytes, newlines);
    const uint64_t line = newline == 0 ? there : newline ^ (newline - 1) ^ (newline & -newline);
    const uint64_t blank = _mm512_mask_cmpeq_epi8_mask(line, bytes, blanks);
    odd |= (odd_bytes(bytes) & line) | (blank & (blank << 1 | blank_before));
    blank_before = blank >> 63;
    const uint64_t compared = line & not_first;
    const __m512i before = _mm512_maskz_loadu_epi8(compared, at - 1);
    repeated +=
        static_cast<size_t>(std::popcount(_mm512_mask_cmpeq_epi8_mask(compared, bytes, before)));
    not_first = ~uint64_t{0};
    if (newline != 0) {
      at += std::countr_zero(newline);
      return {at, true, odd == 0 && (at == begin || at[-1] != ' '), repeated};
    }
  }
  return {end, false, odd == 0 && (end == begin || end[-1] != ' '), repeated};
}

LOWTIDE_AVX512 size_t copy_plain_avx512(const unsigned char* begin, const unsigned char* end,
                                        char* out) {
  const uint64_t there = first_bits(end - begin);
  const __m512i bytes = _mm512_maskz_loadu_epi8(there, begin);
  const uint64_t blank = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(' '));
  const uint64_t blank_before = out[-1] == ' ' || out[-1] == '\t';
  const uint64_t odd = odd_bytes(bytes) | (blank & (blank << 1 | blank_before)) | ~there;
  const int count = std::countr_zero(odd);
  _mm512_mask_storeu_epi8(out, first_bits(count), bytes);
  return static_cast<size_t>(count);
}

// Compares the first and the last byte at 64 positions at a time.
LOWTIDE_AVX512 const char* find_bytes_avx512(const char* at, const char* end,
                                             std::string_view wanted) {
  const __m512i first = _mm512_set1_epi8(wanted.front()), last = _mm512_set1_epi8(wanted.back());
  const auto reach = static_cast<ptrdiff_t>(wanted.size()) - 1;
  for (; end - at > reach; at += 64) {
    const uint64_t there = first_bits(end - at - reach);
    const __m512i begins = _mm512_maskz_loadu_epi8(there, at);
    const __m512i ends = _mm512_maskz_loadu_epi8(there, at + reach);
    uint64_t places =
        _mm512_mask_cmpeq_epi8_mask(_mm512_mask_cmpeq_epi8_mask(there, begins, first), ends, last);
    for (; places != 0; places &= places - 1) {
      const char* place = at + std::countr_zero(places);
      if (std::memcmp(place, wanted.data(), wanted.size()) == 0) return place;
    }
  }
  return nullptr;
}
#endif

}  // namespace

bool has_byte_vectors() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2");
  return has;
#else
  return false;
#endif
}

LineScan scan_line(const char* at, const char* end, bool vectors) {
  const char* first = at;  // after the indentation, which cleaning keeps
  while (first < end && (*first == ' ' || *first == '\t')) ++first;
  LineScan line;
#if defined(__x86_64__)
  line =
      vectors && has_byte_vectors() ? scan_line_avx512(first, end) : scan_line_plainly(first, end);
#else
  line = scan_line_plainly(first, end);
#endif
  if (first > at) {
    line.plain &= line.end > first;
    line.repeated += count_repeated_bytes(at, static_cast<size_t>(first - at));
  }
  return static_cast<void>(vectors), line;
}

size_t copy_plain(const unsigned char* begin, const unsigned char* end, char* out, bool vectors) {
#if defined(__x86_64__)
  if (vectors && has_byte_vectors()) return copy_plain_avx512(begin, end, out);
#endif
  return static_cast<void>(vectors), copy_plain_plainly(begin, end, out);
}

size_t count_repeated_bytes(const char* bytes, size_t size) {
  size_t total = 0;
  for (size_t begin = 1; begin < size; begin += 128) {
    uint8_t same = 0;  // narrow, so that 16 of them are counted at a time
    const size_t end = std::min(begin + 128, size);
    for (size_t at = begin; at < end; ++at) same += bytes[at] == bytes[at - 1];
    total += same;
  }
  return total;
}

const char* find_bytes(const char* at, const char* end, std::string_view wanted, bool vectors) {
  if (wanted.empty()) return nullptr;
#if defined(__x86_64__)
  if (vectors && has_byte_vectors()) return find_bytes_avx512(at, end, wanted);
#endif
  const auto size = static_cast<size_t>(end - at);
  return static_cast<void>(vectors),
         static_cast<const char*>(memmem(at, size, wanted.data(), wanted.size()));
}

}  // namespace lowtide
