// Learn byte-pair merges from counted words.
//
// In:      distinct words (pieces of text, or sequences of tokens already made) with their counts
// Out:     merges, one after the other, exactly as the chosen rule orders them
// Memory:  about 8 bytes per symbol for symbols and pairs (less as merging goes on), 4 per word a
//          pair occurs in, 32 per distinct pair
//
// Words lie one after the other in a flat array of symbols. Beside each symbol stands the index of
// the pair it forms with the next one, so that taking an occurrence away is one subtraction, without
// a hash table. A pair (x, y) gets all its occurrences in the one step that makes the younger of x
// and y; so a step finds the indices of its new pairs in two small arrays addressed by the neighbour,
// and afterwards a pair's count only falls. That makes the queue simple: an entry that is too high is
// put back with its present count, and pairs below a threshold stay out of the queue altogether until
// the threshold is lowered and one pass over the counts finds them.
//
// No token is made twice, by two pairs that spell the same ("a" + "aa", "aa" + "a"). Take a stretch of
// a word with a border between tokens at both of its ends. No merge so far crossed these borders, so
// its tokens are those that the merges so far make of the stretch alone, and depend on nothing but its
// bytes. Hence in the step in which a stretch first becomes one token, every stretch of the same bytes
// does, and no other pair that spells it is left anywhere. For the same reason a merged pair is gone
// for good, and the rules of Hugging Face and cs336, which count a merged pair differently, differ in
// how they break ties only.
//
// The first merges are in tens of thousands of words each: half of the time goes to a twentieth of
// the merges. Several threads divide the words of such a pair (merge_part.hpp). Pairs then get their
// numbers in another order, on which nothing depends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "system/mapped_array.hpp"
#include "tokenizer/learning/count_shard.hpp"
#include "tokenizer/learning/merge_part.hpp"
#include "tokenizer/learning/merger_tokens.hpp"

namespace lowtide {

class MergeLearner {
 public:
  // Pairs in `many_words` and more are merged by `num_threads`.
  explicit MergeLearner(std::shared_ptr<TokenTable> tokens, size_t num_threads = 1,
                        size_t many_words = kManyWords)
      : tokens_(std::move(tokens)), num_threads_(num_threads), many_words_(many_words) {}
  static constexpr size_t kManyWords = 8192;
  // Some 0.2 ms of work. Threads that slept between merges of 4,096 took 0.57 s for what one did in
  // 0.38 (16 cores of a Xeon): waking them took longer than the work. Eight that look out for merges
  // of 2,048 took 0.61 s (one 0.59 and 0.77), for merges of 8,192 0.44 and 0.48 (one 0.69).

  void add_piece(const uint8_t* bytes, size_t length, uint64_t count);
  template <typename Id>
  void add_word(const Id* symbols, size_t length, uint64_t count) {
    begin_word(length, count);
    for (size_t i = 0; i < length; ++i) {
      symbols_.push_back({static_cast<uint32_t>(symbols[i]), kNoPair});
    }
  }
  void add_tables(std::span<const CountShard* const> tables);  // all their pieces, by all threads
  void build();  // after the last word, before the first merge
  // Learns until there are `target` tokens beside the bytes, or `max_merges` more merges, or no pair
  // occurs `min_frequency` times. Returns true if more could be learned.
  bool learn(size_t target, size_t max_merges, int64_t min_frequency);
  // Only pairs that come before this one are merged from now on.
  void stop_at(const PairCount& pair) { stop_at_ = pair; }

  const std::vector<Merge>& merges() const { return tokens_->merges(); }
  size_t merges_done() const { return merges_done_.load(std::memory_order_relaxed); }
  size_t num_words() const { return num_words_.load(std::memory_order_relaxed); }
  size_t bytes() const;
  size_t num_threads() const { return num_threads_; }
  // Calls visit(symbol) for what the word with this number has become.
  template <typename Visit>
  void for_each_symbol(size_t word, const Visit& visit) const {
    const Word& at = words_[word];
    for (size_t i = 0; i < at.length; ++i) visit(symbols_[at.begin + i].id);
  }

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
    uint64_t postings;   // where its words begin
    uint32_t num_words;  // 0: merged
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
  struct Seen {  // a pair of the token being made
    uint32_t stamp = 0;
    uint32_t pair = 0;
  };
  static constexpr uint32_t kNoPair = 0xFFFFFFFF;

  void begin_word(size_t length, uint64_t count);
  void find_pairs();
  void list_words();
  void find_pairs_together();
  uint32_t add_pair(uint32_t left, uint32_t right);
  bool before(const Candidate& a, const Candidate& b) const;
  void push(uint32_t pair);
  bool refill(int64_t min_frequency);
  bool pop_best(int64_t min_frequency, uint32_t& pair);
  void merge(uint32_t pair);
  struct Alone;   // changes counts as it goes
  struct Shared;  // leaves them to a part
  template <typename Changes>
  void merge_in_words(Changes& changes, const Pair& entry, uint32_t pair, uint32_t begin,
                      uint32_t end);
  template <typename Changes>
  void merge_in_word(Changes& changes, uint32_t word, uint32_t pair);
  uint32_t find_new_pair(uint32_t left, uint32_t right, uint32_t token);
  void merge_alone(const Pair& entry, uint32_t pair, uint32_t token);
  void merge_together(const Pair& entry, uint32_t pair, uint32_t token);
  void merge_part(const Pair& entry, uint32_t pair, uint32_t token, uint32_t begin, uint32_t end);
  void add_parts();
  void make_room_for_postings();
  void place_new_postings();
  void place_postings_of_parts();
  void compact_postings();
  void compact_symbols();

  const std::shared_ptr<TokenTable> tokens_;
  const size_t num_threads_, many_words_;
  MappedArray<Word> words_;
  MappedArray<Symbol> symbols_;
  MappedArray<int64_t> counts_;  // by pair
  MappedArray<Pair> pairs_;
  MappedArray<uint32_t> postings_;
  std::vector<Candidate> queue_;
  std::optional<PairCount> stop_at_;
  int64_t threshold_ = 0;
  std::vector<Seen> with_left_, with_right_;  // by neighbour, valid where the stamp is this step's
  uint32_t stamp_ = 0;
  uint32_t first_new_ = 0;
  std::vector<NewPosting> new_postings_;
  std::vector<uint32_t> last_word_;  // by new pair: the word of its latest posting
  std::mutex parts_mutex_;           // held for a new pair, and to take a part
  std::vector<std::unique_ptr<MergePart>> parts_;
  std::vector<MergePart*> free_parts_;
  size_t dead_postings_ = 0;
  size_t live_symbols_ = 0;
  bool is_built_ = false;
  std::atomic<size_t> merges_done_{0}, num_words_{0};  // read by progress meanwhile
};

}  // namespace lowtide
