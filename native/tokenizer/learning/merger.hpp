// Learn byte-pair merges from counted words.
//
// In:      distinct words (pieces of text, or sequences of tokens already made) with their counts
// Out:     merges, one after the other, exactly as the chosen rule orders them
// Memory:  about 2 bytes per symbol (4 where the vocabulary exceeds 16 bits) and 8 per word, 4 per word
//          a pair occurs in, 38 to 44 per distinct pair
//
// Words are in a flat array (word_store.hpp), and each pair has a list of the words it occurs in. A
// merge visits the words of its pair and sums the counts of preceding and following symbols in an array
// indexed by the neighbour; then it looks up each changed pair once (merge_part.hpp). All occurrences
// of a pair (x, y) appear in the one step that makes the younger of x and y; so every pair found in a
// step is new, and afterwards its count only falls. That makes the queue simple: an entry whose count is
// out of date is put back with its present count, and pairs below a threshold are left out of the queue
// until the threshold is lowered and one pass over the counts adds them. Half of the visits find that
// another merge has removed the pair from the word: they cost one cache line.
//
// Tried and rejected: storing the index of its pair beside each symbol, so that removing an occurrence
// was one subtraction without a lookup, took 8 bytes a symbol and 24 a word, and twice the time.
//
// No token is made twice, by two pairs with the same bytes ("a" + "aa", "aa" + "a"). Take a part of a
// word with token borders at both ends. No merge so far crossed these borders, so its tokens are those
// that the merges so far make of the part alone, and depend only on its bytes. Hence in the step in
// which such a part first becomes one token, every part with the same bytes does, and no other pair
// with these bytes is left anywhere. For the same reason a merged pair never occurs again, and the
// rules of Hugging Face and cs336, which count a merged pair differently, differ only in how they break
// ties.
//
// Each of the first merges is in tens of thousands of words: half of the time goes to a twentieth of
// the merges. Several threads divide the words of such a pair (merge_part.hpp), each with the same
// range of words in every merge: another core's cache is read several times more slowly than one's own.
// Pairs then get their indices in another order, which does not affect the result.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "system/mapped_array.hpp"
#include "tokenizer/learning/count_shard.hpp"
#include "tokenizer/learning/merge_part.hpp"
#include "tokenizer/learning/merger_tokens.hpp"
#include "tokenizer/learning/pair_table.hpp"
#include "tokenizer/learning/word_store.hpp"

namespace lowtide {

template <typename Symbol>
class MergeLearner {
 public:
  // Pairs that occur in at least `many_words` words are merged by `num_threads`.
  explicit MergeLearner(std::shared_ptr<TokenTable> tokens, size_t num_threads = 1,
                        size_t many_words = kManyWords)
      : tokens_(std::move(tokens)), num_threads_(num_threads), many_words_(many_words) {}
  static constexpr size_t kManyWords = 4096;  // some 0.1 ms of work
  // When any thread took the next words, one that slept between merges of 4,096 was woken for longer
  // than the work, and eight that busy-waited were no faster than one.

  void add_piece(const uint8_t* bytes, size_t length, uint64_t count);
  template <typename Id>
  void add_word(const Id* symbols, size_t length, uint64_t count) {
    Symbol* const word = begin_word(length, count);
    for (size_t i = 0; i < length; ++i) word[i] = static_cast<Symbol>(symbols[i]);
  }
  void add_tables(std::span<const CountShard* const> tables);  // all their pieces, by all threads
  void build();  // after the last word, before the first merge
  // Learns until there are `target` tokens besides the bytes, or `max_merges` more merges, or no
  // pair occurs `min_frequency` times. Returns true if more could be learned.
  bool learn(size_t target, size_t max_merges, int64_t min_frequency);
  // From now on, only pairs ordered before this one are merged.
  void stop_at(const PairCount& pair) { stop_at_ = pair; }

  const std::vector<Merge>& merges() const { return tokens_->merges(); }
  size_t merges_done() const { return merges_done_.load(std::memory_order_relaxed); }
  size_t num_words() const { return num_words_.load(std::memory_order_relaxed); }
  size_t bytes() const;
  // Memory that depends on the text, not only on the vocabulary; and the same with all existing
  // pairs in the queue.
  size_t text_bytes() const;
  size_t full_text_bytes() const { return text_bytes() + pairs_.size() * sizeof(Candidate); }
  size_t num_threads() const { return num_threads_; }
  // Calls visit(symbol) for the current symbols of the word at `at`, which had `length` symbols;
  // returns the position of the next word. The first is at 0.
  template <typename Visit>
  uint32_t for_each_symbol(uint32_t at, size_t length, const Visit& visit) const {
    const Symbol* const symbols = words_.symbols(at);
    for (size_t i = 0; i < words_.head(at).length; ++i) visit(symbols[i]);
    return at + static_cast<uint32_t>(Words::units_of(length));
  }

 private:
  using Words = WordStore<Symbol>;
  using Pair = PairTable::Pair;
  struct Candidate {
    int64_t count;
    uint64_t order;  // left and right in the order of ids; unused by kCs336
    uint32_t pair;
  };
  struct Change {
    uint32_t left, right, new_left, new_right;
  };
  struct alignas(64) Share {  // of one thread: the words from `begin` to `end`
    size_t begin, end;
    MergePart part;
    std::atomic<bool> is_taken{false};
  };
  static constexpr uint32_t kNoPair = PairTable::kNone;

  Symbol* begin_word(size_t length, uint64_t count);
  void mark(size_t at);
  template <typename Visit>
  void for_each_word(size_t begin, size_t end, const Visit& visit);
  void find_pairs();
  void find_pairs_together();
  bool before(const Candidate& a, const Candidate& b) const;
  void push(uint32_t pair);
  bool refill(int64_t min_frequency);
  bool pop_best(int64_t min_frequency, uint32_t& pair);
  void merge(uint32_t pair);
  void merge_in_words(MergePart& part, const Pair& chosen, const uint32_t* begin,
                      const uint32_t* end);
  void merge_in_word(MergePart& part, const Pair& chosen, uint32_t word);
  Change change(uint32_t key) const;
  void merge_together(const Pair& chosen);
  template <typename Work>
  void for_each_share(const Work& work);
  void add_pairs(uint32_t merged);
  void take(uint32_t pair, int64_t count);
  void place_postings(MergePart& part);
  void place_postings_of_shares();
  void compact_postings();

  const std::shared_ptr<TokenTable> tokens_;
  const size_t num_threads_, many_words_;
  Words words_;
  std::vector<uint32_t> marks_;  // the positions of some words, to divide the words among threads
  size_t words_since_mark_ = 0;
  PairTable pairs_;
  MappedArray<uint32_t> postings_;  // words of pairs, by position
  std::vector<Candidate> queue_;
  std::optional<PairCount> stop_at_;
  int64_t threshold_ = 0;
  uint32_t left_ = 0, right_ = 0, token_ = 0;  // of this step
  bool is_shared_ = false;                     // by several threads
  MergePart all_;                              // total of all words
  std::vector<std::unique_ptr<Share>> shares_;
  size_t dead_postings_ = 0;
  bool is_built_ = false;
  std::atomic<size_t> merges_done_{0}, num_words_{0};  // read by progress meanwhile
};

}  // namespace lowtide
