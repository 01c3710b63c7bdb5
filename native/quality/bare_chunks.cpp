// Words of chunks that mix letters, digits and marks, as in noise and code: these marks separate
// words only at the ends of a chunk, so its inside is not examined.
#include <bit>
#include <cstddef>
#include <cstdint>

#include "quality/byte_masks.hpp"
#include "quality/known_words.hpp"
#include "quality/word_hash.hpp"
#include "quality/words.hpp"

namespace lowtide {

void WordSplitter::split_rest(const char* begin, const char* end, std::vector<Word>& words) {
  if (!split_bare(begin, end, words)) split_chunk(begin, end, words);
}

// Marks are split off both ends, then a unit that follows a digit. The only known word with one of
// these marks is 8).
bool WordSplitter::split_bare(const char* begin, const char* end, std::vector<Word>& words) const {
  const auto size = static_cast<size_t>(end - begin);
  if (size > kMaskedBytes) return false;
  const BareMasks masks = mask_bare(begin, size, static_cast<size_t>(text_end_ - begin));
  const uint64_t inner = masks.letters | masks.digits;
  if ((inner | masks.marks) != ~uint64_t{0} >> (kMaskedBytes - size)) return false;
  const auto add_marks = [&](const char* from, const char* to) {
    for (const char* at = from; at < to; ++at) words.push_back(mark_word(at));
  };
  if (inner == 0) return add_marks(begin, end), true;
  const char* const first = begin + std::countr_zero(inner);
  const char* const last = begin + std::bit_width(inner | masks.percents);
  if (last < end && *last == ')' && last[-1] == '8') return false;
  const size_t mark = words.size();
  add_marks(begin, first);
  if (!add_bare(first, last, masks.letters >> (first - begin), words)) {
    return words.resize(mark), false;
  }
  add_marks(last, end);
  return true;
}

// Add the part between the marks, with a bit for each letter; false, with nothing added, if it is a
// known word.
bool WordSplitter::add_bare(const char* begin, const char* end, uint64_t letters,
                            std::vector<Word>& words) const {
  const bool ends_in_digit = static_cast<unsigned char>(end[-1] - '0') < 10;
  const size_t unit = ends_in_digit ? 0 : ascii_unit_size(begin, end);
  const char* const word_end = end - unit;
  const auto size = static_cast<size_t>(word_end - begin);
  const uint64_t hash = hash_word_before(begin, size, text_end_);
  if (known_.may_be(hash) && size <= kMostKnownBytes && known_.find({begin, size}, hash)) {
    return false;
  }
  const auto add = [&](const char* place, size_t chars, uint64_t hashed, uint32_t facts) {
    words.push_back({hashed, static_cast<uint32_t>(place - text_ + base_),
                     static_cast<uint32_t>(chars) << kWordCharsShift | facts});
  };
  const bool has_letter = std::countr_zero(letters) < word_end - begin;
  add(begin, size, hash, has_letter ? kWordAlpha | kWordReal : kWordReal);
  if (unit == 0) return true;
  if (*word_end == '%') {
    words.push_back(mark_word(word_end));
  } else {
    add(word_end, unit, hash_word_before(word_end, unit, text_end_), kWordAlpha | kWordReal);
  }
  return true;
}

}  // namespace lowtide
