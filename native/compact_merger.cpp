#include "compact_merger.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

namespace lowtide {

namespace {
constexpr size_t kCompactionFloor = 1 << 17;
constexpr size_t kSmallestTable = 1 << 12;
constexpr int64_t kNoThreshold = std::numeric_limits<int64_t>::max();
}  // namespace

template <typename Value>
void PairTable<Value>::reset(size_t slots) {
  if (slots == slots_.size()) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
  } else {
    slots_ = {};  // before the next: both would be twice the memory
    slots_ = std::vector<Slot>(slots);
  }
  size_ = 0;
  shift_ = 64 - std::countr_zero(slots);
}

template <typename Value>
typename PairTable<Value>::Slot& PairTable<Value>::slot(uint64_t key) {
  size_t i = static_cast<size_t>(hash(key) >> shift_);
  while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & (slots_.size() - 1);
  return slots_[i];
}

template <typename Value>
Value* PairTable<Value>::find(uint64_t key) {
  Slot& found = slot(key);
  return found.key == kEmpty ? nullptr : &found.value;
}

template <typename Value>
Value& PairTable<Value>::at(uint64_t key) {
  Slot* found = &slot(key);
  if (found->key == kEmpty) {
    if (size_ * 10 >= slots_.size() * 7) {
      std::vector<Slot> old = std::move(slots_);
      reset(old.size() * 2);
      for (Slot& moved : old) {
        if (moved.key == kEmpty) continue;
        slot(moved.key) = moved;
        ++size_;
      }
      found = &slot(key);
    }
    found->key = key;
    ++size_;
  }
  return found->value;
}

template <typename Symbol>
CompactLearner<Symbol>::CompactLearner(TieBreak tie_break, size_t memory_bytes)
    : tie_break_(tie_break),
      memory_bytes_(memory_bytes),
      tokens_(tie_break),
      threshold_(kNoThreshold) {}

template <typename Symbol>
void CompactLearner<Symbol>::add_piece(const uint8_t* bytes, size_t length, uint64_t count) {
  if (!merges().empty()) throw std::logic_error("pieces come before the first merge");
  if (length < 2) return;
  if (symbols_.size() + length >= kNone) throw std::runtime_error("more than 4 GiB of pieces");
  const uint32_t word = static_cast<uint32_t>(begins_.size());
  begins_.push_back(static_cast<uint32_t>(symbols_.size()));
  small_counts_.push_back(static_cast<uint8_t>(std::min<uint64_t>(count, 255)));
  if (count >= 255) large_counts_.emplace(word, count);
  for (size_t i = 0; i < length; ++i) {
    symbols_.push_back(static_cast<Symbol>(tokens_.symbol_of(bytes[i])));
  }
  symbols_.push_back(kEnd);
  live_cells_ += length + 1;
  num_words_.store(begins_.size(), std::memory_order_relaxed);
}

template <typename Symbol>
uint64_t CompactLearner<Symbol>::weight(uint32_t word) const {
  return small_counts_[word] < 255 ? small_counts_[word] : large_counts_.at(word);
}

template <typename Symbol>
size_t CompactLearner<Symbol>::free_bytes() const {
  const size_t used =
      symbols_.size() * sizeof(Symbol) + begins_.size() * 5 + large_counts_.size() * 40;
  return used < memory_bytes_ ? memory_bytes_ - used : 0;
}

// Calls visit(word, left, right) for each two neighbours; it returns false to stop.
template <typename Symbol>
template <typename Visit>
void CompactLearner<Symbol>::for_each_pair(Visit visit) const {
  for (uint32_t word = 0; word < begins_.size(); ++word) {
    const Symbol* s = &symbols_[begins_[word]];
    for (; s[1] != kEnd; ++s) {
      if (!visit(word, static_cast<uint32_t>(s[0]), static_cast<uint32_t>(s[1]))) return;
    }
  }
}

// The queue

template <typename Symbol>
bool CompactLearner<Symbol>::comes_later(const Queued& a, const Queued& b) const {
  if (a.count != b.count) return a.count < b.count;
  const Entry &x = entries_[a.entry], &y = entries_[b.entry];
  return tokens_.before(y.left, y.right, x.left, x.right);
}

template <typename Symbol>
void CompactLearner<Symbol>::push(uint32_t entry) {
  const int64_t count = entries_[entries_[entry].first].count;
  if (count < threshold_ || entries_[entry].num_words == 0) return;
  queue_.push_back({count, entry});
  std::push_heap(queue_.begin(), queue_.end(),
                 [this](const Queued& a, const Queued& b) { return comes_later(a, b); });
}

template <typename Symbol>
bool CompactLearner<Symbol>::pop_best(int64_t min_frequency, uint32_t& entry) {
  while (!queue_.empty() || refill(min_frequency)) {
    std::pop_heap(queue_.begin(), queue_.end(),
                  [this](const Queued& a, const Queued& b) { return comes_later(a, b); });
    const Queued top = queue_.back();
    queue_.pop_back();
    if (entries_[top.entry].num_words == 0) continue;
    if (top.count == entries_[entries_[top.entry].first].count) {
      entry = top.entry;
      return true;
    }
    push(top.entry);
  }
  return false;
}

template <typename Symbol>
bool CompactLearner<Symbol>::refill(int64_t min_frequency) {
  while (queue_.empty()) {
    if (threshold_ <= min_frequency) return false;
    retire_entries();
    int64_t floor = std::max(min_frequency, threshold_ / 2);
    int64_t largest = 0;
    for (const Entry& entry : entries_) {
      if (entry.num_words != 0) largest = std::max(largest, entries_[entry.first].count);
    }
    std::vector<Candidate> candidates = count_pairs(floor, largest);
    if (largest < floor) {  // nothing yet: as low as the most frequent pair there is
      threshold_ = std::max(min_frequency, largest) + (largest < min_frequency ? 0 : 1);
      if (largest < min_frequency) return false;
      continue;
    }
    take_candidates(std::move(candidates), floor);
  }
  return true;
}

// What is not followed for good is forgotten: the next count finds what is left of it.
template <typename Symbol>
void CompactLearner<Symbol>::retire_entries() {
  std::vector<uint32_t> moved(entries_.size(), kNone);
  std::vector<Entry> kept;
  std::vector<std::vector<uint32_t>> kept_words;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.is_kept) {
      moved[i] = static_cast<uint32_t>(kept.size());
      kept.push_back(entry);
      kept.back().own = static_cast<uint32_t>(kept_words.size());
      kept_words.push_back(std::move(own_words_[entry.own]));
    } else if (entry.num_words == 0 && tie_break_ == TieBreak::kHuggingFace) {
      merged_counts_[key_of(entry.left, entry.right)] = entry.count;
    }
  }
  entries_ = std::move(kept);
  own_words_ = std::move(kept_words);
  index_.reset(64);
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.first = moved[entry.first];
    if (entry.first == i) index_.at(key_of(entry.left, entry.right)) = static_cast<uint32_t>(i) + 1;
  }
  postings_.resize(0);
  postings_.shrink_to_fit();
}

// Counts the pairs of one part of the hashes, until there are too many. Places in the table are asked
// for well before they are used: it is larger than the caches.
template <typename Symbol>
void CompactLearner<Symbol>::count_into(PairTable<Counted>& table, size_t part) {
  constexpr size_t kAhead = 64;
  std::pair<uint64_t, int64_t> waiting[kAhead];
  size_t num_waiting = 0;
  const auto count_waiting = [&] {
    for (size_t i = 0; i < num_waiting; ++i) {
      Counted& counted = table.at(waiting[i].first);
      counted.count += waiting[i].second;
      ++counted.occurrences;
    }
    num_waiting = 0;
  };
  for_each_pair([&](uint32_t word, uint32_t left, uint32_t right) {
    const uint64_t key = key_of(left, right);
    if (partitions_ > 1 && (PairTable<Counted>::hash(key) & 0xFFFF) % partitions_ != part) {
      return true;
    }
    if (index_.size() != 0 && index_.find(key) != nullptr) return true;
    table.prefetch(key);
    waiting[num_waiting++] = {key, static_cast<int64_t>(weight(word))};
    if (num_waiting == kAhead) count_waiting();
    return table.size() * 2 < table.slots().size();
  });
  count_waiting();
}

// Gives the pairs that occur `floor` times, but for those that are followed; raises `floor` where
// they would be too many, and `largest` to the largest count.
template <typename Symbol>
std::vector<typename CompactLearner<Symbol>::Candidate> CompactLearner<Symbol>::count_pairs(
    int64_t& floor, int64_t& largest) {
  using Table = PairTable<Counted>;
  const size_t table_bytes = free_bytes() / 2;
  const size_t slots = std::min(  // there are no more pairs than symbols
      std::bit_floor(std::max(kSmallestTable, table_bytes / sizeof(typename Table::Slot))),
      std::bit_ceil(2 * live_cells_ + 2));
  const size_t limit = std::max(kSmallestTable, free_bytes() / 8 / sizeof(Candidate));
  std::vector<Candidate> found;
  Table table(slots);
  for (size_t part = 0; part < partitions_; ++part) {
    if (part > 0) table.reset(slots);
    count_into(table, part);
    if (table.size() * 2 >= slots) {  // too many pairs: in more passes, from the beginning
      partitions_ *= 2;
      part = static_cast<size_t>(-1);
      table.reset(slots);
      found.clear();
      continue;
    }
    for (const auto& slot : table.slots()) {
      if (slot.key == Table::kEmpty) continue;
      largest = std::max(largest, slot.value.count);
      if (slot.value.count >= floor) found.push_back({slot.key, slot.value});
    }
    if (found.size() > limit) {
      std::nth_element(
          found.begin(), found.begin() + limit / 2, found.end(),
          [](const Candidate& a, const Candidate& b) { return a.counted.count > b.counted.count; });
      const int64_t raised = found[limit / 2].counted.count + 1;
      if (raised <= largest) {
        floor = std::max(floor, raised);
        std::erase_if(found, [&](const Candidate& c) { return c.counted.count < floor; });
      }
    }
  }
  return found;
}

// Follows the most frequent pairs whose words fit; the threshold is where they end.
template <typename Symbol>
void CompactLearner<Symbol>::take_candidates(std::vector<Candidate> candidates, int64_t floor) {
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.counted.count > b.counted.count;
  });
  const size_t limit = free_bytes() / 2;
  size_t taken = 0, bytes = 0, whole = 0;  // whole: the groups of one count that fit
  for (; taken < candidates.size(); ++taken) {
    if (taken > 0 && candidates[taken].counted.count != candidates[taken - 1].counted.count) {
      whole = taken;
    }
    bytes += candidates[taken].counted.occurrences * sizeof(uint32_t) + 2 * sizeof(Entry);
    if (bytes > limit && whole > 0) break;
  }
  if (taken < candidates.size()) {
    candidates.resize(whole);
    floor = candidates.back().counted.count;
  }
  threshold_ = floor;
  bytes = 0;
  uint64_t total = 0;
  for (const Candidate& candidate : candidates) {
    const uint32_t left = static_cast<uint32_t>(candidate.key >> 32);
    const uint32_t right = static_cast<uint32_t>(candidate.key);
    const uint32_t number = static_cast<uint32_t>(entries_.size());
    bytes += candidate.counted.occurrences * sizeof(uint32_t);
    const bool is_listed = bytes <= limit;
    entries_.push_back({left, right, number, kNone, is_listed ? total : kEverywhere,
                        is_listed ? 0 : candidate.counted.occurrences, false,
                        candidate.counted.count});
    if (is_listed) total += candidate.counted.occurrences;
    index_.at(candidate.key) = number + 1;
  }
  postings_.resize(total);
  list_words();
  for (uint32_t entry = 0; entry < entries_.size(); ++entry) push(entry);
}

// Most pairs are not followed: a few thousand bits tell, before the table is asked.
template <typename Symbol>
void CompactLearner<Symbol>::list_words() {
  constexpr int kBits = 17;
  std::vector<uint64_t> followed((size_t{1} << kBits) / 64);
  for (const Entry& entry : entries_) {
    if (entry.is_kept || entry.postings == kEverywhere) continue;
    const uint64_t bit = PairTable<uint32_t>::hash(key_of(entry.left, entry.right)) >> (64 - kBits);
    followed[bit / 64] |= uint64_t{1} << bit % 64;
  }
  for_each_pair([&](uint32_t word, uint32_t left, uint32_t right) {
    const uint64_t key = key_of(left, right);
    const uint64_t bit = PairTable<uint32_t>::hash(key) >> (64 - kBits);
    if ((followed[bit / 64] >> bit % 64 & 1) == 0) return true;
    const uint32_t* const found = index_.find(key);
    if (found == nullptr) return true;
    Entry& entry = entries_[*found - 1];
    if (entry.is_kept || entry.postings == kEverywhere) return true;
    uint32_t* const words = postings_.data() + entry.postings;
    if (entry.num_words == 0 || words[entry.num_words - 1] != word) words[entry.num_words++] = word;
    return true;
  });
}

// Merging

template <typename Symbol>
bool CompactLearner<Symbol>::learn(size_t target, size_t max_merges, int64_t min_frequency) {
  min_frequency = std::max<int64_t>(1, min_frequency);
  for (size_t i = 0; i < max_merges; ++i) {
    uint32_t entry;
    if (tokens_.num_made() >= target || !pop_best(min_frequency, entry)) return false;
    if (tokens_.size() >= static_cast<size_t>(kEnd)) {
      throw std::runtime_error("more tokens than symbols can tell apart");
    }
    merge(entry);
    merges_done_.store(merges().size(), std::memory_order_relaxed);
  }
  return tokens_.num_made() < target;
}

template <typename Symbol>
void CompactLearner<Symbol>::merge(uint32_t number) {
  const Entry chosen = entries_[number];
  const auto [token, known] = tokens_.merge(chosen.left, chosen.right);
  ++stamp_;
  with_left_.resize(tokens_.size() + 1);
  with_right_.resize(tokens_.size() + 1);
  gained_.clear();
  new_postings_.clear();
  before_.clear();
  // Two new pairs for each word, noted and then listed. Where that is more than the memory has left,
  // they are counted only, and looked for in the whole text when their turn comes.
  const size_t followed = postings_.size() * sizeof(uint32_t) + entries_.size() * 2 * sizeof(Entry);
  const size_t room = free_bytes() > followed ? free_bytes() - followed : 0;
  notes_words_ = known || chosen.num_words < room / 4 / (sizeof(NewPosting) + sizeof(uint32_t));
  if (!notes_words_) new_postings_.shrink_to_fit();
  entries_[number].num_words = 0;
  merge_words(chosen, token, known);
  if (tie_break_ == TieBreak::kCs336) entries_[chosen.first].count = 0;
  place_gained(token, known);
  if (live_cells_ > kCompactionFloor && live_cells_ * 2 < symbols_.size()) compact_symbols();
}

template <typename Symbol>
void CompactLearner<Symbol>::merge_words(const Entry& entry, uint32_t token, bool known) {
  const auto visit = [&](uint32_t word) {
    merge_in_word(word, entry.left, entry.right, token, known);
  };
  if (entry.own == kNone && entry.postings == kEverywhere) {
    for (uint32_t word = 0; word < begins_.size(); ++word) visit(word);
    return;
  }
  const uint32_t* const words =
      entry.own == kNone ? postings_.data() + entry.postings : own_words_[entry.own].data();
  for (uint32_t k = 0; k < entry.num_words; ++k) {
    if (k + 24 < entry.num_words) __builtin_prefetch(&begins_[words[k + 24]]);
    if (k + 12 < entry.num_words) __builtin_prefetch(&symbols_[begins_[words[k + 12]]]);
    visit(words[k]);
  }
}

template <typename Symbol>
void CompactLearner<Symbol>::merge_in_word(uint32_t word, uint32_t left, uint32_t right,
                                           uint32_t token, bool known) {
  Symbol* const s = symbols_.data() + begins_[word];
  const auto matches = [&](size_t i) { return s[i] == left && s[i + 1] == right; };
  size_t i = 0;
  while (s[i] != kEnd && !matches(i)) ++i;
  if (s[i] == kEnd) return;  // merged away since the word was listed
  if (known) note_pairs_before(s, word, token);
  const int64_t count = static_cast<int64_t>(weight(word));
  size_t out = i;
  bool after_merge = false;
  while (s[i] != kEnd) {
    if (!matches(i)) {
      s[out++] = s[i++];
      after_merge = false;
      continue;
    }
    if (after_merge) {
      add(token, token, token, word, count);
    } else if (out > 0) {
      take_away(s[out - 1], left, count);
      add(s[out - 1], token, token, word, count);
    }
    i += 2;
    if (s[i] != kEnd) {
      take_away(right, s[i], count);
      if (!matches(i)) add(token, s[i], token, word, count);
    }
    s[out++] = static_cast<Symbol>(token);
    after_merge = true;
  }
  live_cells_ -= i - out;
  std::fill(s + out, s + i, kEnd);
}

template <typename Symbol>
void CompactLearner<Symbol>::take_away(uint32_t left, uint32_t right, int64_t count) {
  const uint32_t* const found = index_.find(key_of(left, right));
  if (found != nullptr) entries_[*found - 1].count -= count;
}

template <typename Symbol>
void CompactLearner<Symbol>::add(uint32_t left, uint32_t right, uint32_t token, uint32_t word,
                                 int64_t count) {
  Seen& at = right == token ? with_left_[left] : with_right_[right];
  if (at.stamp != stamp_) {
    at = {stamp_, static_cast<uint32_t>(gained_.size())};
    gained_.push_back({left, right});
  }
  Gained& gained = gained_[at.gained];
  gained.count += count;
  if (gained.last_word == word) return;
  gained.last_word = word;
  ++gained.num_words;
  if (notes_words_) new_postings_.push_back({at.gained, word});
}

template <typename Symbol>
void CompactLearner<Symbol>::note_pairs_before(const Symbol* s, uint32_t word, uint32_t token) {
  for (; s[1] != kEnd; ++s) {
    if (s[0] == token || s[1] == token) before_.emplace_back(key_of(s[0], s[1]), word);
  }
}

// New pairs

template <typename Symbol>
void CompactLearner<Symbol>::place_gained(uint32_t token, bool known) {
  if (known) return join_existing(token);
  uint64_t total = postings_.size();
  std::vector<uint64_t> places(gained_.size(), kEverywhere);
  for (size_t i = 0; i < gained_.size(); ++i) {
    if (gained_[i].count < threshold_) continue;
    const uint32_t number = add_entry(gained_[i], gained_[i].count);
    entries_[number].num_words = gained_[i].num_words;
    entries_[number].postings = kEverywhere;
    if (notes_words_) {
      entries_[number].postings = places[i] = total;
      total += gained_[i].num_words;
    }
    push(number);
  }
  postings_.resize(total);
  for (const NewPosting& posting : new_postings_) {
    uint64_t& place = places[posting.gained];
    if (place != kEverywhere) postings_[place++] = posting.word;
  }
}

template <typename Symbol>
uint32_t CompactLearner<Symbol>::add_entry(const Gained& gained, int64_t count) {
  const uint32_t number = static_cast<uint32_t>(entries_.size());
  entries_.push_back({gained.left, gained.right, number, kNone, 0, 0, false, count});
  uint32_t& place = index_.at(key_of(gained.left, gained.right));
  if (place == 0) place = number + 1;
  return number;
}

template <typename Symbol>
std::vector<uint32_t> CompactLearner<Symbol>::words_of_entry(const Entry& entry) const {
  std::vector<uint32_t> words;
  if (entry.num_words == 0) return words;
  if (entry.postings != kEverywhere) {
    words.resize(entry.num_words);
    for (uint32_t k = 0; k < entry.num_words; ++k) words[k] = postings_[entry.postings + k];
    return words;
  }
  for_each_pair([&](uint32_t word, uint32_t left, uint32_t right) {
    if (left == entry.left && right == entry.right && (words.empty() || words.back() != word)) {
      words.push_back(word);
    }
    return true;
  });
  return words;
}

// Gives an entry words of its own; by Hugging Face's rule they outlive the next count.
template <typename Symbol>
void CompactLearner<Symbol>::keep(uint32_t number, std::vector<uint32_t> words) {
  Entry& entry = entries_[number];
  entry.own = static_cast<uint32_t>(own_words_.size());
  entry.num_words = static_cast<uint32_t>(words.size());
  entry.is_kept = tie_break_ == TieBreak::kHuggingFace;
  own_words_.push_back(std::move(words));
}

template <typename Symbol>
void CompactLearner<Symbol>::join_existing(uint32_t token) {
  std::vector<std::vector<uint32_t>> words(gained_.size());
  for (const NewPosting& posting : new_postings_) words[posting.gained].push_back(posting.word);
  std::vector<uint32_t> untracked;
  for (uint32_t i = 0; i < gained_.size(); ++i) {
    const uint64_t key = key_of(gained_[i].left, gained_[i].right);
    if (const uint32_t* const found = index_.find(key); found != nullptr) {
      join_tracked(*found - 1, gained_[i], std::move(words[i]));
    } else if (const auto merged = merged_counts_.find(key); merged != merged_counts_.end()) {
      const uint32_t number = add_entry(gained_[i], merged->second + gained_[i].count);
      keep(number, std::move(words[i]));
      push(number);
    } else {
      untracked.push_back(i);
    }
  }
  if (!untracked.empty()) join_untracked(untracked, words, token);
}

template <typename Symbol>
void CompactLearner<Symbol>::join_tracked(uint32_t first, const Gained& gained,
                                          std::vector<uint32_t> words) {
  entries_[first].count += gained.count;
  if (tie_break_ == TieBreak::kCs336) {  // one entry, all words
    std::vector<uint32_t> all = entries_[first].own == kNone
                                    ? words_of_entry(entries_[first])
                                    : std::move(own_words_[entries_[first].own]);
    if (entries_[first].num_words == 0) all.clear();  // merged before
    all.insert(all.end(), words.begin(), words.end());
    keep(first, std::move(all));
    return push(first);
  }
  if (!entries_[first].is_kept) keep(first, words_of_entry(entries_[first]));
  const uint32_t number = add_entry(gained, 0);
  entries_[number].first = first;
  keep(number, std::move(words));
  push(number);
}

// Pairs that nobody followed may have been there before: one look at the whole text tells.
template <typename Symbol>
void CompactLearner<Symbol>::join_untracked(const std::vector<uint32_t>& gained,
                                            std::vector<std::vector<uint32_t>>& words_of,
                                            uint32_t token) {
  struct Found {
    int64_t count = 0;
    std::vector<uint32_t> old_words;
  };
  std::unordered_map<uint64_t, Found> found;
  for (const uint32_t i : gained) found[key_of(gained_[i].left, gained_[i].right)];
  std::vector<std::pair<uint64_t, uint32_t>> fresh;  // pairs in words that got them now
  for (const NewPosting& posting : new_postings_) {
    const Gained& pair = gained_[posting.gained];
    fresh.emplace_back(key_of(pair.left, pair.right), posting.word);
  }
  std::sort(fresh.begin(), fresh.end());
  std::sort(before_.begin(), before_.end());
  for_each_pair([&](uint32_t word, uint32_t left, uint32_t right) {
    if (left != token && right != token) return true;
    const auto at = found.find(key_of(left, right));
    if (at == found.end()) return true;
    at->second.count += static_cast<int64_t>(weight(word));
    const std::pair<uint64_t, uint32_t> place(at->first, word);
    const bool is_old = !std::binary_search(fresh.begin(), fresh.end(), place) ||
                        std::binary_search(before_.begin(), before_.end(), place);
    std::vector<uint32_t>& words = at->second.old_words;
    if (is_old && (words.empty() || words.back() != word)) words.push_back(word);
    return true;
  });
  for (const uint32_t i : gained) {
    Found& pair = found[key_of(gained_[i].left, gained_[i].right)];
    std::vector<uint32_t>& words = words_of[i];
    const bool is_new = pair.old_words.empty();
    if (tie_break_ == TieBreak::kCs336 || is_new) {
      if (pair.count < threshold_) continue;
      const uint32_t number = add_entry(gained_[i], pair.count);
      words.insert(words.end(), pair.old_words.begin(), pair.old_words.end());
      keep(number, std::move(words));
      entries_[number].is_kept = false;
      push(number);
      continue;
    }
    const uint32_t first = add_entry(gained_[i], pair.count);
    keep(first, std::move(pair.old_words));
    const uint32_t number = add_entry(gained_[i], 0);
    entries_[number].first = first;
    keep(number, std::move(words));
    push(number);
  }
}

template <typename Symbol>
void CompactLearner<Symbol>::compact_symbols() {
  uint32_t out = 0;
  for (uint32_t word = 0; word < begins_.size(); ++word) {
    const Symbol* s = symbols_.data() + begins_[word];
    begins_[word] = out;
    for (; *s != kEnd; ++s) symbols_[out++] = *s;
    symbols_[out++] = kEnd;
  }
  symbols_.resize(out);
  symbols_.shrink_to_fit();
  live_cells_ = out;
}

template class CompactLearner<uint16_t>;
template class CompactLearner<uint32_t>;

}  // namespace lowtide
