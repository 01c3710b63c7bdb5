// What one thread finds while a pair is merged in its share of the words.
//
// All pairs that a merge of (x, y) into z touches are known by a neighbour: (n, x) and (n, z) by what
// stands before, (y, n) and (z, n) by what stands after. So a thread adds up what it takes away and
// what it finds in two arrays addressed by the neighbour, and counts of all pairs are changed once,
// when all threads are done: changed at once by all, the most frequent of them would go from core to
// core for every word.
#pragma once

#include <cstdint>
#include <vector>

namespace lowtide {

class MergePart {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct Near {  // pairs with one neighbour, on one side
    uint32_t stamp = 0;
    uint32_t old_pair = kNone, new_pair = kNone;
    uint32_t last_word = kNone, num_words = 0;  // of the new pair
    int64_t taken = 0, added = 0;
    uint64_t posting = 0;  // where the next of its words goes
  };
  enum Side : uint8_t { kBefore, kAfter };
  struct Posting {
    Side side;
    uint32_t neighbour, word;
  };

  void begin(uint32_t stamp, size_t num_symbols) {
    stamp_ = stamp;
    removed = 0;
    postings.clear();
    for (Side side : {kBefore, kAfter}) {
      sides_[side].resize(num_symbols);
      touched_[side].clear();
    }
  }
  Near& near(Side side, uint32_t neighbour) {
    Near& at = sides_[side][neighbour];
    if (at.stamp != stamp_) {
      at = Near{};
      at.stamp = stamp_;
      touched_[side].push_back(neighbour);
    }
    return at;
  }
  void take(Side side, uint32_t neighbour, uint32_t pair, int64_t count) {
    Near& at = near(side, neighbour);
    at.old_pair = pair;
    at.taken += count;
  }
  // Calls visit(near) for all neighbours of this step.
  template <typename Visit>
  void for_each(const Visit& visit) {
    for (Side side : {kBefore, kAfter}) {
      for (const uint32_t neighbour : touched_[side]) visit(sides_[side][neighbour]);
    }
  }
  size_t bytes() const {
    return (sides_[0].capacity() + sides_[1].capacity()) * sizeof(Near) +
           postings.capacity() * sizeof(Posting);
  }

  std::vector<Posting> postings;
  size_t removed = 0;  // symbols

 private:
  uint32_t stamp_ = 0;
  std::vector<Near> sides_[2];
  std::vector<uint32_t> touched_[2];
};

}  // namespace lowtide
