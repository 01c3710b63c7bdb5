// The building blocks of all pattern scanners: runs of characters of one class, spaces, contractions,
// numbers, o200k's words. Each takes the start of a run and the end of the text, and returns the end
// of the run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tokenizer/splitting/splitter.hpp"

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

// The blanks at `p` matched by "\s+(?!\S)|\s+": all at the end of the text, else all but the last.
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

// The differences between patterns of one kind.
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

// o200k's first two alternatives from `p`, after their optional first character. Heads are matched
// greedily; if no lower-case letter follows, it backtracks until the last one matched can be a
// tail. Returns nullptr if nothing is left.
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
  if (body != p) {  // the first after backtracking: only a mark can be part of the word
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
}  // namespace lowtide
