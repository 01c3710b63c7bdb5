// Learn byte-pair merges from counted pieces.
//
// In:      distinct pieces with their counts
// Out:     merges, one after the other, exactly as the chosen rule orders them
// Memory:  about 8 bytes per byte of distinct text for symbols and pairs (less as merging goes on), 4
//          per word a pair occurs in, 32 per distinct pair; in files under `file_dir` where that does
//          not fit the budget
//
// Pieces lie one after the other in a flat array of symbols. Beside each symbol stands the index of
// the pair it forms with the next one, so that taking an occurrence away is one subtraction, without
// a hash table. A pair (x, y) gets all its occurrences in the one step that makes the younger of x
// and y; so a step finds the indices of its new pairs in two small arrays addressed by the neighbour,
// and afterwards a pair's count only falls. That makes the queue simple: an entry that is too high is
// put back with its present count, and pairs below a threshold stay out of the queue altogether until
// the threshold is lowered and one pass over the counts finds them.
//
// Two different pairs can spell the same token ("a" + "aa", "aa" + "a"). Both rules take the second
// one for the first one's token, so a pair can gain occurrences after all: it then gets a second
// entry. Hugging Face's trainer merges each entry by itself and never takes a merged pair's count
// back; cs336's rule counts afresh each time. Rare as it is, each is followed to the letter.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "mapped_array.hpp"
#include "merger_tokens.hpp"

namespace lowtide {

class MergeLearner {
 public:
  // `resident_limit`: with `file_dir`, pages are let go when the process grows beyond it.
  MergeLearner(TieBreak tie_break, const std::string& file_dir, size_t resident_limit);

  void add_piece(const uint8_t* bytes, size_t length, uint64_t count);
  void build();  // after the last piece, before the first merge
  // Learns until there are `target` tokens beside the bytes (kCs336: merges), or `max_merges` more
  // merges, or no pair occurs `min_frequency` times. Returns true if more could be learned.
  bool learn(size_t target, size_t max_merges, int64_t min_frequency);

  const std::vector<Merge>& merges() const { return tokens_.merges(); }
  size_t merges_done() const { return merges_done_.load(std::memory_order_relaxed); }
  size_t num_words() const { return num_words_.load(std::memory_order_relaxed); }
  size_t bytes() const;

 private:
  struct Word {
    uint64_t begin;
    uint64_t count;
    uint32_t length;
  };
  struct Symbol {
    uint32_t id;
    uint32_t pair;  // the index of (this, next); kNoPair at the end of a word
  };
  struct Pair {
    uint64_t postings;  // where its words begin
    uint32_t num_words;
    uint32_t left, right;
  };
  struct Candidate {
    int64_t count;
    uint64_t order;  // left and right in the order of ids; unused by kCs336
    uint32_t pair;
  };
  struct NewPosting {
    uint32_t pair, word;
  };
  static constexpr uint32_t kNoPair = 0xFFFFFFFF;
  struct Seen {  // a pair of the token being made
    uint32_t stamp = 0;
    uint32_t entry = kNoPair;  // made in this step
    uint32_t first = kNoPair;  // whose count it shares; itself but for a token made again
  };

  bool before(const Candidate& a, const Candidate& b) const;
  void push(uint32_t pair);
  bool refill(int64_t min_frequency);
  bool pop_best(int64_t min_frequency, uint32_t& pair);
  void merge(uint32_t pair);
  void merge_in_words(const Pair& entry, uint32_t pair, uint32_t token);
  void merge_in_word(uint32_t word, uint32_t pair, uint32_t token);
  uint32_t add_occurrence(uint32_t left, uint32_t right, uint32_t token, uint32_t word,
                          int64_t count);
  Seen& seen(uint32_t left, uint32_t right, uint32_t token);
  void find_existing_pairs(uint32_t token);
  void place_new_postings();
  uint32_t first_entry(uint32_t pair) const;
  std::vector<uint32_t> entries_of(uint32_t pair) const;
  void compact_postings();
  void compact_symbols();
  void release_if_large();

  const TieBreak tie_break_;
  const size_t resident_limit_;
  const bool in_files_;
  MappedArray<Word> words_;
  MappedArray<Symbol> symbols_;
  MappedArray<int64_t> counts_;  // by pair; see count_of_
  MappedArray<Pair> pairs_;
  MappedArray<uint32_t> postings_;
  std::vector<Candidate> queue_;
  int64_t threshold_ = 0;
  std::unordered_map<uint32_t, uint32_t> first_entry_;  // of a later entry: whose count it shares
  TokenTable tokens_;
  std::vector<Seen> with_left_, with_right_;  // by neighbour, valid where the stamp is this step's
  uint32_t stamp_ = 0;
  uint32_t first_new_ = 0;
  std::vector<NewPosting> new_postings_;
  std::vector<uint32_t> last_word_;  // by new entry: the word of its latest posting
  size_t dead_postings_ = 0;
  size_t live_symbols_ = 0;
  size_t visits_ = 0;
  bool is_built_ = false;
  std::atomic<size_t> merges_done_{0}, num_words_{0};  // read by progress meanwhile
};

}  // namespace lowtide
