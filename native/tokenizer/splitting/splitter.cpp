#include "tokenizer/splitting/splitter.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#endif

namespace lowtide {

namespace {

constexpr uint32_t bit(CharClass cls) { return 1u << cls; }
constexpr uint32_t kLetters = bit(kUpper) | bit(kLower) | bit(kLetter);
constexpr uint32_t kNumbers = bit(kNumber);
constexpr uint32_t kBlanks = bit(kNewline) | bit(kSpace);
constexpr uint32_t kSymbols = bit(kOther) | bit(kMark);  // [^\s\p{L}\p{N}]
constexpr uint32_t kHeads =
    bit(kUpper) | bit(kLetter) | bit(kMark);  // o200k's first half of a word
constexpr uint32_t kTails = bit(kLower) | bit(kLetter) | bit(kMark);  // and its second

inline bool in(CharClass cls, uint32_t set) { return (bit(cls) & set) != 0; }

inline const uint8_t* skip(const uint8_t* p, const uint8_t* end, uint32_t set) {
  while (p < end) {
    const Char c = char_at(p, end);
    if (!in(c.cls, set)) break;
    p += c.length;
  }
  return p;
}

inline const uint8_t* skip_bytes(const uint8_t* p, const uint8_t* end, bool slash) {
  while (p < end && (*p == '\n' || *p == '\r' || (slash && *p == '/'))) ++p;
  return p;
}

// The length of 's 't 'm 'd 're 've 'll at `p`, which is an apostrophe; 0 if there is none.
inline size_t contraction_length(const uint8_t* p, const uint8_t* end, bool fold_case) {
  const auto letter = [&](size_t i) -> int {
    if (p + i >= end) return 0;
    return fold_case && p[i] >= 'A' && p[i] <= 'Z' ? p[i] | 0x20 : p[i];
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    case 0xC5:  // U+017F, the long s, folds to s
      return fold_case && p + 2 < end && p[2] == 0xBF ? 3 : 0;
    default:
      return 0;
  }
}

// The blanks at `p` as "\s+(?!\S)|\s+" takes them: all at the end of the text, else all but the last.
inline const uint8_t* blank_piece(const uint8_t* p, const uint8_t* end) {
  const uint8_t* last = p;
  const uint8_t* q = p;
  while (q < end) {
    const Char c = char_at(q, end);
    if (!in(c.cls, kBlanks)) return last == p ? q : last;
    last = q;
    q += c.length;
  }
  return q;
}

// The same with "\s*[\r\n]+" before it.
inline const uint8_t* blank_piece_by_line(const uint8_t* p, const uint8_t* end) {
  const uint8_t* after_newline = nullptr;
  for (const uint8_t* q = p; q < end;) {
    const Char c = char_at(q, end);
    if (!in(c.cls, kBlanks)) break;
    q += c.length;
    if (c.cls == kNewline) after_newline = q;
  }
  return after_newline != nullptr ? after_newline : blank_piece(p, end);
}

// What tells patterns of one kind apart.
struct Rules {
  int most_numbers = 3;  // in a piece
  bool contractions = true;
  bool marks_in_words = false;
};
constexpr Rules rules_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::kQwen2:
      return {1, true, false};
    case Pattern::kQwen35:
      return {1, true, true};
    case Pattern::kTekken:
      return {1, false, false};
    default:
      return {};
  }
}

template <int kMost>
inline const uint8_t* up_to_numbers(const uint8_t* p, const uint8_t* end) {
  for (int i = 0; i < kMost && p < end; ++i) {
    const Char c = char_at(p, end);
    if (c.cls != kNumber) break;
    p += c.length;
  }
  return p;
}

// o200k's first two alternatives from `p`, which is where their optional first character is over.
// Heads are taken greedily; if no lower-case letter follows, they are given back until the last one
// taken can be a tail. Returns nullptr if that leaves nothing.
const uint8_t* o200k_word_with_tail(const uint8_t* p, const uint8_t* end) {
  const uint8_t* after_tail = nullptr;
  const uint8_t* q = p;
  while (q < end) {
    const Char c = char_at(q, end);
    if (!in(c.cls, kHeads)) {
      if (c.cls == kLower) return skip(q, end, kTails);
      break;
    }
    q += c.length;
    if (in(c.cls, kTails)) after_tail = q;
  }
  return after_tail;
}

inline const uint8_t* o200k_word_from(const uint8_t* p, const uint8_t* body, const uint8_t* end) {
  if (const uint8_t* q = o200k_word_with_tail(body, end)) return q;
  if (body != p) {  // the first character given back: only a mark can be part of the word itself
    if (const uint8_t* q = o200k_word_with_tail(p, end)) return q;
  }
  const uint8_t* q = skip(body, end, kHeads);
  return q != body ? q : nullptr;
}

template <bool kContractions>
const uint8_t* o200k_word(const uint8_t* p, const uint8_t* end, const Char& first) {
  const bool may_prefix = !in(first.cls, kLetters | kNumbers | bit(kNewline));
  const uint8_t* q = o200k_word_from(p, may_prefix ? p + first.length : p, end);
  if (kContractions && q != nullptr && q < end && *q == '\'') {
    q += contraction_length(q, end, true);
  }
  return q;
}

}  // namespace

template <>
const uint8_t* next_piece<Pattern::kGpt2>(const uint8_t* p, const uint8_t* end) {
  const Char first = char_at(p, end);
  if (*p == '\'') {
    if (const size_t length = contraction_length(p, end, false)) return p + length;
  }
  const uint8_t* body = p;
  CharClass cls = first.cls;
  if (*p == ' ' && p + 1 < end) {
    body = p + 1;
    cls = char_at(body, end).cls;
  }
  if (in(cls, kLetters)) return skip(body, end, kLetters);
  if (in(cls, kNumbers)) return skip(body, end, kNumbers);
  if (in(cls, kSymbols)) return skip(body, end, kSymbols);
  return blank_piece(p, end);
}

// Numbers one by one; between them gpt2, for which a number is the end of the text.
template <>
const uint8_t* next_piece<Pattern::kDigits>(const uint8_t* p, const uint8_t* end) {
  const Char first = char_at(p, end);
  if (first.cls == kNumber) return p + first.length;
  if (in(first.cls, kBlanks)) {
    const uint8_t* const behind = skip(p, end, kBlanks);
    if (behind < end && char_at(behind, end).cls == kNumber) return behind;
  }
  return next_piece<Pattern::kGpt2>(p, end);
}

namespace {
template <Pattern pattern>
inline const uint8_t* next_cl100k(const uint8_t* p, const uint8_t* end) {
  constexpr Rules kRules = rules_of(pattern);
  constexpr uint32_t kWords = kLetters | (kRules.marks_in_words ? bit(kMark) : 0);
  constexpr uint32_t kRest = kRules.marks_in_words ? bit(kOther) : kSymbols;
  const Char first = char_at(p, end);
  if (*p == '\'') {
    if (const size_t length = contraction_length(p, end, true)) return p + length;
  }
  if (in(first.cls, kWords)) return skip(p, end, kWords);
  if (first.cls == kNumber) return up_to_numbers<kRules.most_numbers>(p, end);
  const uint8_t* second = p + first.length;
  const bool has_second = second < end;
  const CharClass second_cls = has_second ? char_at(second, end).cls : kOther;
  if (first.cls != kNewline && has_second && in(second_cls, kWords)) {
    return skip(second, end, kWords);
  }
  const bool space_then_symbol = *p == ' ' && has_second && in(second_cls, kRest);
  if (in(first.cls, kRest) || space_then_symbol) {
    return skip_bytes(skip(space_then_symbol ? second : p, end, kRest), end, false);
  }
  return blank_piece_by_line(p, end);
}

template <Pattern pattern>
inline const uint8_t* next_o200k(const uint8_t* p, const uint8_t* end) {
  constexpr Rules kRules = rules_of(pattern);
  const Char first = char_at(p, end);
  if (first.cls == kNumber) return up_to_numbers<kRules.most_numbers>(p, end);
  if (const uint8_t* q = o200k_word<kRules.contractions>(p, end, first)) return q;
  const uint8_t* second = p + first.length;
  const bool space_then_symbol =
      *p == ' ' && second < end && in(char_at(second, end).cls, kSymbols);
  if (in(first.cls, kSymbols) || space_then_symbol) {
    return skip_bytes(skip(space_then_symbol ? second : p, end, kSymbols), end, true);
  }
  return blank_piece_by_line(p, end);
}
}  // namespace

template <>
const uint8_t* next_piece<Pattern::kCl100k>(const uint8_t* p, const uint8_t* end) {
  return next_cl100k<Pattern::kCl100k>(p, end);
}
template <>
const uint8_t* next_piece<Pattern::kQwen2>(const uint8_t* p, const uint8_t* end) {
  return next_cl100k<Pattern::kQwen2>(p, end);
}
template <>
const uint8_t* next_piece<Pattern::kQwen35>(const uint8_t* p, const uint8_t* end) {
  return next_cl100k<Pattern::kQwen35>(p, end);
}
template <>
const uint8_t* next_piece<Pattern::kO200k>(const uint8_t* p, const uint8_t* end) {
  return next_o200k<Pattern::kO200k>(p, end);
}
template <>
const uint8_t* next_piece<Pattern::kTekken>(const uint8_t* p, const uint8_t* end) {
  return next_o200k<Pattern::kTekken>(p, end);
}

namespace {

template <Pattern pattern>
size_t split_scalar(const uint8_t* text, size_t length, size_t* position, uint32_t* ends,
                    size_t capacity) {
  const uint8_t* p = text + *position;
  const uint8_t* const end = text + length;
  size_t count = 0;
  while (p < end && count < capacity) {
    p = next_piece<pattern>(p, end);
    ends[count++] = static_cast<uint32_t>(p - text);
  }
  *position = static_cast<size_t>(p - text);
  return count;
}

#if defined(__x86_64__)

struct BlockMasks {
  uint64_t letter, upper, number, space, blank, newline, high, apostrophe, slash;
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

// What a block says: where pieces start, and at which places that is certain.
struct BlockStarts {
  uint64_t starts, known;
};

inline uint64_t bits_below(size_t i) { return (uint64_t{1} << i) - 1; }

// Goes through the apostrophes in `quotes`, calling found(place, length) for each contraction;
// returns how many places from the left can be relied on.
template <typename Found>
inline uint64_t visit_contractions(uint64_t quotes, const uint8_t* text, const uint8_t* end,
                                   unsigned usable, bool fold_case, const Found& found) {
  for (; quotes != 0; quotes &= quotes - 1) {
    const unsigned i = static_cast<unsigned>(__builtin_ctzll(quotes));
    if (i + 4 > usable) return i == 0 ? 0 : bits_below(i);  // its letters are not all in sight
    if (const size_t length = contraction_length(text + i, end, fold_case)) found(i, length);
  }
  return ~uint64_t{0};
}

// gpt2, and the same between numbers that stand alone.
template <bool kDigits>
inline BlockStarts find_gpt2_starts(const BlockMasks& m, const uint8_t* text, const uint8_t* end,
                                    unsigned usable) {
  const uint64_t symbol = ~(m.letter | m.number | m.blank);
  uint64_t starts =
      (m.letter & ~(m.letter << 1)) | (m.number & ~(m.number << 1)) | (symbol & ~(symbol << 1));
  starts &= ~(m.space << 1);
  if constexpr (kDigits) {
    starts |= m.number;
    starts |= m.blank & ~(m.blank << 1 & (m.blank | m.number) >> 1);
  } else {
    starts |= m.blank & ~(m.blank << 1 & m.blank >> 1);
  }
  const uint64_t known = visit_contractions(m.apostrophe & (starts | 1), text, end, usable, false,
                                            [&](unsigned i, size_t length) {
                                              starts &= ~(uint64_t{2} << i);
                                              starts |= uint64_t{1} << (i + length);
                                            });
  return {starts, known};
}

// What cl100k and o200k share: numbers by three or one by one, a symbol or blank that goes with the word behind it,
// newlines that go with the symbols before them, blanks up to the last newline.
template <int kMostNumbers>
inline BlockStarts find_starts_by_line(const BlockMasks& m, unsigned usable) {
  const uint64_t tab = m.blank & ~m.newline;  // blanks that end no line
  const uint64_t symbol = ~(m.letter | m.number | m.blank);
  const uint64_t first_symbol = symbol & ~(symbol << 1) & ~(m.space << 1);
  const uint64_t lone_symbol = first_symbol & ~(symbol >> 1);
  uint64_t starts = m.letter & ~(m.letter << 1) & ~(tab << 1) & ~(lone_symbol << 1);
  starts |= first_symbol;
  if constexpr (kMostNumbers == 1) {
    starts |= m.number;
  } else {
    static_assert(kMostNumbers == 3);
    uint64_t number = m.number & ~(m.number << 1);
    while (number != 0) {
      starts |= number;
      number = number << 3 & m.number & m.number << 1 & m.number << 2;
    }
  }
  starts |= m.blank & ~(m.blank << 1) & ~(m.newline & symbol << 1);
  starts |= tab & ~(m.blank >> 1);
  // Blanks behind a newline start a piece unless another newline follows them: then, and if what
  // follows is not in sight, this is as far as the block goes.
  uint64_t known = ~uint64_t{0};
  const uint64_t indents = tab & m.newline << 1 & bits_below(usable - 1);
  if (indents != 0) {
    const uint64_t behind = (tab + indents) & ~tab;
    const unsigned last = 63 - static_cast<unsigned>(__builtin_clzll(indents));
    uint64_t doubtful = 0;
    if (const uint64_t ended = behind & m.newline) {
      doubtful = uint64_t{1} << (63 - __builtin_clzll(indents & ((ended & -ended) - 1)));
    } else if ((behind & bits_below(usable - 1)) >> last == 0) {
      doubtful = uint64_t{1} << last;
    }
    if (doubtful != 0) known = doubtful - 1;
    starts |= indents;
  }
  return {starts, known};
}

// Marks are not ASCII: what they are a part of makes no difference here.
template <Pattern pattern>
inline BlockStarts find_cl100k_starts(const BlockMasks& m, const uint8_t* text, const uint8_t* end,
                                      unsigned usable) {
  BlockStarts block = find_starts_by_line<rules_of(pattern).most_numbers>(m, usable);
  block.known &= visit_contractions(
      m.apostrophe & (block.starts | 1), text, end, usable, true,
      [&](unsigned i, size_t length) { block.starts |= uint64_t{1} << (i + length); });
  return block;
}

template <Pattern pattern>
inline BlockStarts find_o200k_starts(const BlockMasks& m, [[maybe_unused]] const uint8_t* text,
                                     [[maybe_unused]] const uint8_t* end, unsigned usable) {
  BlockStarts block = find_starts_by_line<rules_of(pattern).most_numbers>(m, usable);
  block.starts |= m.upper & (m.letter & ~m.upper) << 1;
  if constexpr (rules_of(pattern).contractions) {
    // A contraction goes with the word before it; the one right behind a contraction does not.
    size_t taken = 0;
    block.known &= visit_contractions(m.apostrophe & m.letter << 1, text, end, usable, true,
                                      [&](unsigned i, size_t length) {
                                        if (i == taken) return;
                                        taken = i + length;
                                        block.starts &= ~(bits_below(length) << i);
                                        block.starts |= uint64_t{1} << taken;
                                      });
  }
  // A slash behind a newline may go with the symbols before that.
  if (const uint64_t slash = m.slash & m.newline << 1) block.known &= (slash & -slash) - 1;
  return block;
}

template <Pattern pattern>
inline BlockStarts find_starts(const BlockMasks& m, const uint8_t* text, const uint8_t* end,
                               unsigned usable) {
  if constexpr (pattern == Pattern::kGpt2 || pattern == Pattern::kDigits) {
    return find_gpt2_starts<pattern == Pattern::kDigits>(m, text, end, usable);
  } else if constexpr (pattern == Pattern::kO200k || pattern == Pattern::kTekken) {
    return find_o200k_starts<pattern>(m, text, end, usable);
  } else {
    return find_cl100k_starts<pattern>(m, text, end, usable);
  }
}

#define LOWTIDE_TARGET "avx512f,avx512bw,bmi,bmi2,lzcnt,popcnt"
#define LOWTIDE_CLASSIFY classify_avx512
#define LOWTIDE_SPLIT split_avx512
#include "tokenizer/splitting/splitter_block.inc"
#undef LOWTIDE_TARGET
#undef LOWTIDE_CLASSIFY
#undef LOWTIDE_SPLIT

#define LOWTIDE_TARGET "avx2,bmi,bmi2,lzcnt,popcnt"
#define LOWTIDE_CLASSIFY classify_avx2
#define LOWTIDE_SPLIT split_avx2
#include "tokenizer/splitting/splitter_block.inc"
#undef LOWTIDE_TARGET
#undef LOWTIDE_CLASSIFY
#undef LOWTIDE_SPLIT

#endif

}  // namespace

namespace {
template <Pattern pattern>
SplitFunction best_splitter([[maybe_unused]] Instructions at_most) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("bmi2")) {
    if (at_most >= Instructions::kAvx512 && __builtin_cpu_supports("avx512bw")) {
      return split_avx512<pattern>;
    }
    if (at_most >= Instructions::kAvx2 && __builtin_cpu_supports("avx2")) {
      return split_avx2<pattern>;
    }
  }
#endif
  return split_scalar<pattern>;
}
}  // namespace

namespace {
size_t split_spaces(const uint8_t* text, size_t length, size_t* position, uint32_t* ends,
                    size_t capacity) {
  size_t at = *position, count = 0;
  for (; at < length && count < capacity; ++count) {
    while (at < length && text[at] == ' ') ++at;
    const void* const next = at < length ? std::memchr(text + at, ' ', length - at) : nullptr;
    at = next == nullptr ? length : static_cast<size_t>(static_cast<const uint8_t*>(next) - text);
    ends[count] = static_cast<uint32_t>(at);
  }
  *position = at;
  return count;
}
}  // namespace

SplitFunction splitter(Pattern pattern, Instructions at_most) {
  switch (pattern) {
    case Pattern::kSpaces:
      return split_spaces;
    case Pattern::kCl100k:
      return best_splitter<Pattern::kCl100k>(at_most);
    case Pattern::kO200k:
      return best_splitter<Pattern::kO200k>(at_most);
    case Pattern::kQwen2:
      return best_splitter<Pattern::kQwen2>(at_most);
    case Pattern::kQwen35:
      return best_splitter<Pattern::kQwen35>(at_most);
    case Pattern::kDigits:
      return best_splitter<Pattern::kDigits>(at_most);
    case Pattern::kTekken:
      return best_splitter<Pattern::kTekken>(at_most);
    case Pattern::kGpt2:
      break;
  }
  return best_splitter<Pattern::kGpt2>(at_most);
}

namespace {
// The class of the character that ends before text[at]; a stray byte is kOther.
CharClass class_before(const uint8_t* text, size_t at) {
  size_t start = at - 1;
  while (start > 0 && at - start < 4 && (text[start] & 0xC0) == 0x80) --start;
  const Char c = char_at(text + start, text + at);
  return start + c.length == at ? c.cls : kOther;
}
}  // namespace

bool is_safe_cut(const uint8_t* text, size_t length, size_t at) {
  if (at < 2 || at >= length || (text[at] & 0xC0) == 0x80) return false;
  const CharClass right = char_at(text + at, text + length).cls;
  if (text[at - 1] == '\n') {
    return !in(class_before(text, at - 1), kBlanks) && !in(right, kBlanks) && text[at] != '/';
  }
  if (right == kMark || text[at] == '\'') return false;
  const CharClass left = class_before(text, at);
  if (in(left, kLetters)) return !in(right, kLetters);
  return left == kNumber && right != kNumber;
}

}  // namespace lowtide
