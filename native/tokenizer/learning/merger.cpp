#include "tokenizer/learning/merger.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "model/thread_pool.hpp"
#include "tokenizer/learning/pair_scan.hpp"

namespace lowtide {

namespace {
constexpr size_t kCompactionFloor = 1 << 17;
constexpr size_t kPatience = 200;  // microseconds; large merges follow each other closely
constexpr ptrdiff_t kAhead = 16;   // words and pairs that are prefetched
constexpr size_t kLongRest = 32;   // symbols of a word, from which on most are far from the pair
}  // namespace

template <typename Symbol>
size_t MergeLearner<Symbol>::bytes() const {
  size_t parts = all_.bytes();
  for (const auto& share : shares_) parts += share->part.bytes();
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
    const uint32_t* const words = postings_.data() + chosen.postings;
    merge_in_words(all_, chosen, words, words + chosen.num_words);
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
    place_postings_of_shares();
  } else {
    place_postings(all_);
  }
  all_.clear();
  for (uint32_t entry = first_new; entry < pairs_.size(); ++entry) push(entry);
}

// Each thread has the same words in every merge, so that they stay in its core's cache.
template <typename Symbol>
void MergeLearner<Symbol>::merge_together(const Pair& chosen) {
  while (shares_.size() < num_threads_) {
    const size_t i = shares_.size(), units = words_.num_units();
    shares_.push_back(std::make_unique<Share>());
    shares_.back()->begin = units * i / num_threads_;
    shares_.back()->end = units * (i + 1) / num_threads_;
  }
  for (const auto& share : shares_) share->part.make_room(tokens_->size());
  const uint32_t* const words = postings_.data() + chosen.postings;
  for_each_share([&](Share& share) {
    const uint32_t* const all = words + chosen.num_words;
    const uint32_t* const begin = std::lower_bound(words, all, share.begin);
    merge_in_words(share.part, chosen, begin, std::lower_bound(begin, all, share.end));
    share.part.list_sums();
  });
  for (const auto& share : shares_) {
    for (const MergePart::Sum& sum : share->part.sums) all_.add(sum);
  }
}

// Runs work(share) for each, by the thread that had it before if that one is awake.
template <typename Symbol>
template <typename Work>
void MergeLearner<Symbol>::for_each_share(const Work& work) {
  thread_local size_t own = std::numeric_limits<size_t>::max();
  for (const auto& share : shares_) share->is_taken = false;
  const auto take = [&] {
    const bool is_first = own >= shares_.size();
    size_t i = is_first ? 0 : own;
    while (shares_[i]->is_taken.exchange(true)) i = (i + 1) % shares_.size();
    if (is_first) own = i;
    work(*shares_[i]);
  };
  run_blocks(shares_.size(), 1, num_threads_, [&](size_t, size_t) { take(); }, kPatience);
}

// The words of a pair are scattered in memory, so they are prefetched.
template <typename Symbol>
void MergeLearner<Symbol>::merge_in_words(MergePart& part, const Pair& chosen,
                                          const uint32_t* begin, const uint32_t* end) {
  const ptrdiff_t ahead = std::min<ptrdiff_t>(kAhead, end - begin);
  for (ptrdiff_t k = 0; k < ahead; ++k) words_.prefetch(begin[k]);
  for (; begin < end; ++begin) {
    if (end - begin > kAhead) words_.prefetch(begin[kAhead]);
    merge_in_word(part, chosen, *begin);
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

// In the order of the shares, so that the words of every list are in ascending order.
template <typename Symbol>
void MergeLearner<Symbol>::place_postings_of_shares() {
  for (const auto& share : shares_) {
    for (MergePart::Sum& sum : share->part.sums) {
      sum.place = std::exchange(all_[sum.key].place, all_[sum.key].place + sum.num_words);
    }
  }
  for_each_share([&](Share& share) {
    for (const MergePart::Sum& sum : share.part.sums) share.part[sum.key].place = sum.place;
    place_postings(share.part);
    share.part.clear();
  });
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
