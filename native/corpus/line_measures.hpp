// Measures of lines and documents that cleaning filters by: number of words, repetition.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/code_points.hpp"

namespace lowtide {

// True if a text has at least this many words. A character of a script without blanks counts as
// one.
bool has_words(std::string_view text, uint64_t wanted);

// The share of a line that repeats earlier parts of it, 0 to 1; `repeated` of its bytes are equal
// to the one before.
double measure_repetition(std::string_view line, size_t repeated, bool vectors = true);

// A character has one to four bytes, so most texts need no counting.
inline bool has_fewer_chars(std::string_view text, uint64_t limit) {
  return text.size() < 4 * limit &&
         (text.size() < limit || count_code_points(text.data(), text.size()) < limit);
}

inline bool has_more_chars(std::string_view text, uint64_t limit) {  // 0: no limit
  return limit > 0 && text.size() > limit && count_code_points(text.data(), text.size()) > limit;
}

}  // namespace lowtide
