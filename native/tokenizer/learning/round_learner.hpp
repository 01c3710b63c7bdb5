// Learn byte-pair merges in a fixed amount of memory, however many distinct pieces there are: the same
// merges as MergeLearner, from words in a file.
//
// In:      distinct pieces with their counts
// Out:     merges, one after the other, exactly as the chosen rule orders them
// Memory:  `memory_bytes`, whatever the text; 2 bytes of file for each byte of distinct text (4 where
//          the vocabulary exceeds 16 bits) and 4 for each piece, less as merging goes on
//
// Merges are learned in rounds, each of which goes down to a threshold: the round makes all merges
// whose pair occurs at least so often. A pair that is rarer will not be merged in the round, nor will
// any pair across the same place between two symbols, for it cannot be more frequent. So the words can
// be cut there. What is left of them are segments, and the more there are, the more often they are the
// same: each distinct segment is held once, with the sum of the counts of its words. On these few
// MergeLearner makes the round's merges, many thousand at once, with counts that are exact for every
// pair above the threshold. Then every segment in the file is replaced by what it has become, and the
// next round goes deeper. The threshold is as low as memory allows: when the segments do not fit, it
// is raised, and the segments that are there already are cut once more.
//
// Where the pairs at the top have the same counts, such as those of digits in numbers that are counted
// up, no threshold is high enough. Then the pairs near the top are counted exactly, and only the first
// of them in the order of merging are linked, half as many each time the segments do not fit, down to
// one. The round ends before the first one that is not linked. A pair that a merge makes across a cut
// is no more frequent than the one that was cut there; of the same count, it comes later by the rule of
// Hugging Face, because its token is the youngest. By the rule of cs336 it may come earlier: then pairs
// of the same count are linked all together, or one is, and merged by itself.
//
// Nor is anything ever merged across a pair that would make too long a token: it is not counted, and
// words are cut there.
//
// Whether a pair reaches the threshold is read from a sketch of counts, which may say too much, never
// too little: too much leaves a segment longer than it had to be, and changes nothing else. A round
// takes two passes over the file, one to collect segments and one to replace them and to count the
// pairs that come of it; both read and write in order, so that the disk and its cache are no burden.
//
// Words in mapped files, visited merge by merge, spent most of the time in page faults; lists of words
// for the pairs near the top, with the symbols in memory, did not bound memory.
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
  // As MergeLearner::learn.
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
  bool collect();  // false: from the beginning, with another threshold or more parts
  bool add(std::span<const Symbol> symbols, uint64_t count);
  bool cut_and_add(std::span<const Symbol> symbols, uint64_t count);
  bool make_room(size_t length);
  bool raise_threshold();
  void rank_pairs();
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
  size_t parts_ = 1;                // that it is made in
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
