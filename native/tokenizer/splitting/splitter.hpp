// Split text into pieces by the patterns gpt2, cl100k and o200k, and variants with a few other rules,
// without a regular-expression engine.
//
// In:   UTF-8 text up to its end (or to a safe cut, which no piece can cross)
// Out:  the offsets where pieces end
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tokenizer/splitting/character_classes.hpp"

namespace lowtide {

enum class Pattern : uint8_t {
  kGpt2,
  kCl100k,
  kO200k,
  kQwen2,   // cl100k, numbers one by one
  kQwen35,  // the same, marks are parts of words
  kDigits,  // gpt2 between numbers, which are single pieces
  kTekken,  // o200k without contractions, numbers one by one
  kSpaces,  // a piece begins only at each run of spaces: see Halves
};

// The end of the piece that starts at `p`; `p < end`.
template <Pattern pattern>
const uint8_t* next_piece(const uint8_t* p, const uint8_t* end);

// Writes the ends of the pieces from `position` on, as offsets from `text`, until the text or the
// room for them ends, and moves `position` after the last one. Returns how many were written.
// `capacity` must be at least kSplitSlack; `length` below 4 GiB.
constexpr size_t kSplitSlack = 128;
using SplitFunction = size_t (*)(const uint8_t* text, size_t length, size_t* position,
                                 uint32_t* ends, size_t capacity);
// The fastest version for this machine; `at_most` is for tests of the slower ones.
enum class Instructions : uint8_t { kScalar, kAvx2, kAvx512 };
SplitFunction splitter(Pattern pattern, Instructions at_most = Instructions::kAvx512);

// True if text can be split before text[at], in any context, with the same pieces:
//  - a letter or number on the left and something of another kind on the right (a blank, the other of
//    letter and number, or a symbol that is neither a mark nor an apostrophe), or
//  - a lone newline on the left and no blank or slash on the right.
// Patterns look ahead only over blanks, so neither side depends on text beyond such a cut.
bool is_safe_cut(const uint8_t* text, size_t length, size_t at);

}  // namespace lowtide
