#include "tokenizer/splitting/splitter.hpp"

#include <cstring>

#include "tokenizer/splitting/block_masks.hpp"
#include "tokenizer/splitting/scan_steps.hpp"

namespace lowtide {

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

// Numbers one by one; between them gpt2, with a number treated as the end of the text.
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

// The result of a block: where pieces start, and for which positions that is certain.
struct BlockStarts {
  uint64_t starts, known;
};

inline uint64_t bits_below(size_t i) { return (uint64_t{1} << i) - 1; }

// The non-ASCII characters that a block can process: those that every rule treats as a letter or
// symbol. Not blanks and numbers of several bytes, which patterns count, nor the long s, which ends
// contractions.
template <Pattern pattern>
inline bool is_plain(uint32_t code, CharClass cls) {
  constexpr bool kMarksInWords =
      rules_of(pattern).marks_in_words || pattern == Pattern::kO200k || pattern == Pattern::kTekken;
  return !in(cls, kNumbers | kBlanks | (kMarksInWords ? bit(kMark) : 0)) && code != 0x17F;
}

// Adds non-ASCII characters to the masks: Cyrillic, Chinese and Korean letters by their bytes,
// others one by one. Returns how many bytes from the left are then known.
template <Pattern pattern>
inline unsigned add_high(BlockMasks& m, const HighBytes& h, const uint8_t* p) {
  static const ClassTable& table = ClassTable::get();
  // U+0400 to U+045F; U+4000 to U+9FFF without U+4DC0 to U+4DFF; U+AC00 to U+D77F.
  const uint64_t second = h.follow >> 1;
  const uint64_t cyrillic = (h.d0 & second) | (h.d1 & second & ~(h.from_a0 >> 1));
  const uint64_t three = second & h.follow >> 2 &
                         ((h.e4_e9 & ~(h.e4 & h.b7 >> 1)) | h.eb_ec | (h.ea & h.from_b0 >> 1) |
                          (h.ed & ~(h.from_9e >> 1)));
  const uint64_t upper = h.d0 & second & ~(h.from_b0 >> 1);
  const uint64_t wide = three | three << 1 | three << 2;
  const uint64_t done = wide | cyrillic | cyrillic << 1;
  m.letter |= done;
  m.upper |= upper | upper << 1;
  m.caseless = wide;
  m.follow = (three | cyrillic) << 1 | three << 2;
  for (uint64_t rest = m.high & ~done; rest != 0;) {
    const unsigned i = static_cast<unsigned>(__builtin_ctzll(rest));
    const unsigned size = p[i] < 0xC2 || p[i] > 0xEF ? 4 : p[i] < 0xE0 ? 2 : 3;
    if (size == 4 || i + size > 64) return i;
    if (((h.follow >> i | 1) & bits_below(size)) != bits_below(size)) return i;
    uint32_t code = size == 2 ? p[i] & 0x1Fu : (p[i] & 0x0Fu) << 6 | (p[i + 1] & 0x3Fu);
    code = code << 6 | (p[i + size - 1] & 0x3Fu);
    if (size == 3 && (code < 0x800 || (code >= 0xD800 && code < 0xE000))) return i;
    const CharClass cls = table(code);
    if (!is_plain<pattern>(code, cls)) return i;
    const uint64_t bits = bits_below(size) << i;
    m.letter |= in(cls, kLetters) ? bits : 0;
    m.upper |= cls == kUpper ? bits : 0;
    m.caseless |= cls == kLetter ? bits : 0;
    m.follow |= bits & (bits - 1);
    rest &= ~bits;
  }
  return 64;
}

// Visits the apostrophes in `quotes`, calling found(place, length) for each contraction; returns a
// mask of the positions that are certain.
template <typename Found>
inline uint64_t visit_contractions(uint64_t quotes, const uint8_t* text, const uint8_t* end,
                                   unsigned usable, bool fold_case, const Found& found) {
  for (; quotes != 0; quotes &= quotes - 1) {
    const unsigned i = static_cast<unsigned>(__builtin_ctzll(quotes));
    if (i + 4 > usable) return i == 0 ? 0 : bits_below(i);  // its letters are not all visible
    if (const size_t length = contraction_length(text + i, end, fold_case)) found(i, length);
  }
  return ~uint64_t{0};
}

// gpt2, and the same between single numbers.
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

// The rules that cl100k and o200k share: numbers by three or one by one, a symbol or blank that
// belongs to the word after it, newlines that belong to the symbols before them, blanks up to the
// last newline.
template <int kMostNumbers>
inline BlockStarts find_starts_by_line(const BlockMasks& m, unsigned usable) {
  const uint64_t tab = m.blank & ~m.newline;  // blanks other than newlines
  const uint64_t symbol = ~(m.letter | m.number | m.blank);
  const uint64_t first_symbol = symbol & ~(symbol << 1) & ~(m.space << 1);
  // The position after the first symbol and all its bytes: a letter there belongs to it.
  const uint64_t follow = symbol & m.follow;
  const uint64_t second = ((first_symbol << 1) + follow) & ~follow;
  uint64_t starts = m.letter & ~(m.letter << 1) & ~(tab << 1) & ~second;
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
  // Blanks after a newline start a piece unless another newline follows them: in that case, or if
  // the following bytes are not visible, the block ends here.
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

// Marks are not ASCII, so whether they are part of words makes no difference here.
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
  block.starts |= m.upper & ~(m.upper << 1) & m.letter << 1;
  // Whether a caseless letter ends a word before a capital depends on the following characters.
  if (const uint64_t capital = m.upper & m.caseless << 1) block.known &= (capital & -capital) - 1;
  if constexpr (rules_of(pattern).contractions) {
    // A contraction belongs to the word before it, unless it directly follows another contraction.
    size_t taken = 0;
    block.known &= visit_contractions(m.apostrophe & m.letter << 1, text, end, usable, true,
                                      [&](unsigned i, size_t length) {
                                        if (i == taken) return;
                                        taken = i + length;
                                        block.starts &= ~(bits_below(length) << i);
                                        block.starts |= uint64_t{1} << taken;
                                      });
  }
  // A slash after a newline may belong to the symbols before that.
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
#define LOWTIDE_FIND_HIGH find_high_avx512
#define LOWTIDE_SPLIT split_avx512
#include "tokenizer/splitting/splitter_block.inc"
#undef LOWTIDE_TARGET
#undef LOWTIDE_CLASSIFY
#undef LOWTIDE_FIND_HIGH
#undef LOWTIDE_SPLIT

#define LOWTIDE_TARGET "avx2,bmi,bmi2,lzcnt,popcnt"
#define LOWTIDE_CLASSIFY classify_avx2
#define LOWTIDE_FIND_HIGH find_high_avx2
#define LOWTIDE_SPLIT split_avx2
#include "tokenizer/splitting/splitter_block.inc"
#undef LOWTIDE_TARGET
#undef LOWTIDE_CLASSIFY
#undef LOWTIDE_FIND_HIGH
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
