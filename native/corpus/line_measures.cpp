#include "corpus/line_measures.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>

#include "corpus/cleaner.hpp"
#include "corpus/line_scan.hpp"
#include "text/code_points.hpp"

namespace lowtide {
namespace {

constexpr size_t kRepetitionBytes = 64;  // shorter lines are not judged
constexpr size_t kPhraseBytes = 384;     // twice as many are checked for repeated phrases

bool writes_without_blanks(uint32_t code) {
  return code >= 0x2E80 || (code >= 0x0E00 && code <= 0x0EFF) ||
         (code >= 0x1000 && code <= 0x109F) || (code >= 0x1780 && code <= 0x17FF);
}

}  // namespace

bool has_words(std::string_view text, uint64_t wanted) {
  uint64_t words = 0;
  bool inside = false;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  for (size_t at = 0; at < text.size() && words < wanted;) {
    const Decoded next = decode_utf8(bytes + at, text.size() - at);
    at += next.size;
    if (next.code < 0x80 ? next.code <= ' ' : classify_code_point(next.code) == kClassBlank) {
      inside = false;
    } else if (writes_without_blanks(next.code)) {
      ++words;
      inside = false;
    } else if (!inside) {
      ++words;
      inside = true;
    }
  }
  return words >= wanted;
}

namespace {

// Of the 8-byte pieces that begin at each byte of a line, those whose product with a constant is
// small: one in 16, chosen by content, so that a repeated phrase has the same ones again.
constexpr uint64_t kPieceFactor = 0x9E3779B97F4A7C15ULL, kPieceLimit = uint64_t{1} << 60;
constexpr size_t kMostPieces = 128;
using Pieces = std::array<uint64_t, kMostPieces + 8>;

size_t choose_pieces(std::string_view line, size_t at, size_t count, Pieces& pieces) {
  for (; at + 8 <= line.size() && count < kMostPieces; ++at) {
    const uint64_t mixed = load64(line.data() + at) * kPieceFactor;
    pieces[count] = mixed;  // no branch: one in 16 is too many to mispredict
    count += mixed < kPieceLimit;
  }
  return count;
}

#if defined(__x86_64__)
// Eight at a time.
__attribute__((target("avx512f,avx512bw,avx512dq,popcnt"))) size_t
choose_pieces_avx512(std::string_view line, Pieces& pieces) {
  const __m512i places = _mm512_set_epi64(
      0x0E0D0C0B0A090807, 0x0D0C0B0A09080706, 0x0C0B0A0908070605, 0x0B0A090807060504,
      0x0A09080706050403, 0x0908070605040302, 0x0807060504030201, 0x0706050403020100);
  const __m512i factor = _mm512_set1_epi64(static_cast<int64_t>(kPieceFactor));
  const __m512i limit = _mm512_set1_epi64(static_cast<int64_t>(kPieceLimit));
  size_t count = 0, at = 0;
  for (; at + 16 <= line.size() && count < kMostPieces; at += 8) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line.data() + at));
    const __m512i words = _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xFFFF, bytes), places);
    const __m512i mixed = _mm512_mullo_epi64(words, factor);
    const __mmask8 chosen = _mm512_cmplt_epu64_mask(mixed, limit);
    _mm512_storeu_si512(pieces.data() + count, _mm512_maskz_compress_epi64(chosen, mixed));
    count += static_cast<size_t>(__builtin_popcount(chosen));
  }
  return choose_pieces(line, at, std::min(count, kMostPieces), pieces);
}
#endif

size_t choose_pieces(std::string_view line, bool vectors, Pieces& pieces) {
#if defined(__x86_64__)
  if (vectors && has_byte_vectors()) return choose_pieces_avx512(line, pieces);
#endif
  return static_cast<void>(vectors), choose_pieces(line, 0, 0, pieces);
}

// The share of a sample of the line's pieces that occurred before. For each earlier piece, the
// chance to mistake a different one for it is 1 in 4096: sorting them instead took three times
// longer.
double measure_repeated_phrases(std::string_view line, bool vectors) {
  Pieces pieces;
  uint64_t seen[64] = {};
  size_t again = 0;
  const size_t count = choose_pieces(line, vectors, pieces);
  for (size_t at = 0; at < count; ++at) {
    const uint64_t bit = uint64_t{1} << (pieces[at] >> 42 & 63);
    uint64_t& word = seen[pieces[at] >> 48 & 63];
    again += (word & bit) != 0;
    word |= bit;
  }
  return count < 16 ? 0 : static_cast<double>(again) / static_cast<double>(count);
}

}  // namespace

double measure_repetition(std::string_view line, size_t repeated, bool vectors) {
  if (line.size() < kRepetitionBytes) return 0;
  const double runs = static_cast<double>(repeated) / static_cast<double>(line.size() - 1);
  return std::max(runs, line.size() < kPhraseBytes
                            ? 0
                            : measure_repeated_phrases(line.substr(0, 2 * kPhraseBytes), vectors));
}

}  // namespace lowtide
