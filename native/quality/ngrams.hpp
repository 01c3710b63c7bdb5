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
  // Begin with the pairs of these words, which have to stay where they are.
  void begin(const std::vector<Word>& words);
  // Go on to n-grams of one word more.
  void advance();
  size_t n() const { return n_; }
  // Characters of the most frequent n-gram, the first of equals, with blanks between its words, times
  // how often it occurs; 0 where there are no n-grams.
  uint64_t measure_top() const;
  // Characters in n-grams that came before, of which none overlap.
  uint64_t measure_repeated();
  // At least what measure_top and measure_repeated will say of n-grams of `words` words, or more: these
  // lie where the ones known now stand one after the other.
  uint64_t bound_repeated(size_t words) const;
  // The first one is exact only above `enough`.
  uint64_t bound_top(size_t words, uint64_t enough) const;
  // Free what a large document took.
  void give_back();

 private:
  uint64_t count_chars(size_t place) const;
  // Find the pairs that may occur twice, as `places_` and `keys_`.
  void filter_pairs(const std::vector<Word>& words);
  // Number places by their key; keeps those whose key occurs twice.
  void number();

  const std::vector<Word>* words_ = nullptr;
  size_t n_ = 0, top_ = 0;
  uint32_t most_ = 1, longest_word_ = 0;  // how often the n-gram at `top_` occurs
  std::vector<uint32_t> alive_;           // places whose n-gram occurs at least twice
  std::vector<uint32_t> first_;           // by place: where its n-gram occurs first
  std::vector<uint32_t> counts_;          // by that place
  std::vector<uint32_t> places_;
  std::vector<uint64_t> keys_;
  std::vector<uint32_t> slots_;         // of a table by key: a row of these two, and one
  std::vector<uint64_t> once_, twice_;  // the filter: pairs met, and met again
};

}  // namespace lowtide
