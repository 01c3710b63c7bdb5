// Learning before the first merge: words are added, and their pairs are counted and listed.
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "system/threads.hpp"
#include "tokenizer/learning/merger.hpp"

namespace lowtide {

namespace {
constexpr size_t kBytes = 256;
constexpr size_t kWordsOfMark = 4096;
}  // namespace

template <typename Symbol>
void MergeLearner<Symbol>::mark(size_t at) {
  if (words_since_mark_++ % kWordsOfMark == 0) marks_.push_back(static_cast<uint32_t>(at));
}

template <typename Symbol>
Symbol* MergeLearner<Symbol>::begin_word(size_t length, uint64_t count) {
  if (is_built_) throw std::logic_error("pieces come before the first merge");
  const size_t at = words_.num_units();
  words_.grow(Words::units_of(length));
  mark(at);
  num_words_.fetch_add(1, std::memory_order_relaxed);
  return words_.begin_word(at, length, count);
}

template <typename Symbol>
void MergeLearner<Symbol>::add_piece(const uint8_t* bytes, size_t length, uint64_t count) {
  if (length < 2) return;
  Symbol* const word = begin_word(length, count);
  for (size_t i = 0; i < length; ++i) word[i] = static_cast<Symbol>(tokens_->symbol_of(bytes[i]));
}

// The positions for the words of each table are known once they are counted.
template <typename Symbol>
void MergeLearner<Symbol>::add_tables(std::span<const CountShard* const> tables) {
  if (is_built_) throw std::logic_error("pieces come before the first merge");
  struct Place {
    size_t words = 0, units = 0;
  };
  std::vector<Place> places(tables.size());
  const auto visit = [&](const auto& work) {
    std::atomic<size_t> next{0};
    run_threads(std::min(num_threads_, tables.size()), [&](size_t) {
      for (size_t i; (i = next.fetch_add(1)) < tables.size();) work(i);
    });
  };
  visit([&](size_t i) {
    tables[i]->for_each([&](const uint8_t*, size_t length, uint64_t) {
      if (length < 2) return;
      ++places[i].words;
      places[i].units += Words::units_of(length);
    });
  });
  size_t end = words_.num_units();
  for (Place& place : places) {
    if (place.words > 0) marks_.push_back(static_cast<uint32_t>(end));
    num_words_.fetch_add(place.words, std::memory_order_relaxed);
    words_.grow(place.units);
    end += std::exchange(place.units, end);
  }
  visit([&](size_t i) {
    size_t at = places[i].units;
    tables[i]->for_each([&](const uint8_t* bytes, size_t length, uint64_t count) {
      if (length < 2) return;
      Symbol* const word = words_.begin_word(at, length, count);
      for (size_t k = 0; k < length; ++k)
        word[k] = static_cast<Symbol>(tokens_->symbol_of(bytes[k]));
      at += Words::units_of(length);
    });
  });
}

template <typename Symbol>
void MergeLearner<Symbol>::build() {
  if (std::exchange(is_built_, true)) throw std::logic_error("pairs are there already");
  words_.seal();
  if (num_threads_ > 1 && tokens_->size() <= kBytes) {
    find_pairs_together();
  } else {
    find_pairs();
  }
  marks_ = {};
  threshold_ = 1;
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    threshold_ = std::max(threshold_, pairs_[pair].count);
  }
  ++threshold_;  // no pair reaches it: the first refill searches for the most frequent ones
}

// Calls visit(word, symbols, length, count) for all words in a range.
template <typename Symbol>
template <typename Visit>
void MergeLearner<Symbol>::for_each_word(size_t begin, size_t end, const Visit& visit) {
  while (begin < end) {
    const auto word = static_cast<uint32_t>(begin);
    const typename Words::Head head = words_.head(word);
    visit(word, words_.symbols(word), size_t{head.length}, words_.count(word, head));
    begin += Words::units_of(head.length);
  }
}

template <typename Symbol>
void MergeLearner<Symbol>::find_pairs() {
  // Every pair of the corpus is looked up, so pairs of bytes are in a plain table.
  std::vector<uint32_t> of_bytes(tokens_->size() <= kBytes ? kBytes * kBytes : 0, kNoPair);
  std::vector<uint32_t> last_word;
  const auto find = [&](uint32_t left, uint32_t right) {
    return of_bytes.empty() ? pairs_.find(left, right) : of_bytes[left << 8 | right];
  };
  for_each_word(0, words_.num_units(),
                [&](uint32_t word, const Symbol* s, size_t n, int64_t count) {
                  for (size_t i = 0; i + 1 < n; ++i) {
                    uint32_t pair = find(s[i], s[i + 1]);
                    if (pair == kNoPair) {
                      pair = pairs_.add({0, 0, 0, s[i], s[i + 1]});
                      last_word.push_back(kNoPair);
                      if (!of_bytes.empty()) of_bytes[uint32_t{s[i]} << 8 | s[i + 1]] = pair;
                    }
                    pairs_[pair].count += count;
                    pairs_[pair].num_words += std::exchange(last_word[pair], word) != word;
                  }
                });
  uint64_t total = 0;
  std::vector<uint64_t> places;
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    places.push_back(total);
    pairs_[pair].postings = total;
    total += pairs_[pair].num_words;
    last_word[pair] = kNoPair;
  }
  postings_.resize(total);
  for_each_word(0, words_.num_units(), [&](uint32_t word, const Symbol* s, size_t n, int64_t) {
    for (size_t i = 0; i + 1 < n; ++i) {
      const uint32_t pair = find(s[i], s[i + 1]);
      if (std::exchange(last_word[pair], word) != word) postings_[places[pair]++] = word;
    }
  });
}

// Each thread counts the pairs of its words by their bytes; then pairs get numbers, and each thread
// its position in the word list of each pair.
template <typename Symbol>
void MergeLearner<Symbol>::find_pairs_together() {
  struct Part {
    std::vector<int64_t> counts = std::vector<int64_t>(kBytes * kBytes);
    std::vector<uint64_t> num_words =
        std::vector<uint64_t>(kBytes * kBytes);  // then: their positions
    std::vector<uint32_t> last_word = std::vector<uint32_t>(kBytes * kBytes, kNoPair);
  };
  std::vector<Part> parts(num_threads_);
  marks_.push_back(static_cast<uint32_t>(words_.num_units()));
  const auto visit = [&](const auto& work) {
    run_threads(parts.size(), [&](size_t number) {
      const auto border = [&](size_t part) {
        return marks_[(marks_.size() - 1) * part / parts.size()];
      };
      for_each_word(border(number), border(number + 1),
                    [&](uint32_t word, const Symbol* s, size_t n, int64_t count) {
                      for (size_t i = 0; i + 1 < n; ++i) {
                        work(parts[number], uint32_t{s[i]} << 8 | s[i + 1], word, count);
                      }
                    });
    });
  };
  visit([](Part& part, uint32_t bytes, uint32_t word, int64_t count) {
    part.counts[bytes] += count;
    part.num_words[bytes] += std::exchange(part.last_word[bytes], word) != word;
  });
  uint64_t total = 0;
  for (uint32_t bytes = 0; bytes < kBytes * kBytes; ++bytes) {
    const uint64_t begin = total;
    int64_t count = 0;
    for (Part& part : parts) {
      count += part.counts[bytes];
      total += std::exchange(part.num_words[bytes], total);
      part.last_word[bytes] = kNoPair;
    }
    if (total == begin) continue;
    pairs_.add({count, begin, static_cast<uint32_t>(total - begin), bytes >> 8, bytes & 0xFF});
  }
  postings_.resize(total);
  visit([&](Part& part, uint32_t bytes, uint32_t word, int64_t) {
    if (std::exchange(part.last_word[bytes], word) != word) {
      postings_[part.num_words[bytes]++] = word;
    }
  });
}

template class MergeLearner<uint16_t>;
template class MergeLearner<uint32_t>;

}  // namespace lowtide
