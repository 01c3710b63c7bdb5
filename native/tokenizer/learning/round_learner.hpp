// Learn byte-pair merges in a fixed amount of memory, however many distinct pieces there are: the same
// merges as MergeLearner, from words in a file.
//
// In:      distinct pieces with their counts
// Out:     merges, one after the other, exactly as the chosen rule orders them
// Memory:  `memory_bytes`, whatever the text; 2 bytes of file for each byte of distinct text (4 where
//          the vocabulary exceeds 16 bits) and 4 for each piece, less as merging goes on
//
// Merges are learned in rounds, each with a threshold: the round makes all merges whose pair occurs at
// least that often. A rarer pair will not be merged in the round, nor will any later pair across the
// same border between two symbols, because it cannot be more frequent. So words can be cut at such
// borders. The parts are called segments, and the shorter they are, the more often they repeat: each
// distinct segment is stored once, with the sum of the counts of its words. On these MergeLearner makes
// the round's merges, many thousand at once, with exact counts for every pair above the threshold.
// Then every segment in the file is replaced by its merged form, and the next round has a lower
// threshold. The threshold is as low as memory allows: when the segments do not fit, it is raised, and
// the segments collected so far are cut again.
//
// If the most frequent pairs have equal counts, such as those of digits in consecutive numbers, no
// threshold is high enough. Then the pairs near the top are counted exactly, and only the first of them
// in the order of merging are linked (not cut), half as many each time the segments do not fit, down to
// one. The round ends before the first pair that is not linked. A new pair that a merge makes across a
// cut is no more frequent than the pair that was cut there; with the same count, it comes later by
// Hugging Face's rule, because its token is the youngest. By the rule of cs336 it may come earlier: then
// either all pairs of the same count are linked, or a single one, which is merged by itself.
//
// A pair that would make too long a token is never merged either: it is not counted, and words are cut
// there.
//
// Whether a pair reaches the threshold is decided by a sketch of counts, which may overestimate but
// never underestimates: an overestimate only leaves a segment longer than necessary. A round takes two
// passes over the file, one to collect segments and one to replace them and count the new pairs; both
// read and write sequentially, which is cheap for the disk and its cache.
//
// Tried and rejected: words in memory-mapped files, visited merge by merge, spent most of the time in
// page faults; lists of words for the pairs near the top, with the symbols in memory, did not bound
// memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/learning/merger.hpp"
#include "tokenizer/learning/segments.hpp"

namespace lowtide {

template <typename Symbol>
class RoundLearner {
 public:
  RoundLearner(TieBreak tie_break, const std::string& file_dir, size_t memory_bytes,
               size_t longest_token = kAnyLength);

  void add_piece(const uint8_t* bytes, size_t length, uint64_t count);
  void build() {}
  // Like MergeLearner::learn.
  bool learn(size_t target, size_t max_merges, int64_t min_frequency);

  const std::vector<Merge>& merges() const { return tokens_->merges(); }
  size_t merges_done() const { return merges_done_.load(std::memory_order_relaxed); }
  size_t num_words() const { return num_words_.load(std::memory_order_relaxed); }
  size_t rounds() const { return rounds_; }
  size_t parts() const { return parts_; }
  uint64_t file_bytes() const { return words_.bytes(); }

 private:
  static constexpr Symbol kEnd = WordFile<Symbol>::kEnd;

  void begin_round(int64_t min_frequency);
  int64_t told_ceiling() const;
  bool collect();  // false: start again, with another threshold or more parts
  bool make_learner();
  bool add(std::span<const Symbol> symbols, uint64_t count);
  bool cut_and_add(std::span<const Symbol> symbols, uint64_t count);
  bool make_room(size_t length);
  bool raise_threshold();
  void rank_pairs();
  std::optional<PairCount> count_ranked(const std::optional<PairCount>& first);
  void count_ceiling();
  bool link_fewer();
  void link_first(size_t most);
  void find_links();
  void count_part(size_t part);
  void end_round();
  void replace();

  const std::shared_ptr<TokenTable> tokens_;
  const size_t memory_bytes_;
  WordFile<Symbol> words_;
  PairSketch sketch_;               // of the pairs in words_
  size_t parts_ = 1;                // in which it is computed
  std::optional<PairLinks> links_;  // the pairs that may reach the threshold
  bool is_ranked_ = false;          // links_ are the first of ranked_
  std::vector<PairCount> ranked_;   // the pairs near the top, in the order of merging
  size_t num_linked_ = 0;           // of ranked_
  std::optional<PairCount> stop_;   // the round ends before this pair
  bool takes_one_ = false;          // the round ends after one merge
  int64_t threshold_ = 0;           // of this round
  int64_t lowest_ = 0;              // that this round tries
  int64_t ceiling_ = 0;             // all pairs are below it; 0: not known yet
  std::unique_ptr<SegmentTable<Symbol>> table_;
  std::unique_ptr<MergeLearner<Symbol>> learner_;  // of this round
  size_t merges_before_ = 0, barren_rounds_ = 0, rounds_ = 0;
  bool is_done_ = false;
  std::atomic<size_t> merges_done_{0}, num_words_{0};  // read by progress meanwhile
};

}  // namespace lowtide
