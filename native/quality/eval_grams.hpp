// Word n-grams of evaluation items, and the search for them in text.
//
// A filter has the first eight words of every n-gram, whatever its length: most positions of a text
// need only one lookup.
//
// Memory:  16 bytes for each n-gram, 4 to 8 more in the filter; while text is searched, 32 bytes for
//          each word of 32 KiB of it
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "corpus/cleaner.hpp"
#include "quality/words.hpp"

namespace lowtide {

constexpr size_t kShortestEvalGram = 8, kLongestEvalGram = 13;

// An n-gram of an item in a document, as stored in work files.
struct EvalHit {
  uint32_t row, gram;
  uint32_t first_line, line_end;         // that it touches
  uint32_t document_line, document_end;  // all lines of the document
  uint32_t whole;                        // 0: a part of a larger document
};

class EvalGrams {
 public:
  // Add a text of item `item`: its 13-grams, or all its words if there are 8 to 12. Returns the
  // number of n-grams.
  size_t add(std::string_view text, uint32_t item);
  // Sort them; n-grams of several items are assigned to the first of these.
  void finish();

  size_t size() const { return grams_.size(); }
  std::vector<uint32_t> items() const;

  // All n-grams of items in the documents of a block. False when rows lie outside the text.
  bool scan(std::string_view text, std::span<const DocumentRow> documents,
            std::vector<EvalHit>& hits) const;

 private:
  struct Gram {
    uint64_t hash;
    uint32_t item;
    uint32_t head;  // of its first eight words
  };
  struct Words {  // real words of a part of a text, and prefix hashes of all words before each
    WordSplitter splitter;
    std::vector<Word> words;
    std::vector<uint64_t> before;
    std::vector<size_t> heads;  // positions where an n-gram may begin

    // Read the words of the text's next part, which begins at byte `base`, after keeping as many of
    // the last ones as an n-gram can have. Returns how many were kept.
    size_t append(std::string_view text, size_t base);
    uint64_t hash(size_t first, size_t count) const;
    uint32_t hash_head(size_t first) const;
  };

  // The index of an n-gram; size() if it is not in any item.
  size_t find(uint64_t hash) const;
  // Find the positions, from `first` on, whose eight words may begin an n-gram.
  void find_heads(Words& words, size_t first) const;
  size_t filter_word(uint32_t head) const {
    return (head * 0x9E3779B97F4A7C15ULL) >> 32 & (filter_.size() - 1);
  }
  static uint64_t filter_bits(uint32_t head) {
    return uint64_t{1} << (head & 63) | uint64_t{1} << (head >> 6 & 63);
  }

  std::vector<Gram> grams_;
  std::vector<uint64_t> filter_;
  std::array<bool, kLongestEvalGram + 1> lengths_{};
};

}  // namespace lowtide
