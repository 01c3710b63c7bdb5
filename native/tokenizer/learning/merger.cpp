#include "tokenizer/learning/merger.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <stdexcept>
#include <utility>

#include "model/thread_pool.hpp"

namespace lowtide {

namespace {
constexpr size_t kCompactionFloor = 1 << 17;
constexpr size_t kWordsAtOnce = 512;  // that a thread takes
constexpr size_t kPatience = 200;     // microseconds; large merges follow each other closely
}  // namespace

size_t MergeLearner::bytes() const {
  size_t parts = 0;
  for (const auto& part : parts_) parts += part->bytes();
  return parts + words_.bytes() + symbols_.bytes() + counts_.bytes() + pairs_.bytes() +
         postings_.bytes() + queue_.capacity() * sizeof(Candidate) +
         new_postings_.capacity() * sizeof(NewPosting) +
         (with_left_.capacity() + with_right_.capacity()) * sizeof(Seen);
}

void MergeLearner::begin_word(size_t length, uint64_t count) {
  if (is_built_) throw std::logic_error("pieces come before the first merge");
  if (words_.size() >= kNoPair) throw std::runtime_error("more than 4 billion distinct pieces");
  words_.push_back({symbols_.size(), count, static_cast<uint32_t>(length)});
  num_words_.store(words_.size(), std::memory_order_relaxed);
}

void MergeLearner::add_piece(const uint8_t* bytes, size_t length, uint64_t count) {
  if (length < 2) return;
  begin_word(length, count);
  for (size_t i = 0; i < length; ++i) symbols_.push_back({tokens_->symbol_of(bytes[i]), kNoPair});
}

uint32_t MergeLearner::add_pair(uint32_t left, uint32_t right) {
  const uint32_t pair = static_cast<uint32_t>(counts_.size());
  if (pair == kNoPair) throw std::runtime_error("more than 4 billion distinct pairs");
  counts_.push_back(0);
  pairs_.push_back({0, 0, left, right});
  last_word_.push_back(kNoPair);
  return pair;
}

bool MergeLearner::before(const Candidate& a, const Candidate& b) const {
  if (a.count != b.count) return a.count > b.count;
  if (tokens_->tie_break() == TieBreak::kHuggingFace) return a.order < b.order;
  const Pair& x = pairs_[a.pair];
  const Pair& y = pairs_[b.pair];
  return tokens_->before(x.left, x.right, y.left, y.right);
}

void MergeLearner::push(uint32_t pair) {
  if (counts_[pair] < threshold_) return;
  const Pair& p = pairs_[pair];
  if (!tokens_->can_merge(p.left, p.right)) return;
  queue_.push_back({counts_[pair], uint64_t{p.left} << 32 | p.right, pair});
  std::push_heap(queue_.begin(), queue_.end(),
                 [this](const Candidate& a, const Candidate& b) { return before(b, a); });
}

// Rare pairs, which are most, cost a look at each halving of the threshold, and no place in the queue.
bool MergeLearner::refill(int64_t min_frequency) {
  while (queue_.empty()) {
    if (threshold_ <= min_frequency) return false;
    threshold_ = std::max(min_frequency, threshold_ / 2);
    for (uint32_t pair = 0; pair < counts_.size(); ++pair) {
      if (counts_[pair] >= threshold_ && pairs_[pair].num_words != 0) push(pair);
    }
  }
  return true;
}

// Counts only fall: an entry whose count is still right is the best, others go back with theirs.
bool MergeLearner::pop_best(int64_t min_frequency, uint32_t& pair) {
  const auto later = [this](const Candidate& a, const Candidate& b) { return before(b, a); };
  while (!queue_.empty() || refill(min_frequency)) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    const Candidate top = queue_.back();
    queue_.pop_back();
    if (top.count == counts_[top.pair]) {
      pair = top.pair;
      const Pair& best = pairs_[pair];
      if (!stop_at_ || tokens_->before({top.count, best.left, best.right}, *stop_at_)) return true;
      push(pair);
      return false;
    }
    push(top.pair);
  }
  return false;
}

bool MergeLearner::learn(size_t target, size_t max_merges, int64_t min_frequency) {
  min_frequency = std::max<int64_t>(1, min_frequency);
  for (size_t i = 0; i < max_merges; ++i) {
    uint32_t pair;
    if (merges().size() >= target || !pop_best(min_frequency, pair)) return false;
    merge(pair);
    merges_done_.store(merges().size(), std::memory_order_relaxed);
  }
  return merges().size() < target;
}

void MergeLearner::merge(uint32_t pair) {
  const Pair chosen = pairs_[pair];
  const uint32_t token = tokens_->merge(chosen.left, chosen.right);
  ++stamp_;
  with_left_.resize(tokens_->size());
  with_right_.resize(tokens_->size());
  first_new_ = static_cast<uint32_t>(counts_.size());
  new_postings_.clear();
  last_word_.clear();
  const bool together = num_threads_ > 1 && chosen.num_words >= many_words_;
  if (together) {
    merge_together(chosen, pair, token);
  } else {
    merge_alone(chosen, pair, token);
  }
  pairs_[pair].num_words = 0;
  dead_postings_ += chosen.num_words;
  if (together) {
    place_postings_of_parts();
  } else {
    place_new_postings();
  }
  if (live_symbols_ > kCompactionFloor && live_symbols_ * 2 < symbols_.size()) compact_symbols();
  for (uint32_t entry = first_new_; entry < counts_.size(); ++entry) push(entry);
}

struct MergeLearner::Alone {
  MergeLearner& learner;
  const uint32_t token;

  void take(MergePart::Side, uint32_t, uint32_t pair, int64_t count) {
    learner.counts_[pair] -= count;
  }
  uint32_t add(uint32_t left, uint32_t right, uint32_t word, int64_t count) {
    const uint32_t pair = learner.find_new_pair(left, right, token);
    learner.counts_[pair] += count;
    uint32_t& last = learner.last_word_[pair - learner.first_new_];
    if (last != word) {
      last = word;
      ++learner.pairs_[pair].num_words;
      learner.new_postings_.push_back({pair, word});
    }
    return pair;
  }
  void remove(size_t symbols) { learner.live_symbols_ -= symbols; }
};

struct MergeLearner::Shared {
  MergeLearner& learner;
  MergePart& part;
  const uint32_t token;

  void take(MergePart::Side side, uint32_t neighbour, uint32_t pair, int64_t count) {
    part.take(side, neighbour, pair, count);
  }
  uint32_t add(uint32_t left, uint32_t right, uint32_t word, int64_t count) {
    const MergePart::Side side = right == token ? MergePart::kBefore : MergePart::kAfter;
    const uint32_t neighbour = right == token ? left : right;
    MergePart::Near& near = part.near(side, neighbour);
    if (near.new_pair == kNoPair) {
      const std::lock_guard hold(learner.parts_mutex_);
      near.new_pair = learner.find_new_pair(left, right, token);
    }
    near.added += count;
    if (near.last_word != word) {
      near.last_word = word;
      ++near.num_words;
      part.postings.push_back({side, neighbour, word});
    }
    return near.new_pair;
  }
  void remove(size_t symbols) { part.removed += symbols; }
};

// One side of a new pair is the new token, so the other alone finds it; older stamps are other steps'.
uint32_t MergeLearner::find_new_pair(uint32_t left, uint32_t right, uint32_t token) {
  Seen& at = right == token ? with_left_[left] : with_right_[right];
  if (at.stamp != stamp_) at = {stamp_, add_pair(left, right)};
  return at.pair;
}

void MergeLearner::merge_alone(const Pair& entry, uint32_t pair, uint32_t token) {
  Alone changes{*this, token};
  merge_in_words(changes, entry, pair, 0, entry.num_words);
}

void MergeLearner::merge_together(const Pair& entry, uint32_t pair, uint32_t token) {
  free_parts_.clear();
  for (const auto& part : parts_) {
    part->begin(stamp_, tokens_->size());
    free_parts_.push_back(part.get());
  }
  std::exception_ptr failed;
  const auto work = [&](size_t begin, size_t end) {
    try {
      merge_part(entry, pair, token, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
    } catch (...) {
      const std::lock_guard hold(parts_mutex_);
      failed = std::current_exception();
    }
  };
  run_blocks(entry.num_words, kWordsAtOnce, num_threads_, work, kPatience);
  if (failed) std::rethrow_exception(failed);
  add_parts();
}

void MergeLearner::merge_part(const Pair& entry, uint32_t pair, uint32_t token, uint32_t begin,
                              uint32_t end) {
  MergePart* part;
  {
    const std::lock_guard hold(parts_mutex_);
    if (free_parts_.empty()) {
      parts_.push_back(std::make_unique<MergePart>());
      parts_.back()->begin(stamp_, tokens_->size());
      free_parts_.reserve(parts_.size());
      free_parts_.push_back(parts_.back().get());
    }
    part = free_parts_.back();
    free_parts_.pop_back();
  }
  Shared changes{*this, *part, token};
  merge_in_words(changes, entry, pair, begin, end);
  const std::lock_guard hold(parts_mutex_);
  free_parts_.push_back(part);
}

void MergeLearner::add_parts() {
  for (const auto& part : parts_) {
    live_symbols_ -= part->removed;
    part->for_each([&](const MergePart::Near& near) {
      if (near.old_pair != kNoPair) counts_[near.old_pair] -= near.taken;
      if (near.new_pair == kNoPair) return;
      counts_[near.new_pair] += near.added;
      pairs_[near.new_pair].num_words += near.num_words;
    });
  }
}

// The words of a pair lie anywhere in memory: first a word's row is fetched ahead, then its symbols.
template <typename Changes>
void MergeLearner::merge_in_words(Changes& changes, const Pair& entry, uint32_t pair,
                                  uint32_t begin, uint32_t end) {
  const uint32_t* const words = postings_.data() + entry.postings;  // nothing moves it meanwhile
  for (uint32_t k = begin; k < end; ++k) {
    if (k + 24 < end) __builtin_prefetch(&words_[words[k + 24]]);
    if (k + 12 < end) __builtin_prefetch(&symbols_[words_[words[k + 12]].begin]);
    merge_in_word(changes, words[k], pair);
  }
}

// What is left of a word is written over its own symbols. A merge takes an occurrence from the pairs on
// both sides and adds pairs with the new token; of two in a row the right one adds (token, token).
template <typename Changes>
void MergeLearner::merge_in_word(Changes& changes, uint32_t index, uint32_t pair) {
  const uint32_t token = changes.token;
  Word& word = words_[index];
  Symbol* const s = symbols_.data() + word.begin;
  const size_t length = word.length;
  size_t i = 0;
  while (i < length && s[i].pair != pair) ++i;
  if (i == length) return;  // merged away since the posting was written
  const int64_t count = static_cast<int64_t>(word.count);
  size_t out = i;
  bool after_merge = false;
  while (i < length) {
    if (s[i].pair != pair) {
      s[out++] = s[i++];
      after_merge = false;
      continue;
    }
    if (after_merge) {
      s[out - 1].pair = changes.add(token, token, index, count);
    } else if (out > 0) {
      Symbol& before = s[out - 1];
      changes.take(MergePart::kBefore, before.id, before.pair, count);
      before.pair = changes.add(before.id, token, index, count);
    }
    const uint32_t right_pair = s[i + 1].pair;
    i += 2;
    if (right_pair != kNoPair) changes.take(MergePart::kAfter, s[i].id, right_pair, count);
    uint32_t next_pair = kNoPair;
    if (i < length && s[i].pair != pair) next_pair = changes.add(token, s[i].id, index, count);
    s[out++] = {token, next_pair};
    after_merge = true;
  }
  word.length = static_cast<uint32_t>(out);
  changes.remove(length - out);
}

// `last_word_` counts postings that are placed from now on.
void MergeLearner::make_room_for_postings() {
  if (dead_postings_ > kCompactionFloor && dead_postings_ * 2 > postings_.size()) {
    compact_postings();
  }
  uint64_t total = postings_.size();
  for (size_t entry = first_new_; entry < pairs_.size(); ++entry) {
    pairs_[entry].postings = total;
    total += pairs_[entry].num_words;
    last_word_[entry - first_new_] = 0;
  }
  if (total > postings_.bytes() / sizeof(uint32_t)) postings_.reserve(total + total / 4);
  postings_.resize(total);
}

void MergeLearner::place_new_postings() {
  make_room_for_postings();
  for (const NewPosting& posting : new_postings_) {
    uint32_t& filled = last_word_[posting.pair - first_new_];
    postings_[pairs_[posting.pair].postings + filled++] = posting.word;
  }
}

void MergeLearner::place_postings_of_parts() {
  make_room_for_postings();
  for (const auto& part : parts_) {
    part->for_each([&](MergePart::Near& near) {
      if (near.new_pair == kNoPair) return;
      uint32_t& filled = last_word_[near.new_pair - first_new_];
      near.posting = pairs_[near.new_pair].postings + filled;
      filled += near.num_words;
    });
  }
  const auto work = [&](size_t begin, size_t end) {
    for (; begin < end; ++begin) {
      for (const MergePart::Posting& posting : parts_[begin]->postings) {
        postings_[parts_[begin]->near(posting.side, posting.neighbour).posting++] = posting.word;
      }
    }
  };
  run_blocks(parts_.size(), 1, num_threads_, work, kPatience);
}

void MergeLearner::compact_postings() {
  uint64_t out = 0;
  for (size_t pair = 0; pair < first_new_; ++pair) {
    Pair& p = pairs_[pair];
    std::copy_n(postings_.data() + p.postings, p.num_words, postings_.data() + out);
    p.postings = out;
    out += p.num_words;
  }
  postings_.resize(out);
  postings_.shrink_to_fit();
  dead_postings_ = 0;
}

// Words lie in the order of their numbers and only get shorter, so each moves to the left or stays.
void MergeLearner::compact_symbols() {
  uint64_t out = 0;
  for (size_t w = 0; w < words_.size(); ++w) {
    Word& word = words_[w];
    std::copy_n(symbols_.data() + word.begin, word.length, symbols_.data() + out);
    word.begin = out;
    out += word.length;
  }
  symbols_.resize(out);
  symbols_.shrink_to_fit();
}

}  // namespace lowtide
