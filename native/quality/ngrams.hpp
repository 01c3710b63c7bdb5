// Repeated n-grams of a document's words.
//
// An n-gram can only occur twice if both (n-1)-grams in it do. A filter of two bits for each pair of
// words finds the pairs that may occur twice; those are counted in a table, and each further step
// looks only at the remaining positions: in English, about one word in fifty in the fourth step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quality/words.hpp"

namespace lowtide {

class NgramCounter {
 public:
  // Begin with the pairs of these words, which must not be moved.
  void begin(const std::vector<Word>& words);
  // Continue with n-grams of one word more.
  void advance();
  size_t n() const { return n_; }
  // Characters of the most frequent n-gram, the first of equals, with blanks between its words,
  // times its count; 0 if there are no n-grams.
  uint64_t measure_top() const;
  // Characters in n-grams that occurred before, counted without overlap.
  uint64_t measure_repeated();
  // Upper bounds of measure_top and measure_repeated for n-grams of at least `words` words, which
  // can only be where the current ones follow each other.
  uint64_t bound_repeated(size_t words) const;
  // The first one is exact only above `enough`.
  uint64_t bound_top(size_t words, uint64_t enough) const;
  // Free the memory of a large document.
  void give_back();

 private:
  uint64_t count_chars(size_t place) const;
  // Find the pairs that may occur twice, as `places_` and `keys_`.
  void filter_pairs(const std::vector<Word>& words);
  // Number positions by key; keeps those whose key occurs twice.
  void number();

  const std::vector<Word>* words_ = nullptr;
  size_t n_ = 0, top_ = 0;
  uint32_t most_ = 1, longest_word_ = 0;  // count of the n-gram at `top_`
  std::vector<uint32_t> alive_;           // positions whose n-gram occurs at least twice
  std::vector<uint32_t> first_;           // by position: where its n-gram occurs first
  std::vector<uint32_t> counts_;          // by that position
  std::vector<uint32_t> places_;
  std::vector<uint64_t> keys_;
  std::vector<uint32_t> slots_;         // of a table by key: a row of these two, and one
  std::vector<uint64_t> once_, twice_;  // the filter: pairs seen once, and twice
};

}  // namespace lowtide
