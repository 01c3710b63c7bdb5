// Rank pairs of symbols in the order in which they would be merged, with exact counts in a fixed
// amount of memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tokenizer/learning/merger_tokens.hpp"
#include "tokenizer/learning/pair_index.hpp"
#include "tokenizer/learning/pair_sketch.hpp"
#include "tokenizer/learning/segments.hpp"
#include "tokenizer/learning/word_file.hpp"

namespace lowtide {

// Counts pairs, at most `most` of them. If there are more, it keeps those that are first in the
// order of merging among pairs of the same count: pairs kept at the end were counted from the
// beginning.
class PairRanking {
 public:
  PairRanking(const TokenTable& tokens, size_t most)
      : tokens_(tokens), most_(most), numbers_(tokens.size()) {}

  void skip_before(const PairCount& pair) { first_ = pair; }
  void add(uint32_t left, uint32_t right, uint64_t count) {
    if (dropped_ && !comes_before(left, right, *dropped_)) return;
    if (first_ && comes_before(left, right, *first_)) return;
    uint32_t& number = numbers_.at(left, right);  // plus one
    if (number == 0) {
      pairs_.push_back({0, left, right});
      number = static_cast<uint32_t>(pairs_.size());
    }
    pairs_[number - 1].count += static_cast<int64_t>(count);
    if (pairs_.size() > most_) drop();
  }
  // The first pair that was not kept, if any.
  const std::optional<PairCount>& dropped() const { return dropped_; }
  // Pairs that occur at least this often, in the order of merging.
  std::vector<PairCount> ranked(int64_t threshold) {
    std::erase_if(pairs_, [&](const PairCount& pair) { return pair.count < threshold; });
    std::sort(pairs_.begin(), pairs_.end(),
              [&](const PairCount& a, const PairCount& b) { return tokens_.before(a, b); });
    return std::move(pairs_);
  }

 private:
  bool comes_before(uint32_t left, uint32_t right, const PairCount& other) const {
    return tokens_.before(left, right, other.left, other.right);
  }
  void drop() {
    const auto middle = pairs_.begin() + static_cast<ptrdiff_t>(pairs_.size() / 2);
    std::nth_element(
        pairs_.begin(), middle, pairs_.end(),
        [&](const PairCount& a, const PairCount& b) { return comes_before(a.left, a.right, b); });
    dropped_ = *middle;
    pairs_.erase(middle, pairs_.end());
    numbers_ = PairIndex(tokens_.size());
    for (size_t i = 0; i < pairs_.size(); ++i) {
      numbers_.at(pairs_[i].left, pairs_[i].right) = static_cast<uint32_t>(i + 1);
    }
  }

  const TokenTable& tokens_;
  const size_t most_;
  PairIndex numbers_;
  std::vector<PairCount> pairs_;
  std::optional<PairCount> first_, dropped_;
};

// Counts the linked pairs of a file of words.
template <typename Symbol>
void count_linked_pairs(WordFile<Symbol>& words, const PairLinks& links, const TokenTable& tokens,
                        PairRanking& ranking) {
  const PairLinks none(links.places());  // every symbol is a separate item
  SegmentReader<Symbol> reader(words, none);
  uint32_t last = 0;
  while (reader.next()) {
    for (const auto& item : reader.items()) {
      const uint32_t symbol = reader.units()[item.begin];
      if (!item.begins_word && links(last, symbol) && tokens.can_merge(last, symbol)) {
        ranking.add(last, symbol, item.count);
      }
      last = symbol;
    }
  }
}

}  // namespace lowtide
