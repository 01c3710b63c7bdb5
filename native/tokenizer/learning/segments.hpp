// Segments: the parts of words after cutting between all symbols whose pair is too rare.
//
// SegmentReader reads a file of words and cuts them; SegmentTable stores each distinct segment once,
// with the sum of the counts of its words, and later also its merged form.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "system/mapped_array.hpp"
#include "tokenizer/learning/pair_sketch.hpp"
#include "tokenizer/learning/word_file.hpp"

namespace lowtide {

template <typename Symbol>
class SegmentReader {
 public:
  struct Item {  // a segment, or a single symbol
    uint32_t begin, length;
    uint64_t count;
    uint64_t hash;  // of a segment
    bool begins_word, ends_word;
  };

  SegmentReader(WordFile<Symbol>& words, const PairLinks& links) : words_(words), links_(links) {}

  // Reads the next block and cuts it between symbols that are not linked; false at the end. A
  // segment that the block's end may have truncated waits for the next block; without `reads_on`
  // only the waiting symbols are cut again. A long segment that is cut into many is returned in
  // several calls, kMostItems in each.
  bool next(bool reads_on = true);
  // Must be called if links were removed since the last call.
  void find_links_again() { are_links_old_ = true; }
  const std::vector<Item>& items() const { return items_; }
  const Symbol* units() const { return units_.data(); }
  // Symbols of a segment whose end is not known yet.
  size_t num_waiting() const { return is_pending_ ? 0 : units_.size() - waiting_; }

 private:
  static constexpr size_t kBlock = size_t{1} << 15;
  static constexpr size_t kMostItems = size_t{1} << 16;
  static constexpr Symbol kEnd = WordFile<Symbol>::kEnd;
  void find_links(size_t first);

  WordFile<Symbol>& words_;
  const PairLinks& links_;
  uint64_t read_at_ = 0;
  std::vector<Symbol> units_;
  std::vector<uint8_t> is_linked_;  // true if a unit belongs to the segment of the one before it
  std::vector<Item> items_;
  size_t waiting_ = 0;          // units before it are finished
  bool is_pending_ = false;     // the units from `waiting_` on are not cut yet
  bool are_links_old_ = false;  // is_linked_ was computed with more links
  // The word of `waiting_`, if any.
  bool in_word_ = false, at_begin_ = false;
  uint64_t count_ = 0;
};

template <typename Symbol>
class SegmentTable {
 public:
  SegmentTable(size_t most_symbols, size_t most_segments);

  // True if one more segment of `length` symbols fits.
  bool fits(size_t length) const {
    return arena_.size() + length < most_units_ && begins_.size() < most_segments_;
  }
  void add(const Symbol* symbols, size_t length, uint64_t count);
  size_t size() const { return begins_.size(); }
  size_t num_symbols() const { return arena_.size() - begins_.size(); }
  std::span<const Symbol> segment(size_t number) const;
  uint64_t count(size_t number) const { return counts_[number]; }
  static uint64_t hash(const Symbol* symbols, size_t length);
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }

  // Cuts all segments again, with fewer links.
  void cut(const PairLinks& links);
  // A bound that a third of the pairs inside the segments do not exceed, and the largest one.
  std::pair<uint32_t, uint32_t> low_bound(const PairSketch& sketch) const;

  // Stores the merged form of each segment after it; become(length, take) calls take(symbol) for
  // each of its symbols, for all segments in order.
  template <typename Become>
  void set_results(const Become& become) {
    MappedArray<Symbol> arena;
    arena.reserve(2 * arena_.size());
    for (size_t number = 0; number < begins_.size(); ++number) {
      const std::span<const Symbol> from = segment(number);
      begins_[number] = static_cast<uint32_t>(arena.size());
      for (const Symbol symbol : from) arena.push_back(symbol);
      arena.push_back(kEnd);
      become(from.size(), [&](Symbol symbol) { arena.push_back(symbol); });
      arena.push_back(kEnd);
    }
    arena_.swap(arena);
    for (Slot& slot : slots_) {
      if (slot.number != kEmpty) slot.begin = begins_[slot.number];
    }
  }
  // The merged form of an existing segment, up to kEnd.
  const Symbol* result(const Symbol* symbols, size_t length, uint64_t hash) const {
    const Slot& found = slots_[slot(symbols, length, hash)];
    if (found.number == kEmpty) throw std::logic_error("a segment that was not collected");
    return &arena_[found.begin + length + 1];
  }

 private:
  static constexpr Symbol kEnd = WordFile<Symbol>::kEnd;
  static constexpr uint32_t kEmpty = 0xFFFFFFFF;
  struct Slot {
    uint32_t number = kEmpty;
    uint32_t begin = 0;
  };
  size_t slot(const Symbol* symbols, size_t length, uint64_t hash) const;

  size_t most_units_, most_segments_, mask_;
  std::vector<Slot> slots_;
  MappedArray<Symbol> arena_;  // segments, each followed by kEnd
  MappedArray<uint32_t> begins_;
  MappedArray<uint64_t> counts_;
};

// Calls take(part) for each part of two symbols or more, cut between symbols that are not linked.
template <typename Symbol, typename Take>
void cut_segment(std::span<const Symbol> symbols, const PairLinks& links, const Take& take) {
  size_t begin = 0;
  for (size_t i = 1; i <= symbols.size(); ++i) {
    if (i < symbols.size() && links(symbols[i - 1], symbols[i])) continue;
    if (i - begin >= 2) take(symbols.subspan(begin, i - begin));
    begin = i;
  }
}

}  // namespace lowtide
