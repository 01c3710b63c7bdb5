#include "quality/words.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "corpus/text_hash.hpp"
#include "quality/byte_masks.hpp"
#include "quality/known_words.hpp"
#include "quality/word_hash.hpp"

namespace lowtide {
namespace {

// The class of a byte for the fast path of splitting a chunk.
constexpr uint8_t kByteLetter = 1, kByteDigit = 2, kByteCloser = 4, kBytePause = 8;
constexpr std::array<uint8_t, 256> make_byte_kinds() {
  std::array<uint8_t, 256> kinds{};
  for (size_t letter = 0; letter < 26; ++letter) {
    kinds['a' + letter] = kinds['A' + letter] = kByteLetter;
  }
  for (size_t digit = 0; digit < 10; ++digit) kinds['0' + digit] = kByteDigit;
  for (const char mark : {',', '!', '?', ')', '"'}) kinds[static_cast<size_t>(mark)] = kByteCloser;
  kinds[';'] = kinds[':'] = kByteCloser | kBytePause;  // they form emoticons
  return kinds;
}
constexpr std::array<uint8_t, 256> kByteKinds = make_byte_kinds();
uint8_t kind_of(char byte) { return kByteKinds[static_cast<unsigned char>(byte)]; }

}  // namespace

uint64_t hash_word(std::string_view word) {
  const size_t size = word.size();
  if (size > kShortWord) return hash128(word.data(), size, 3).low;
  uint64_t first = 0, second = 0;
  if (size >= 8) {
    first = load64(word.data()), second = load64(word.data() + size - 8);
  } else if (size >= 4) {
    uint32_t low, high;
    std::memcpy(&low, word.data(), 4);
    std::memcpy(&high, word.data() + size - 4, 4);
    first = low, second = high;
  } else {
    for (size_t at = 0; at < size; ++at) {
      first |= uint64_t{static_cast<unsigned char>(word[at])} << (8 * at);
    }
  }
  return hash_two(first, second, size);
}

WordSplitter::WordSplitter() : known_(KnownWords::get()) {
  for (uint32_t code = 0; code < 128; ++code) {
    const char byte = static_cast<char>(code);
    const uint16_t flags = text_flags(code);
    marks_[code] = {hash_word({&byte, 1}), 0,
                    (flags & kTextPunctuation ? kWordMarks : 0) |
                        (flags & kTextMark ? 0 : kWordReal) | (flags & kTextEnd ? kWordEnd : 0) |
                        1u << kWordCharsShift};
  }
}

inline uint64_t WordSplitter::hash_within(const char* begin, const char* end) const {
  return hash_word_before(begin, static_cast<size_t>(end - begin), text_end_);
}

inline void WordSplitter::add_letters(const char* begin, const char* end,
                                      std::vector<Word>& words) {
  const std::string_view word(begin, static_cast<size_t>(end - begin));
  const uint64_t hash = hash_within(begin, end);
  if (known_.may_be(hash) && word.size() <= kMostKnownBytes && known_.find(word, hash)) {
    return split_chunk(begin, end, words);
  }
  words.push_back({hash, static_cast<uint32_t>(begin - text_ + base_),
                   static_cast<uint32_t>(word.size()) << kWordCharsShift | kWordAlpha | kWordReal});
}

// 64 bytes at a time: bit masks have the begins and ends of chunks and whether they are only
// letters, so there are no branches on single bytes or on the length of a word.
bool WordSplitter::split(std::string_view text, size_t base, size_t most,
                         std::vector<Word>& words) {
  text_ = text.data();
  text_end_ = text_ + text.size();
  base_ = base;
  const char* begin = text_;  // of the current chunk
  uint64_t space_before = 1, odd_before = 0, high_before = 0;
  for (size_t block = 0; block < text.size(); block += kMaskedBytes) {
    const char* const at = text_ + block;
    const ByteMasks masks = mask_bytes(at, text.size() - block);
    const uint64_t after_space = masks.spaces << 1 | space_before;
    uint64_t starts = ~masks.spaces & after_space, ends = masks.spaces & ~after_space;
    uint64_t odd = ~(masks.letters | masks.spaces), high = masks.high;
    if (space_before != 0 && starts != 0) {
      begin = at + std::countr_zero(starts);
      starts &= starts - 1;
    }
    space_before = masks.spaces >> 63;
    while (ends != 0) {
      const char* const end = at + std::countr_zero(ends);
      const uint64_t before_end = (ends & -ends) - 1;
      ends &= ends - 1;
      if (words.size() >= most) return false;
      if (((odd & before_end) | odd_before) == 0) {
        add_letters(begin, end, words);
      } else if (((high & before_end) | high_before) != 0) {
        split_unicode(begin, end, words);
      } else {
        const char* const first_odd = odd_before == 0 ? at + std::countr_zero(odd) : begin;
        if (!split_plain(begin, first_odd, end, words)) split_rest(begin, end, words);
      }
      odd &= ~before_end;
      high &= ~before_end;
      odd_before = high_before = 0;
      if (starts != 0) begin = at + std::countr_zero(starts);
      starts &= starts - 1;
    }
    odd_before |= odd;
    high_before |= high;
  }
  if (space_before == 0) {  // the text ends within a chunk, at the end of 64 bytes
    if (words.size() >= most) return false;
    if (high_before != 0) {
      split_unicode(begin, text_end_, words);
    } else {
      split_part(begin, text_end_, true, words);
    }
  }
  return words.size() <= most;
}

// A chunk between ASCII whitespace: other blanks split it further.
void WordSplitter::split_unicode(const char* begin, const char* end, std::vector<Word>& words) {
  for (const char* at = begin; at < end;) {
    bool ascii = true;
    uint32_t blank = 0;
    const char* const first = at;
    while (at < end) {
      const Decoded next =
          decode_utf8(reinterpret_cast<const unsigned char*>(at), static_cast<size_t>(end - at));
      if (next.size > 1 && (text_flags(next.code) & kTextSpace)) {
        blank = next.size;
        break;
      }
      ascii &= next.valid && next.size == 1;
      at += next.size;
    }
    if (at > first) split_part(first, at, ascii, words);
    at += blank;
  }
}

void WordSplitter::split_part(const char* begin, const char* end, bool ascii,
                              std::vector<Word>& words) {
  if (!ascii) return split_chunk(begin, end, words);
  const char* odd = begin;
  while (odd < end && kind_of(*odd) == kByteLetter) ++odd;
  if (odd == end) return add_letters(begin, end, words);
  if (!split_plain(begin, odd, end, words)) split_rest(begin, end, words);
}

bool WordSplitter::split_plain(const char* begin, const char* letters_end, const char* end,
                               std::vector<Word>& words) const {
  const char* first = begin;
  const char* last = end;
  if (*first == '(' || *first == '"') ++first;
  uint8_t closers = 0;
  for (; last > first && (kind_of(last[-1]) & kByteCloser); --last) closers |= kind_of(last[-1]);
  if ((closers & kBytePause) && end - last > 1) return false;
  const bool stop = last > first && last[-1] == '.';
  if (stop) --last;
  if (first == last) return false;
  if (stop) {
    const auto is_upper = [](char byte) { return byte >= 'A' && byte <= 'Z'; };
    if (last - first == 1 || (is_upper(last[-1]) && !is_upper(last[-2])) || last[-2] == '-') {
      return false;
    }
    const uint64_t hash = hash_within(first, last + 1);
    if (known_.may_be(hash) &&
        known_.find({first, static_cast<size_t>(last + 1 - first)}) != nullptr) {
      return false;
    }
  }
  const size_t mark = words.size();
  const auto add = [&](const char* from, const char* to, uint32_t facts) {
    words.push_back({hash_within(from, to), static_cast<uint32_t>(from - text_ + base_),
                     static_cast<uint32_t>(to - from) << kWordCharsShift | facts});
  };
  if (first > begin) words.push_back(mark_word(begin));
  if (kind_of(*first) == kByteDigit) {
    for (const char* at = first; at < last; ++at) {
      if (kind_of(*at) != kByteDigit) return words.resize(mark), false;
    }
    if (*first == '8') return words.resize(mark), false;  // 8) is an emoticon
    add(first, last, kWordReal);
  } else {
    const char* start = first;
    for (const char* at = std::max(first, letters_end);; ++at) {
      if (at < last && kind_of(*at) == kByteLetter) continue;
      if (at == start || (at < last && *at != '-')) return words.resize(mark), false;
      add(start, at, kWordAlpha | kWordReal);
      if (at == last) break;
      words.push_back(mark_word(at));
      start = at + 1;
    }
    const uint64_t hash = words.back().hash;
    if (start == first && known_.may_be(hash) &&
        known_.find({first, static_cast<size_t>(last - first)}, hash)) {
      return words.resize(mark), false;
    }
  }
  for (const char* at = last; at < end; ++at) words.push_back(mark_word(at));
  return true;
}

Word WordSplitter::mark_word(const char* place) const {
  Word word = marks_[static_cast<unsigned char>(*place) & 127];
  word.begin = static_cast<uint32_t>(place - text_ + base_);
  return word;
}

}  // namespace lowtide
