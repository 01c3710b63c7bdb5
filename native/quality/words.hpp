// Split text into words for the text quality rules; punctuation marks are words too.
//
// The splitter follows spaCy's rules for English, as used by datatrove's filters: chunks between
// whitespace, exceptions (Mr., don't), then punctuation split off both ends one by one, then infixes;
// and marks that form a known word together (emoticons) are joined again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/code_points.hpp"

namespace lowtide {

#include "quality/word_characters.inc"

inline uint16_t text_flags(uint32_t code) {
  if (code > 0x10FFFF) return 0;
  return kTextPages[kTextPageIndex[code >> 7]][code & 127];
}

constexpr uint32_t kWordAlpha = 1;  // has a letter
constexpr uint32_t kWordReal = 2;   // has more than marks
constexpr uint32_t kWordEnd = 4;    // is a single mark that ends a sentence
constexpr uint32_t kWordMarks = 8;  // is nothing but punctuation
constexpr uint32_t kWordCharsShift = 8;

struct Word {
  uint64_t hash;
  uint32_t begin;  // its first byte in the text
  uint32_t facts;  // flags, and characters from kWordCharsShift on

  uint32_t chars() const { return facts >> kWordCharsShift; }
};

uint64_t hash_word(std::string_view word);

class KnownWords;

class WordSplitter {
 public:
  WordSplitter();
  // Append the words of `text`, which begins at byte `base` of a document. Returns false, after
  // appending some, if there would be more than `most` words.
  bool split(std::string_view text, size_t base, size_t most, std::vector<Word>& words);

 private:
  // Most chunks: letters, hyphens between them, or digits, with common marks around. False, with
  // nothing added, for other chunks and known words. `letters_end`: up to there it is known to be
  // letters.
  bool split_plain(const char* begin, const char* letters_end, const char* end,
                   std::vector<Word>& words) const;
  // Letters, digits and marks mixed (quality/bare_chunks.cpp); false as above.
  bool split_bare(const char* begin, const char* end, std::vector<Word>& words) const;
  bool add_bare(const char* begin, const char* end, uint64_t letters,
                std::vector<Word>& words) const;
  // A chunk of ASCII that is not one of the plain ones.
  void split_rest(const char* begin, const char* end, std::vector<Word>& words);
  // The size of a unit at the end that follows a digit, as in 5km; 0 if there is none.
  static size_t ascii_unit_size(const char* first, const char* last);
  void add_letters(const char* begin, const char* end, std::vector<Word>& words);
  void split_unicode(const char* begin, const char* end, std::vector<Word>& words);
  void split_part(const char* begin, const char* end, bool ascii, std::vector<Word>& words);
  uint64_t hash_within(const char* begin, const char* end) const;
  Word mark_word(const char* place) const;
  struct Characters {
    size_t count;
    bool letters;  // and has nothing else
  };
  Characters decode_chunk(const char* begin, const char* end);
  void split_chunk(const char* begin, const char* end, std::vector<Word>& words);
  bool is_url(size_t first, size_t last) const;
  size_t prefix_size(size_t first, size_t last) const;
  size_t suffix_size(size_t first, size_t last) const;
  size_t infix_size(size_t at, size_t first, size_t last) const;
  // The sizes of the words of a known chunk, 0 after the last; nullptr: not known.
  const uint8_t* known_word(size_t first, size_t last) const;
  void add(size_t first, size_t last, std::vector<Word>& words) const;
  void add_known(size_t first, const uint8_t* sizes, std::vector<Word>& words) const;
  // Join neighbours that together are a known word: "):", "s.".
  void join_known(size_t first_word, const char* end, std::vector<Word>& words) const;
  void split_middle(size_t first, size_t last, std::vector<Word>& words);

  const KnownWords& known_;
  std::array<Word, 128> marks_;  // by character
  const char* text_ = nullptr;
  const char* text_end_ = nullptr;
  size_t base_ = 0;
  // Buffers of the current chunk (quality/chunks.cpp): its characters, then leftovers of longer
  // ones before it.
  std::vector<uint32_t> codes_, places_;
  std::vector<uint16_t> flags_;
  std::vector<std::pair<uint32_t, uint32_t>> infixes_;
};

}  // namespace lowtide
