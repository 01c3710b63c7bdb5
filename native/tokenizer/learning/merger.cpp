#include "tokenizer/learning/merger.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>

#include "model/thread_pool.hpp"
#include "tokenizer/learning/pair_scan.hpp"

namespace lowtide {

namespace {
constexpr size_t kCompactionFloor = 1 << 17;
constexpr size_t kWordsAtOnce = 512;  // that a thread takes at a time
constexpr size_t kPatience = 200;     // microseconds; large merges follow each other closely
constexpr uint32_t kAhead = 16;       // words and pairs that are prefetched
constexpr size_t kLongRest = 32;      // symbols of a word, from which on most are far from the pair
}  // namespace

template <typename Symbol>
size_t MergeLearner<Symbol>::bytes() const {
  size_t parts = all_.bytes();
  for (const auto& part : parts_) parts += part->bytes();
  return parts + text_bytes();
}

template <typename Symbol>
size_t MergeLearner<Symbol>::text_bytes() const {
  return words_.bytes() + pairs_.bytes() + postings_.bytes() +
         queue_.capacity() * sizeof(Candidate);
}

template <typename Symbol>
bool MergeLearner<Symbol>::before(const Candidate& a, const Candidate& b) const {
  if (a.count != b.count) return a.count > b.count;
  if (tokens_->tie_break() == TieBreak::kHuggingFace) return a.order < b.order;
  const Pair& x = pairs_[a.pair];
  const Pair& y = pairs_[b.pair];
  return tokens_->before(x.left, x.right, y.left, y.right);
}

template <typename Symbol>
void MergeLearner<Symbol>::push(uint32_t pair) {
  const Pair& p = pairs_[pair];
  if (p.count < threshold_ || !tokens_->can_merge(p.left, p.right)) return;
  queue_.push_back({p.count, uint64_t{p.left} << 32 | p.right, pair});
  std::push_heap(queue_.begin(), queue_.end(),
                 [this](const Candidate& a, const Candidate& b) { return before(b, a); });
}

// Rare pairs, which are most, are only checked at each halving of the threshold, and not queued.
template <typename Symbol>
bool MergeLearner<Symbol>::refill(int64_t min_frequency) {
  while (queue_.empty()) {
    if (threshold_ <= min_frequency) return false;
    threshold_ = std::max(min_frequency, threshold_ / 2);
    for (uint32_t pair = 0; pair < pairs_.size(); ++pair) {
      if (pairs_[pair].count >= threshold_) push(pair);
    }
  }
  return true;
}

// Counts only decrease: an entry with a current count is the best, others are put back updated.
template <typename Symbol>
bool MergeLearner<Symbol>::pop_best(int64_t min_frequency, uint32_t& pair) {
  const auto later = [this](const Candidate& a, const Candidate& b) { return before(b, a); };
  while (!queue_.empty() || refill(min_frequency)) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    const Candidate top = queue_.back();
    queue_.pop_back();
    const Pair& best = pairs_[top.pair];
    if (top.count == best.count) {
      pair = top.pair;
      if (!stop_at_ || tokens_->before({top.count, best.left, best.right}, *stop_at_)) return true;
      push(pair);
      return false;
    }
    push(top.pair);
  }
  return false;
}

template <typename Symbol>
bool MergeLearner<Symbol>::learn(size_t target, size_t max_merges, int64_t min_frequency) {
  min_frequency = std::max<int64_t>(1, min_frequency);
  for (size_t i = 0; i < max_merges; ++i) {
    uint32_t pair;
    if (merges().size() >= target || !pop_best(min_frequency, pair)) return false;
    merge(pair);
    merges_done_.store(merges().size(), std::memory_order_relaxed);
  }
  return merges().size() < target;
}

template <typename Symbol>
void MergeLearner<Symbol>::merge(uint32_t pair) {
  const Pair chosen = pairs_[pair];
  if (!queue_.empty()) pairs_.prefetch(queue_.front().pair);  // the next, most often
  if (tokens_->size() > std::numeric_limits<Symbol>::max()) {
    throw std::runtime_error("more tokens than symbols can tell apart");
  }
  left_ = chosen.left;
  right_ = chosen.right;
  token_ = tokens_->merge(left_, right_);
  all_.make_room(tokens_->size());
  const uint32_t first_new = pairs_.size();
  is_shared_ = num_threads_ > 1 && chosen.num_words >= many_words_;
  if (is_shared_) {
    merge_together(chosen);
  } else {
    merge_in_words(all_, chosen, 0, chosen.num_words);
  }
  pairs_[pair].count = 0;
  pairs_[pair].num_words = 0;
  dead_postings_ += chosen.num_words;
  if (dead_postings_ > kCompactionFloor && dead_postings_ * 2 > postings_.size()) {
    compact_postings();
  }
  if (!queue_.empty()) __builtin_prefetch(&postings_[pairs_[queue_.front().pair].postings]);
  add_pairs(pair);
  if (is_shared_) {
    place_postings_of_parts();
  } else {
    place_postings(all_);
  }
  all_.clear();
  for (uint32_t entry = first_new; entry < pairs_.size(); ++entry) push(entry);
}

template <typename Symbol>
void MergeLearner<Symbol>::merge_together(const Pair& chosen) {
  free_parts_.clear();
  for (const auto& part : parts_) {
    part->make_room(tokens_->size());
    free_parts_.push_back(part.get());
  }
  std::exception_ptr failed;
  const auto work = [&](size_t begin, size_t end) {
    try {
      MergePart& part = take_part();
      merge_in_words(part, chosen, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
      const std::lock_guard hold(parts_mutex_);
      free_parts_.push_back(&part);
    } catch (...) {
      const std::lock_guard hold(parts_mutex_);
      failed = std::current_exception();
    }
  };
  run_blocks(chosen.num_words, kWordsAtOnce, num_threads_, work, kPatience);
  if (failed) std::rethrow_exception(failed);
  for (const auto& part : parts_) {
    for (const uint32_t key : part->touched) all_.add(key, (*part)[key]);
  }
}

template <typename Symbol>
MergePart& MergeLearner<Symbol>::take_part() {
  const std::lock_guard hold(parts_mutex_);
  if (free_parts_.empty()) {
    parts_.push_back(std::make_unique<MergePart>());
    parts_.back()->make_room(tokens_->size());
    free_parts_.reserve(parts_.size());
    return *parts_.back();
  }
  MergePart& part = *free_parts_.back();
  free_parts_.pop_back();
  return part;
}

// The words of a pair are scattered in memory, so they are prefetched.
template <typename Symbol>
void MergeLearner<Symbol>::merge_in_words(MergePart& part, const Pair& chosen, uint32_t begin,
                                          uint32_t end) {
  const uint32_t* const words = postings_.data() + chosen.postings;  // nothing moves it meanwhile
  for (uint32_t k = begin; k < std::min(end, begin + kAhead); ++k) words_.prefetch(words[k]);
  for (uint32_t k = begin; k < end; ++k) {
    if (k + kAhead < end) words_.prefetch(words[k + kAhead]);
    merge_in_word(part, chosen, words[k]);
  }
}

// The pair of a neighbour before and after the merge.
template <typename Symbol>
typename MergeLearner<Symbol>::Change MergeLearner<Symbol>::change(uint32_t key) const {
  const uint32_t near = key >> 1;
  if ((key & 1) == MergePart::kBefore) return {near, left_, near, token_};
  return {right_, near == token_ ? left_ : near, token_, near};
}

// The shortened word overwrites its own symbols.
template <typename Symbol>
void MergeLearner<Symbol>::merge_in_word(MergePart& part, const Pair& chosen, uint32_t word) {
  const auto left = static_cast<Symbol>(chosen.left), right = static_cast<Symbol>(chosen.right);
  const auto add = [&](MergePart::Side side, uint32_t neighbour, int64_t count) {
    const uint32_t key = MergePart::key(side, neighbour);
    if (!part.add(key, word, count)) return;
    const Change at = change(key);  // needed when all words are done
    pairs_.prefetch_slot(at.left, at.right);
    pairs_.prefetch_slot(at.new_left, at.new_right);
  };
  typename Words::Head head = words_.head(word);
  Symbol* const s = words_.symbols(word);
  const size_t length = head.length;
  size_t i = is_shared_ ? find_pair(s, 0, length, left, right)
                        : find_pair<kReadBehind>(s, 0, length, left, right);
  if (i + 1 >= length) return;  // merged since the posting was written
  const int64_t count = words_.count(word, head);
  size_t out = i;
  bool after_merge = false;
  while (i < length) {
    if (i + 1 < length && s[i] == left && s[i + 1] == right) {
      if (after_merge) {
        add(MergePart::kAfter, token_, count);
      } else if (out > 0) {
        add(MergePart::kBefore, s[out - 1], count);
      }
      s[out++] = static_cast<Symbol>(token_);
      i += 2;
      after_merge = true;
    } else {
      if (after_merge) add(MergePart::kAfter, s[i], count);
      s[out++] = s[i++];
      after_merge = false;
      if (length - i < kLongRest) continue;
      const size_t next = find_pair(s, i, length, left, right);
      std::memmove(s + out, s + i, (next - i) * sizeof(Symbol));
      out += next - i;
      i = next;
    }
  }
  head.length = static_cast<uint32_t>(out);
  words_.write_head(word, head);
}

// Creates the new pairs, and subtracts their counts from the old ones.
template <typename Symbol>
void MergeLearner<Symbol>::add_pairs(uint32_t merged) {
  const std::vector<uint32_t>& keys = all_.touched;
  uint64_t total = postings_.size();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) {
      const Change next = change(keys[i + kAhead]);
      pairs_.prefetch_pair(next.left, next.right);
    }
    const Change at = change(keys[i]);
    MergePart::Near& near = all_[keys[i]];
    const uint32_t old = pairs_.find(at.left, at.right);
    if (old != merged) take(old, near.sum);
    pairs_.add({near.sum, total, near.num_words, at.new_left, at.new_right});
    near.place = total;
    total += near.num_words;
  }
  if (total > postings_.bytes() / sizeof(uint32_t)) postings_.reserve(total + total / 4);
  postings_.resize(total);
}

template <typename Symbol>
void MergeLearner<Symbol>::take(uint32_t pair, int64_t count) {
  Pair& from = pairs_[pair];
  from.count -= count;
  if (from.count > 0) return;
  dead_postings_ += from.num_words;  // it never occurs again
  from.num_words = 0;
}

template <typename Symbol>
void MergeLearner<Symbol>::place_postings(MergePart& part) {
  for (const MergePart::Posting& posting : part.postings) {
    postings_[part[posting.key].place++] = posting.word;
  }
}

template <typename Symbol>
void MergeLearner<Symbol>::place_postings_of_parts() {
  for (const auto& part : parts_) {
    for (const uint32_t key : part->touched) {
      MergePart::Near& near = (*part)[key];
      near.place = all_[key].place;
      all_[key].place += near.num_words;
    }
  }
  const auto work = [&](size_t begin, size_t end) {
    for (; begin < end; ++begin) {
      place_postings(*parts_[begin]);
      parts_[begin]->clear();
    }
  };
  run_blocks(parts_.size(), 1, num_threads_, work, kPatience);
}

// Lists are stored in the order of their pairs' numbers, so each moves to the left or stays.
template <typename Symbol>
void MergeLearner<Symbol>::compact_postings() {
  uint64_t out = 0;
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    Pair& p = pairs_[pair];
    std::copy_n(postings_.data() + p.postings, p.num_words, postings_.data() + out);
    p.postings = out;
    out += p.num_words;
  }
  postings_.resize(out);
  postings_.shrink_to_fit();
  dead_postings_ = 0;
}

template class MergeLearner<uint16_t>;
template class MergeLearner<uint32_t>;

}  // namespace lowtide
