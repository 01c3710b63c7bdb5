// What learning does before the first merge: words come in, and their pairs are counted and listed.
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "system/threads.hpp"
#include "tokenizer/learning/merger.hpp"
#include "tokenizer/learning/pair_index.hpp"

namespace lowtide {

namespace {
constexpr size_t kBytes = 256;
}  // namespace

// Where the words of each table go is known once they are counted.
void MergeLearner::add_tables(std::span<const CountShard* const> tables) {
  struct Place {
    size_t words = 0, symbols = 0;
  };
  std::vector<Place> places(tables.size() + 1);
  const auto visit = [&](const auto& work) {
    std::atomic<size_t> next{0};
    run_threads(std::min(num_threads_, tables.size()), [&](size_t) {
      for (size_t i; (i = next.fetch_add(1)) < tables.size();) work(i);
    });
  };
  visit([&](size_t i) {
    tables[i]->for_each([&](const uint8_t*, size_t length, uint64_t) {
      if (length < 2) return;
      ++places[i + 1].words;
      places[i + 1].symbols += length;
    });
  });
  places[0] = {words_.size(), symbols_.size()};
  for (size_t i = 0; i < tables.size(); ++i) {
    places[i + 1].words += places[i].words;
    places[i + 1].symbols += places[i].symbols;
  }
  if (is_built_) throw std::logic_error("pieces come before the first merge");
  if (places.back().words >= kNoPair)
    throw std::runtime_error("more than 4 billion distinct pieces");
  words_.resize(places.back().words);
  symbols_.resize(places.back().symbols);
  visit([&](size_t i) {
    Place at = places[i];
    tables[i]->for_each([&](const uint8_t* bytes, size_t length, uint64_t count) {
      if (length < 2) return;
      words_[at.words++] = {at.symbols, count, static_cast<uint32_t>(length)};
      for (size_t k = 0; k < length; ++k) {
        symbols_[at.symbols++] = {tokens_->symbol_of(bytes[k]), kNoPair};
      }
    });
  });
  num_words_.store(words_.size(), std::memory_order_relaxed);
}

void MergeLearner::build() {
  if (std::exchange(is_built_, true)) throw std::logic_error("pairs are there already");
  if (num_threads_ > 1 && tokens_->size() <= kBytes) {
    find_pairs_together();
  } else {
    find_pairs();
    list_words();
  }
  live_symbols_ = symbols_.size();
  threshold_ = 1;
  for (size_t pair = 0; pair < counts_.size(); ++pair)
    threshold_ = std::max(threshold_, counts_[pair]);
  ++threshold_;  // no pair reaches it: the first refill looks for the most frequent ones
}

void MergeLearner::find_pairs() {
  PairIndex index(tokens_->size());
  for (size_t w = 0; w < words_.size(); ++w) {
    const Word& word = words_[w];
    Symbol* const symbols = symbols_.data() + word.begin;
    for (size_t i = 0; i + 1 < word.length; ++i) {
      const uint32_t left = symbols[i].id, right = symbols[i + 1].id;
      uint32_t& number = index.at(left, right);  // plus one
      if (number == 0) number = add_pair(left, right) + 1;
      const uint32_t pair = number - 1;
      symbols[i].pair = pair;
      counts_[pair] += static_cast<int64_t>(word.count);
      if (last_word_[pair] != w) {
        last_word_[pair] = static_cast<uint32_t>(w);
        ++pairs_[pair].num_words;
      }
    }
  }
}

void MergeLearner::list_words() {
  uint64_t total = 0;
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    pairs_[pair].postings = total;
    total += pairs_[pair].num_words;
    pairs_[pair].num_words = 0;
    last_word_[pair] = kNoPair;
  }
  postings_.resize(total);
  for (size_t w = 0; w < words_.size(); ++w) {
    const Word& word = words_[w];
    const Symbol* const symbols = symbols_.data() + word.begin;
    for (size_t i = 0; i + 1 < word.length; ++i) {
      const uint32_t pair = symbols[i].pair;
      if (last_word_[pair] == w) continue;
      last_word_[pair] = static_cast<uint32_t>(w);
      postings_[pairs_[pair].postings + pairs_[pair].num_words++] = static_cast<uint32_t>(w);
    }
  }
}

// Each thread counts the pairs of its words by their bytes; then pairs have numbers, and each thread
// its place among the words of a pair.
void MergeLearner::find_pairs_together() {
  struct Part {
    std::vector<int64_t> counts = std::vector<int64_t>(kBytes * kBytes);
    std::vector<uint64_t> num_words =
        std::vector<uint64_t>(kBytes * kBytes);  // then: where they go
    std::vector<uint32_t> last_word = std::vector<uint32_t>(kBytes * kBytes, kNoPair);
  };
  std::vector<Part> parts(num_threads_);
  const auto visit = [&](const auto& work) {
    run_threads(parts.size(), [&](size_t number) {
      const size_t end = words_.size() * (number + 1) / parts.size();
      for (size_t w = words_.size() * number / parts.size(); w < end; ++w) {
        work(parts[number], static_cast<uint32_t>(w), words_[w], symbols_.data() + words_[w].begin);
      }
    });
  };
  visit([](Part& part, uint32_t w, const Word& word, Symbol* symbols) {
    for (size_t i = 0; i + 1 < word.length; ++i) {
      const uint32_t pair = symbols[i].pair = symbols[i].id << 8 | symbols[i + 1].id;
      part.counts[pair] += static_cast<int64_t>(word.count);
      part.num_words[pair] += std::exchange(part.last_word[pair], w) != w;
    }
  });
  std::vector<uint32_t> numbers(kBytes * kBytes);
  uint64_t total = 0;
  for (uint32_t bytes = 0; bytes < numbers.size(); ++bytes) {
    const uint64_t begin = total;
    int64_t count = 0;
    for (Part& part : parts) {
      count += part.counts[bytes];
      total += std::exchange(part.num_words[bytes], total);
      part.last_word[bytes] = kNoPair;
    }
    if (total == begin) continue;
    const uint32_t pair = numbers[bytes] = add_pair(bytes >> 8, bytes & 0xFF);
    counts_[pair] = count;
    pairs_[pair].postings = begin;
    pairs_[pair].num_words = static_cast<uint32_t>(total - begin);
  }
  postings_.resize(total);
  visit([&](Part& part, uint32_t w, const Word& word, Symbol* symbols) {
    for (size_t i = 0; i + 1 < word.length; ++i) {
      const uint32_t bytes = std::exchange(symbols[i].pair, numbers[symbols[i].pair]);
      if (std::exchange(part.last_word[bytes], w) != w) {
        postings_[part.num_words[bytes]++] = w;
      }
    }
  });
}

}  // namespace lowtide
