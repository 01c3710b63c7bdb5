#include "merger.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace lowtide {

namespace {
// With the arrays in files, a visit can bring in a few stretches of 64 KiB: 64 visits, some 20 MiB.
constexpr size_t kVisitsBetweenChecks = 64;
constexpr size_t kPiecesBetweenChecks = 1 << 13;
constexpr size_t kCompactionFloor = 1 << 17;
}  // namespace

MergeLearner::MergeLearner(TieBreak tie_break, const std::string& file_dir, size_t resident_limit)
    : tie_break_(tie_break),
      resident_limit_(resident_limit),
      in_files_(!file_dir.empty()),
      words_(file_dir),
      symbols_(file_dir),
      counts_(file_dir),
      pairs_(file_dir),
      postings_(file_dir),
      tokens_(tie_break) {}

size_t MergeLearner::bytes() const {
  return words_.bytes() + symbols_.bytes() + counts_.bytes() + pairs_.bytes() + postings_.bytes();
}

void MergeLearner::add_piece(const uint8_t* bytes, size_t length, uint64_t count) {
  if (is_built_) throw std::logic_error("pieces come before the first merge");
  if (length < 2) return;
  if (words_.size() >= kNoPair) throw std::runtime_error("more than 4 billion distinct pieces");
  words_.push_back({symbols_.size(), count, static_cast<uint32_t>(length)});
  for (size_t i = 0; i < length; ++i) symbols_.push_back({tokens_.symbol_of(bytes[i]), kNoPair});
  num_words_.store(words_.size(), std::memory_order_relaxed);
  if ((words_.size() & (kPiecesBetweenChecks - 1)) == 0) release_if_large();
}

void MergeLearner::build() {
  if (std::exchange(is_built_, true)) throw std::logic_error("pairs are there already");
  std::vector<uint32_t> index(256 * 256, kNoPair);
  std::vector<uint32_t> last;
  for (size_t w = 0; w < words_.size(); ++w) {
    const Word& word = words_[w];
    Symbol* const symbols = symbols_.data() + word.begin;
    for (size_t i = 0; i + 1 < word.length; ++i) {
      const uint32_t left = symbols[i].id, right = symbols[i + 1].id;
      uint32_t& pair = index[left << 8 | right];
      if (pair == kNoPair) {
        pair = static_cast<uint32_t>(counts_.size());
        counts_.push_back(0);
        pairs_.push_back({0, 0, left, right});
        last.push_back(kNoPair);
      }
      symbols[i].pair = pair;
      counts_[pair] += static_cast<int64_t>(word.count);
      if (last[pair] != w) {
        last[pair] = static_cast<uint32_t>(w);
        ++pairs_[pair].num_words;
      }
    }
    if ((w & (kPiecesBetweenChecks - 1)) == 0) release_if_large();
  }
  uint64_t total = 0;
  for (size_t pair = 0; pair < pairs_.size(); ++pair) {
    pairs_[pair].postings = total;
    total += pairs_[pair].num_words;
    pairs_[pair].num_words = 0;
    last[pair] = kNoPair;
  }
  postings_.resize(total);
  for (size_t w = 0; w < words_.size(); ++w) {
    const Word& word = words_[w];
    const Symbol* const symbols = symbols_.data() + word.begin;
    for (size_t i = 0; i + 1 < word.length; ++i) {
      const uint32_t pair = symbols[i].pair;
      if (last[pair] == w) continue;
      last[pair] = static_cast<uint32_t>(w);
      postings_[pairs_[pair].postings + pairs_[pair].num_words++] = static_cast<uint32_t>(w);
    }
    if ((w & (kVisitsBetweenChecks - 1)) == 0) release_if_large();
  }
  live_symbols_ = symbols_.size();
  threshold_ = 1;
  for (size_t pair = 0; pair < counts_.size(); ++pair) {
    threshold_ = std::max(threshold_, counts_[pair]);
  }
  ++threshold_;
}

bool MergeLearner::before(const Candidate& a, const Candidate& b) const {
  if (a.count != b.count) return a.count > b.count;
  if (tie_break_ == TieBreak::kHuggingFace) return a.order < b.order;
  const Pair& x = pairs_[a.pair];
  const Pair& y = pairs_[b.pair];
  return tokens_.before(x.left, x.right, y.left, y.right);
}

uint32_t MergeLearner::first_entry(uint32_t pair) const {
  if (first_entry_.empty()) return pair;
  const auto found = first_entry_.find(pair);
  return found == first_entry_.end() ? pair : found->second;
}

void MergeLearner::push(uint32_t pair) {
  const int64_t count = counts_[first_entry(pair)];
  if (count < threshold_) return;
  const Pair& p = pairs_[pair];
  queue_.push_back({count, uint64_t{p.left} << 32 | p.right, pair});
  std::push_heap(queue_.begin(), queue_.end(),
                 [this](const Candidate& a, const Candidate& b) { return before(b, a); });
}

bool MergeLearner::refill(int64_t min_frequency) {
  while (queue_.empty()) {
    if (threshold_ <= min_frequency) return false;
    threshold_ = std::max(min_frequency, threshold_ / 2);
    for (uint32_t pair = 0; pair < counts_.size(); ++pair) {
      // A merged pair has no words left; only a pair made again looks elsewhere for its count.
      if (counts_[pair] >= threshold_ && pairs_[pair].num_words != 0) push(pair);
    }
    for (const auto& [entry, first] : first_entry_) {
      if (counts_[entry] < threshold_ && pairs_[entry].num_words != 0) push(entry);
    }
  }
  return true;
}

bool MergeLearner::pop_best(int64_t min_frequency, uint32_t& pair) {
  const auto later = [this](const Candidate& a, const Candidate& b) { return before(b, a); };
  while (!queue_.empty() || refill(min_frequency)) {
    std::pop_heap(queue_.begin(), queue_.end(), later);
    const Candidate top = queue_.back();
    queue_.pop_back();
    if (top.count == counts_[first_entry(top.pair)]) {
      pair = top.pair;
      return true;
    }
    push(top.pair);
  }
  return false;
}

bool MergeLearner::learn(size_t target, size_t max_merges, int64_t min_frequency) {
  min_frequency = std::max<int64_t>(1, min_frequency);
  for (size_t i = 0; i < max_merges; ++i) {
    uint32_t pair;
    if (tokens_.num_made() >= target || !pop_best(min_frequency, pair)) return false;
    merge(pair);
    merges_done_.store(merges().size(), std::memory_order_relaxed);
  }
  return tokens_.num_made() < target;
}

void MergeLearner::merge(uint32_t pair) {
  const uint32_t left = pairs_[pair].left, right = pairs_[pair].right;
  const uint32_t first = first_entry(pair);
  const auto [token, known] = tokens_.merge(left, right);
  ++stamp_;
  with_left_.resize(tokens_.size() + 1);
  with_right_.resize(tokens_.size() + 1);
  if (known) find_existing_pairs(token);

  first_new_ = static_cast<uint32_t>(counts_.size());
  new_postings_.clear();
  last_word_.clear();
  for (const uint32_t entry : entries_of(pair)) {
    const Pair chosen = pairs_[entry];
    pairs_[entry].num_words = 0;
    dead_postings_ += chosen.num_words;
    merge_in_words(chosen, first, token);
  }
  if (tie_break_ == TieBreak::kCs336) counts_[first] = 0;
  place_new_postings();
  if (live_symbols_ > kCompactionFloor && live_symbols_ * 2 < symbols_.size()) compact_symbols();
  for (uint32_t entry = first_new_; entry < counts_.size(); ++entry) push(entry);
}

// The entries whose words are merged together: all of the pair's by cs336's rule, the one that was
// chosen by Hugging Face's.
std::vector<uint32_t> MergeLearner::entries_of(uint32_t pair) const {
  std::vector<uint32_t> entries = {pair};
  if (tie_break_ == TieBreak::kHuggingFace || first_entry_.empty()) return entries;
  const uint32_t first = first_entry(pair);
  if (first != pair) entries.push_back(first);
  for (const auto& [entry, its_first] : first_entry_) {
    if (its_first == first && entry != pair) entries.push_back(entry);
  }
  return entries;
}

void MergeLearner::merge_in_words(const Pair& entry, uint32_t pair, uint32_t token) {
  const uint32_t* const words = postings_.data() + entry.postings;  // nothing moves it meanwhile
  const uint32_t n = entry.num_words;
  for (uint32_t k = 0; k < n; ++k) {
    if (k + 24 < n) __builtin_prefetch(&words_[words[k + 24]]);
    if (k + 12 < n) __builtin_prefetch(&symbols_[words_[words[k + 12]].begin]);
    merge_in_word(words[k], pair, token);
    if (in_files_ && (++visits_ & (kVisitsBetweenChecks - 1)) == 0) release_if_large();
  }
}

void MergeLearner::merge_in_word(uint32_t index, uint32_t pair, uint32_t token) {
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
      s[out - 1].pair = add_occurrence(token, token, token, index, count);
    } else if (out > 0) {
      counts_[s[out - 1].pair] -= count;
      s[out - 1].pair = add_occurrence(s[out - 1].id, token, token, index, count);
    }
    const uint32_t right_pair = s[i + 1].pair;
    if (right_pair != kNoPair) counts_[right_pair] -= count;
    i += 2;
    uint32_t next_pair = kNoPair;
    if (i < length && s[i].pair != pair) {
      next_pair = add_occurrence(token, s[i].id, token, index, count);
    }
    s[out++] = {token, next_pair};
    after_merge = true;
  }
  word.length = static_cast<uint32_t>(out);
  live_symbols_ -= length - out;
}

MergeLearner::Seen& MergeLearner::seen(uint32_t left, uint32_t right, uint32_t token) {
  return right == token ? with_left_[left] : with_right_[right];
}

uint32_t MergeLearner::add_occurrence(uint32_t left, uint32_t right, uint32_t token, uint32_t word,
                                      int64_t count) {
  Seen& at = seen(left, right, token);
  if (at.stamp != stamp_) at = {stamp_, kNoPair, kNoPair};
  if (at.entry == kNoPair) {
    at.entry = static_cast<uint32_t>(counts_.size());
    if (at.entry == kNoPair) throw std::runtime_error("more than 4 billion distinct pairs");
    counts_.push_back(0);
    pairs_.push_back({0, 0, left, right});
    last_word_.push_back(kNoPair);
    if (at.first == kNoPair) {
      at.first = at.entry;
    } else {
      first_entry_.emplace(at.entry, at.first);
    }
  }
  counts_[at.first] += count;
  uint32_t& last = last_word_[at.entry - first_new_];
  if (last != word) {
    last = word;
    ++pairs_[at.entry].num_words;
    new_postings_.push_back({at.entry, word});
  }
  return at.first;
}

// A token made a second time can meet neighbours that it met before: their pairs go on.
void MergeLearner::find_existing_pairs(uint32_t token) {
  for (uint32_t pair = 0; pair < pairs_.size(); ++pair) {
    const Pair& p = pairs_[pair];
    if ((p.left != token && p.right != token) || first_entry_.count(pair) != 0) continue;
    seen(p.left, p.right, token) = {stamp_, kNoPair, pair};
  }
}

void MergeLearner::place_new_postings() {
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
  for (const NewPosting& posting : new_postings_) {
    uint32_t& filled = last_word_[posting.pair - first_new_];
    postings_[pairs_[posting.pair].postings + filled++] = posting.word;
  }
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
    if (in_files_ && (w & (kPiecesBetweenChecks - 1)) == 0) release_if_large();
  }
  symbols_.resize(out);
  symbols_.shrink_to_fit();
}

void MergeLearner::release_if_large() {
  if (!in_files_ || resident_bytes() <= resident_limit_) return;
  words_.release();
  symbols_.release();
  counts_.release();
  pairs_.release();
  postings_.release();
}

}  // namespace lowtide
