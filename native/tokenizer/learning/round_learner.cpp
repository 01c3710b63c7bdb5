#include "tokenizer/learning/round_learner.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "tokenizer/learning/pair_ranking.hpp"

namespace lowtide {

namespace {
// A quarter of the memory is for the sketch; the rest for segments and the learner of a round.
constexpr size_t kSketchPart = 4;
constexpr size_t kMostBuckets = size_t{1} << 27;
constexpr size_t kMostParts = 32;     // with this many parts, the bits take as much as the sums
constexpr size_t kSymbolBytes = 28;   // per symbol of a segment, in the table and the learner
constexpr size_t kSegmentBytes = 64;  // more per segment
constexpr size_t kSegmentSymbols = 3;
constexpr size_t kMostSegments = size_t{1} << 28;
constexpr int64_t kDepth = 16;  // a round tries to lower the last threshold by this factor
constexpr size_t kBarrenRounds = 8;
constexpr size_t kMergesAtOnce = 4;
constexpr size_t kFewSegments = 4;   // of those that fit: the rest of the learner is tables
constexpr size_t kRankedBytes = 64;  // per pair that is counted exactly

struct TooSmall : std::bad_alloc {
  const char* what() const noexcept override {
    return "the memory is too small to learn merges from these pieces";
  }
};

size_t buckets_in(size_t memory_bytes) {
  return std::clamp<size_t>(memory_bytes / kSketchPart / sizeof(uint32_t), 64, kMostBuckets);
}

size_t segments_in(size_t memory_bytes) {
  const size_t room = memory_bytes - memory_bytes / kSketchPart;
  return std::clamp<size_t>(room / (kSegmentBytes + kSegmentSymbols * kSymbolBytes), 16,
                            kMostSegments);
}
}  // namespace

template <typename Symbol>
RoundLearner<Symbol>::RoundLearner(TieBreak tie_break, const std::string& file_dir,
                                   size_t memory_bytes, size_t longest_token)
    : tokens_(std::make_shared<TokenTable>(tie_break, longest_token)),
      memory_bytes_(memory_bytes),
      words_(file_dir),
      sketch_(buckets_in(memory_bytes)) {}

template <typename Symbol>
void RoundLearner<Symbol>::add_piece(const uint8_t* bytes, size_t length, uint64_t count) {
  if (rounds_ > 0) throw std::logic_error("pieces come before the first merge");
  if (length < 2) return;
  words_.begin_word(count);
  uint32_t last = 0;
  for (size_t i = 0; i < length; ++i) {
    const uint32_t symbol = tokens_->symbol_of(bytes[i]);
    if (i > 0) sketch_.add(last, symbol, count);
    words_.put(static_cast<Symbol>(symbol));
    last = symbol;
  }
  words_.end_word();
  num_words_.fetch_add(1, std::memory_order_relaxed);
}

template <typename Symbol>
bool RoundLearner<Symbol>::learn(size_t target, size_t max_merges, int64_t min_frequency) {
  min_frequency = std::max<int64_t>(1, min_frequency);
  if (merges().size() >= target || is_done_ || num_words() == 0) return false;
  if (learner_ == nullptr) begin_round(min_frequency);
  const size_t most = static_cast<size_t>(kEnd) - std::min<size_t>(tokens_->size(), kEnd);
  if (most == 0) throw std::runtime_error("more tokens than symbols can tell apart");
  // A few at a time: if there are few letters, each merge changes much of the text, and the
  // learner's memory grows quickly.
  size_t left = takes_one_ ? 1 : std::min(max_merges, most);
  bool more = true, has_room = true;
  while (more && has_room && left > 0) {
    const size_t step = std::min(left, kMergesAtOnce);
    more = learner_->learn(target, step, threshold_);
    has_room = learner_->text_bytes() < memory_bytes_ / 2;
    left -= step;
    merges_done_.store(merges().size(), std::memory_order_relaxed);
  }
  if (merges().size() >= target) return false;
  if (more && has_room && !takes_one_) return true;
  if (!more && !stop_ && threshold_ <= min_frequency) {
    is_done_ = true;
    return false;
  }
  if (!more) ceiling_ = stop_ ? threshold_ + 1 : threshold_;
  end_round();
  return true;
}

template <typename Symbol>
void RoundLearner<Symbol>::begin_round(int64_t min_frequency) {
  ++rounds_;
  merges_before_ = merges().size();
  words_.flush();
  sketch_.flush();
  if (ceiling_ == 0) ceiling_ = int64_t{sketch_.largest()} + 1;
  threshold_ = lowest_ = std::max(min_frequency, told_ceiling() / kDepth);
  do {
    while (!collect()) continue;
  } while (!make_learner());
}

// Makes the learner of the segments. One with hardly any room at the start would end the round
// after a few merges: then fewer segments are used. False: as for collect().
template <typename Symbol>
bool RoundLearner<Symbol>::make_learner() {
  while (true) {
    learner_ = std::make_unique<MergeLearner<Symbol>>(tokens_);
    if (stop_) learner_->stop_at(*stop_);
    for (size_t number = 0; number < table_->size(); ++number) {
      const std::span<const Symbol> symbols = table_->segment(number);
      learner_->add_word(symbols.data(), symbols.size(), table_->count(number));
    }
    learner_->build();
    const bool has_room = learner_->full_text_bytes() < memory_bytes_ / 8 * 3;
    const bool has_few = table_->size() < segments_in(memory_bytes_) / kFewSegments;
    if (has_room || has_few || (is_ranked_ && num_linked_ <= 1)) return true;
    learner_ = nullptr;
    if (!raise_threshold()) return false;
  }
}

// An upper bound of all pairs' counts that the sketch can represent: higher thresholds link the
// same pairs.
template <typename Symbol>
int64_t RoundLearner<Symbol>::told_ceiling() const {
  return std::min(ceiling_, int64_t{PairSketch::kMost} + 1);
}

template <typename Symbol>
bool RoundLearner<Symbol>::collect() {
  const size_t most_segments = segments_in(memory_bytes_);
  table_ = nullptr;  // freed first: both would need twice the memory
  table_ = std::make_unique<SegmentTable<Symbol>>(kSegmentSymbols * most_segments, most_segments);
  find_links();
  SegmentReader<Symbol> reader(words_, *links_);
  bool reads_on = true;
  while (reader.next(reads_on)) {
    const int64_t threshold = threshold_;
    for (const auto& item : reader.items()) table_->prefetch(item.hash);
    for (const auto& item : reader.items()) {
      if (item.length < 2) continue;
      const std::span<const Symbol> symbols(reader.units() + item.begin, item.length);
      const bool is_added =
          threshold_ == threshold ? add(symbols, item.count) : cut_and_add(symbols, item.count);
      if (!is_added) return false;
    }
    // A segment whose end is not read yet may already be too long: then it is cut first.
    reads_on = table_->fits(reader.num_waiting());
    if (!reads_on && !raise_threshold()) return false;
    if (threshold_ != threshold) reader.find_links_again();
  }
  return true;
}

// Adds a segment that is cut at the current threshold, and cut again if making room raises it.
template <typename Symbol>
bool RoundLearner<Symbol>::add(std::span<const Symbol> symbols, uint64_t count) {
  const int64_t threshold = threshold_;
  if (!make_room(symbols.size())) return false;
  if (threshold_ != threshold) return cut_and_add(symbols, count);
  table_->add(symbols.data(), symbols.size(), count);
  return true;
}

template <typename Symbol>
bool RoundLearner<Symbol>::cut_and_add(std::span<const Symbol> symbols, uint64_t count) {
  bool has_room = true;
  cut_segment(symbols, *links_,
              [&](std::span<const Symbol> part) { has_room = has_room && add(part, count); });
  return has_room;
}

template <typename Symbol>
bool RoundLearner<Symbol>::make_room(size_t length) {
  while (!table_->fits(length)) {
    if (!raise_threshold()) return false;
  }
  return true;
}

// Raises the threshold and cuts the existing segments. If almost nothing would be left to merge,
// because rare pairs share buckets, the number of buckets is increased instead.
template <typename Symbol>
bool RoundLearner<Symbol>::raise_threshold() {
  if (is_ranked_) return link_fewer();
  const int64_t ceiling = told_ceiling();
  const bool can_grow = sketch_.mean() > ceiling / 8 && parts_ < kMostParts;
  const bool is_last = threshold_ + 1 >= ceiling;
  if (is_last && !can_grow) {
    rank_pairs();
    return false;
  }
  int64_t raised = threshold_ + (ceiling - threshold_) / 3;
  if (parts_ == 1 && !table_->fits(1)) {  // full, not just before a very long segment
    const auto [low, largest] = table_->low_bound(sketch_);
    raised = std::min<int64_t>(int64_t{low} + 1, largest);
  }
  if (!is_last) threshold_ = std::clamp(raised, threshold_ + 1, ceiling - 1);
  if (can_grow && (is_last || threshold_ > ceiling / 4 * 3)) {
    threshold_ = lowest_;
    parts_ = parts_ == 1 ? 8 : kMostParts;
    sketch_.clear(rounds_, parts_, parts_);  // none of them counted yet
    return false;
  }
  find_links();
  table_->cut(*links_);
  return true;
}

// Counts the pairs near the top exactly and links the first of them. If there are too many to
// count, only those with the highest possible count are searched.
template <typename Symbol>
void RoundLearner<Symbol>::rank_pairs() {
  table_ = nullptr;
  if (ceiling_ > PairSketch::kMost) count_ceiling();
  threshold_ = std::max(lowest_, ceiling_ / 2);
  std::optional<PairCount> first, dropped;
  while (true) {
    dropped = count_ranked(first);
    if (dropped && threshold_ + 1 < ceiling_) {
      threshold_ += std::max<int64_t>(1, (ceiling_ - threshold_) / 2);
      if (threshold_ > PairSketch::kMost) threshold_ = ceiling_ - 1;  // all others link the same
      continue;
    }
    if (!ranked_.empty() || !dropped) break;
    first = dropped;  // no pair before it is as frequent as its bound
  }
  is_ranked_ = true;
  num_linked_ = ranked_.size();
  if (ranked_.empty()) return;
  ceiling_ = ranked_.front().count + 1;
  if (dropped) {
    ranked_.push_back({threshold_, dropped->left, dropped->right});
    link_first(num_linked_);
  }
}

// Counts the pairs that may reach the threshold from `first` on, and ranks those that do. Returns
// the first pair that does not fit the memory, if any.
template <typename Symbol>
std::optional<PairCount> RoundLearner<Symbol>::count_ranked(const std::optional<PairCount>& first) {
  find_links();
  const size_t most = std::max<size_t>(memory_bytes_ / kSketchPart / kRankedBytes, 16);
  PairRanking ranking(*tokens_, most);
  if (first) ranking.skip_before(*first);
  count_linked_pairs(words_, *links_, *tokens_, ranking);
  ranked_ = ranking.ranked(threshold_);
  return ranking.dropped();
}

// Finds the count of the most frequent pair, if it exceeds the 32-bit bounds.
template <typename Symbol>
void RoundLearner<Symbol>::count_ceiling() {
  threshold_ = ceiling_ = PairSketch::kMost;
  std::optional<PairCount> next;
  do {
    next = count_ranked(next);
    if (!ranked_.empty()) ceiling_ = std::max(ceiling_, ranked_.front().count + 1);
  } while (next);
}

template <typename Symbol>
bool RoundLearner<Symbol>::link_fewer() {
  if (num_linked_ <= 1) throw TooSmall();
  link_first(num_linked_ / 2);
  find_links();
  table_->cut(*links_);
  return true;
}

// Links `most` pairs or fewer; the header explains what makes a round exact.
template <typename Symbol>
void RoundLearner<Symbol>::link_first(size_t most) {
  num_linked_ = most;
  threshold_ = ranked_[most].count;
  if (tokens_->tie_break() == TieBreak::kHuggingFace) {
    stop_ = ranked_[most];
    return;
  }
  while (num_linked_ > 0 && ranked_[num_linked_ - 1].count == threshold_) --num_linked_;
  ++threshold_;
  if (num_linked_ == 0) {
    num_linked_ = 1;
    threshold_ = ranked_.front().count;
    takes_one_ = true;
  }
}

template <typename Symbol>
void RoundLearner<Symbol>::find_links() {
  if (is_ranked_) {
    links_.emplace(sketch_.places());
    for (size_t i = 0; i < num_linked_; ++i) links_->link(ranked_[i].left, ranked_[i].right);
    return;
  }
  const auto least = static_cast<uint32_t>(std::min<int64_t>(threshold_, PairSketch::kMost));
  links_.emplace(sketch_.places());
  const size_t counted = sketch_.part();
  if (counted < parts_) sketch_.find_links(least, *links_);
  for (size_t part = 0; part < parts_; ++part) {
    if (part == counted) continue;
    count_part(part);
    sketch_.find_links(least, *links_);
  }
}

template <typename Symbol>
void RoundLearner<Symbol>::count_part(size_t part) {
  sketch_.clear(rounds_, parts_, part);
  const PairLinks none(sketch_.places());
  SegmentReader<Symbol> reader(words_, none);
  const bool all_merge = tokens_->all_can_merge();
  uint32_t last = 0;
  while (reader.next()) {
    for (const auto& item : reader.items()) {
      const uint32_t symbol = reader.units()[item.begin];
      if (!item.begins_word && (all_merge || tokens_->can_merge(last, symbol))) {
        sketch_.add(last, symbol, item.count);
      }
      last = symbol;
    }
  }
  sketch_.flush();
}

template <typename Symbol>
void RoundLearner<Symbol>::end_round() {
  barren_rounds_ = merges().size() == merges_before_ ? barren_rounds_ + 1 : 0;
  if (barren_rounds_ > kBarrenRounds) throw TooSmall();
  uint32_t word = 0;
  table_->set_results([&](size_t length, const auto& take) {
    word = learner_->for_each_symbol(word, length, take);
  });
  learner_ = nullptr;
  replace();
  table_ = nullptr;
  is_ranked_ = takes_one_ = false;
  ranked_.clear();
  stop_.reset();
}

template <typename Symbol>
void RoundLearner<Symbol>::replace() {
  sketch_.clear(rounds_ + 1, parts_, 0);
  words_.rewind();
  SegmentReader<Symbol> reader(words_, *links_);
  const bool all_merge = tokens_->all_can_merge();
  uint32_t last = kEnd;
  std::vector<const Symbol*> results;
  while (reader.next()) {
    const auto& items = reader.items();
    for (const auto& item : items) table_->prefetch(item.hash);
    results.assign(items.size(), nullptr);
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].length < 2) continue;
      results[i] = table_->result(reader.units() + items[i].begin, items[i].length, items[i].hash);
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const auto put = [&](Symbol symbol) {
        if (last != kEnd && (all_merge || tokens_->can_merge(last, symbol))) {
          sketch_.add(last, symbol, items[i].count);
        }
        words_.put(symbol);
        last = symbol;
      };
      if (items[i].begins_word) {
        words_.begin_word(items[i].count);
        last = kEnd;
      }
      if (results[i] == nullptr) {
        put(reader.units()[items[i].begin]);
      } else {
        for (const Symbol* symbol = results[i]; *symbol != kEnd; ++symbol) put(*symbol);
      }
      if (items[i].ends_word) words_.end_word();
    }
  }
  words_.cut();
}

template class RoundLearner<uint16_t>;
template class RoundLearner<uint32_t>;

}  // namespace lowtide
