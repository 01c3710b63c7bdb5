// One thread's share of merging a pair: the changes of counts in its part of the words.
//
// All pairs changed by a merge of (x, y) into z are determined by a neighbour n: (n, x) becomes (n, z)
// for a preceding neighbour, (y, n) becomes (z, n) for a following one, and each new pair gains what
// the old one loses. Where two merges are adjacent, (y, x) becomes (z, z), and z is the neighbour. So a
// thread sums counts in one array indexed by the neighbour, and pairs are looked up and updated once,
// when all words are done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

class MergePart {
 public:
  enum Side : uint8_t { kBefore, kAfter };
  struct Near {  // a neighbour on one side
    union {
      int64_t sum = 0;
      uint64_t place;  // once pairs have the sum: position for its next word
    };
    uint32_t num_words = 0;  // 0: not seen in this step
    uint32_t last_word = 0;
  };
  struct Posting {
    uint32_t key, word;
  };
  struct Sum {  // what a part has of a neighbour
    uint32_t key, num_words;
    union {
      int64_t sum;
      uint64_t place;  // once pairs have the sum: position for this part's first word
    };
  };
  static uint32_t key(Side side, uint32_t neighbour) { return neighbour << 1 | side; }

  void make_room(size_t num_symbols) { nears_.resize(2 * num_symbols); }
  // Returns true for a neighbour that was not seen before in this step.
  bool add(uint32_t key, uint32_t word, int64_t count) {
    Near& near = nears_[key];
    near.sum += count;
    const bool is_new = near.num_words == 0;
    if (!is_new && near.last_word == word) return false;
    if (is_new) touched.push_back(key);
    near.last_word = word;
    ++near.num_words;
    postings.push_back({key, word});
    return is_new;
  }
  // Adds another part's counts of a neighbour.
  void add(const Sum& other) {
    Near& near = nears_[other.key];
    if (near.num_words == 0) touched.push_back(other.key);
    near.sum += other.sum;
    near.num_words += other.num_words;
  }
  // Lists the sums, for the thread that adds those of all parts: it would wait for each of them if it
  // read them from the array, which is in another core's cache.
  void list_sums() {
    for (const uint32_t key : touched) {
      sums.push_back({key, nears_[key].num_words, {nears_[key].sum}});
    }
  }
  Near& operator[](uint32_t key) { return nears_[key]; }
  // Clears the data of this step.
  void clear() {
    for (const uint32_t key : touched) nears_[key] = Near{};
    touched.clear();
    sums.clear();
    postings.clear();
  }
  size_t bytes() const {
    return nears_.capacity() * sizeof(Near) + touched.capacity() * sizeof(uint32_t) +
           sums.capacity() * sizeof(Sum) + postings.capacity() * sizeof(Posting);
  }

  std::vector<uint32_t> touched;  // keys
  std::vector<Sum> sums;          // in the order of `touched`
  std::vector<Posting> postings;

 private:
  std::vector<Near> nears_;  // by key
};

}  // namespace lowtide
