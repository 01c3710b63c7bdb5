// Measures that cleaning judges lines and documents by: words, and how much repeats itself.
#pragma once

#include <cstdint>
#include <string_view>

namespace lowtide {

// True if a text has so many words. A character of a script without blanks counts as one.
bool has_words(std::string_view text, uint64_t wanted);

// How much of a line says what the line already said: 0 (nothing) to 1 (all of it); `repeated` of
// its bytes are equal to the one before.
double measure_repetition(std::string_view line, size_t repeated, bool vectors = true);

}  // namespace lowtide
