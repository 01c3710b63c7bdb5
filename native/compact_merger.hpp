// Learn byte-pair merges in little memory: the same merges as MergeLearner, from a tenth of the bytes.
//
// In:      distinct pieces with their counts
// Out:     merges, one after the other, exactly as the chosen rule orders them
// Memory:  2 bytes per byte of distinct text (4 where the vocabulary exceeds 16 bits) and 7 per piece,
//          less as merging goes on; what is left of `memory_bytes` holds pairs and their words
//
// Only symbols are kept. A pair has a count and a list of its words while it is near the top: when
// the queue runs dry, all pairs are counted afresh in one pass over the symbols (in several, by hash,
// where the table would be too large), the most frequent that fit are taken, and a second pass lists
// their words. Pairs below the threshold are not followed at all. That is exact, because a pair's
// count only falls after the step that made it, so what was below stays below.
//
// The exception are tokens that are made a second time, by another pair that spells them. Pairs they
// gain occurrences in are looked up in the whole text. By Hugging Face's rule such a pair has several
// entries that share a count, each with its own words, and a merged pair's count is never taken back:
// these few are followed for good.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "mapped_array.hpp"
#include "merger_tokens.hpp"

namespace lowtide {

// A hash table from pairs of symbols to values, by open addressing; values start at zero.
template <typename Value>
class PairTable {
 public:
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  explicit PairTable(size_t slots = 64) { reset(slots); }
  void reset(size_t slots);  // a power of two
  Value* find(uint64_t key);
  Value& at(uint64_t key);  // grows as needed
  void prefetch(uint64_t key) const {
    __builtin_prefetch(&slots_[static_cast<size_t>(hash(key) >> shift_)], 1);
  }
  size_t size() const { return size_; }
  const std::vector<Slot>& slots() const { return slots_; }
  static uint64_t hash(uint64_t key) { return key * 0x9E3779B97F4A7C15; }

 private:
  Slot& slot(uint64_t key);
  std::vector<Slot> slots_;
  size_t size_ = 0;
  int shift_ = 58;
};

template <typename Symbol>
class CompactLearner {
 public:
  CompactLearner(TieBreak tie_break, size_t memory_bytes);

  void add_piece(const uint8_t* bytes, size_t length, uint64_t count);
  void build() {}
  // As MergeLearner::learn.
  bool learn(size_t target, size_t max_merges, int64_t min_frequency);

  const std::vector<Merge>& merges() const { return tokens_.merges(); }
  size_t merges_done() const { return merges_done_.load(std::memory_order_relaxed); }
  size_t num_words() const { return num_words_.load(std::memory_order_relaxed); }

 private:
  static constexpr Symbol kEnd =
      static_cast<Symbol>(-1);  // fills a word's cells behind its symbols
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr uint64_t kEverywhere = ~uint64_t{0};  // no list of words: look at all of them

  struct Entry {
    uint32_t left, right;
    uint32_t first;     // the entry whose count it shares; itself but for a pair made again
    uint32_t own;       // its words, where they are followed for good; kNone: in postings_
    uint64_t postings;  // where its words begin there, or kEverywhere
    uint32_t num_words;
    bool is_kept;  // followed for good
    int64_t count;
  };
  struct Counted {
    int64_t count = 0;
    uint32_t occurrences = 0;
  };
  struct Candidate {
    uint64_t key;
    Counted counted;
  };
  struct Queued {
    int64_t count;
    uint32_t entry;
  };
  struct Gained {  // a pair of the token being made
    uint32_t left, right;
    int64_t count = 0;
    uint32_t num_words = 0;
    uint32_t last_word = kNone;
  };
  struct Seen {
    uint32_t stamp = 0;
    uint32_t gained = 0;
  };
  struct NewPosting {
    uint32_t gained, word;
  };

  static uint64_t key_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  uint64_t weight(uint32_t word) const;
  size_t free_bytes() const;
  template <typename Visit>
  void for_each_pair(Visit visit) const;

  bool refill(int64_t min_frequency);
  void retire_entries();
  std::vector<Candidate> count_pairs(int64_t& floor, int64_t& largest);
  void count_into(PairTable<Counted>& table, size_t part);
  void take_candidates(std::vector<Candidate> candidates, int64_t floor);
  void list_words();
  void push(uint32_t entry);
  bool comes_later(const Queued& a, const Queued& b) const;
  bool pop_best(int64_t min_frequency, uint32_t& entry);

  void merge(uint32_t entry);
  void merge_words(const Entry& entry, uint32_t token, bool known);
  void merge_in_word(uint32_t word, uint32_t left, uint32_t right, uint32_t token, bool known);
  void take_away(uint32_t left, uint32_t right, int64_t count);
  void add(uint32_t left, uint32_t right, uint32_t token, uint32_t word, int64_t count);
  void note_pairs_before(const Symbol* symbols, uint32_t word, uint32_t token);
  void place_gained(uint32_t token, bool known);
  uint32_t add_entry(const Gained& gained, int64_t count);
  std::vector<uint32_t> words_of_entry(const Entry& entry) const;
  void keep(uint32_t entry, std::vector<uint32_t> words);
  void join_existing(uint32_t token);
  void join_tracked(uint32_t first, const Gained& gained, std::vector<uint32_t> words);
  void join_untracked(const std::vector<uint32_t>& gained,
                      std::vector<std::vector<uint32_t>>& words_of, uint32_t token);
  void compact_symbols();

  const TieBreak tie_break_;
  const size_t memory_bytes_;
  TokenTable tokens_;
  MappedArray<Symbol> symbols_;
  MappedArray<uint32_t> begins_;
  MappedArray<uint8_t> small_counts_;  // 255: in large_counts_
  std::unordered_map<uint32_t, uint64_t> large_counts_;
  size_t live_cells_ = 0;

  std::vector<Entry> entries_;
  PairTable<uint32_t> index_;  // of the first entry of each pair that is followed, plus one
  MappedArray<uint32_t> postings_;
  std::vector<std::vector<uint32_t>> own_words_;
  std::unordered_map<uint64_t, int64_t> merged_counts_;  // by Hugging Face's rule never taken back
  std::vector<Queued> queue_;
  int64_t threshold_;
  size_t partitions_ = 1;

  std::vector<Seen> with_left_, with_right_;  // by neighbour, valid where the stamp is this step's
  uint32_t stamp_ = 0;
  std::vector<Gained> gained_;
  std::vector<NewPosting> new_postings_;
  bool notes_words_ = true;  // of the pairs of this step, for new_postings_
  std::vector<std::pair<uint64_t, uint32_t>> before_;  // pairs of a known token, by word, before it
  std::atomic<size_t> merges_done_{0}, num_words_{0};  // read by progress meanwhile
};

}  // namespace lowtide
