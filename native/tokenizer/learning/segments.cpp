#include "tokenizer/learning/segments.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lowtide {

template <typename Symbol>
void SegmentReader<Symbol>::find_links(size_t first) {
  // No branch depends on a link, so that many are looked up in parallel.
  is_linked_.resize(units_.size() + 1);
  const Symbol* const units = units_.data();
  uint8_t* const is_linked = is_linked_.data();
  const PairLinks& links = links_;
  const size_t size = units_.size();
  is_linked[first] = 0;
  for (size_t i = first + 1; i < size; ++i) is_linked[i] = links(units[i - 1], units[i]);
}

template <typename Symbol>
bool SegmentReader<Symbol>::next(bool reads_on) {
  items_.clear();
  if (!is_pending_) {
    units_.erase(units_.begin(), units_.begin() + static_cast<ptrdiff_t>(waiting_));
    waiting_ = 0;
  }
  if (reads_on && !is_pending_) {
    const size_t before = units_.size();
    units_.resize(before + std::max(kBlock, before));
    const size_t got = words_.read(read_at_, units_.data() + before, units_.size() - before);
    units_.resize(before + got);
    if (got == 0) return false;
  }
  if (!is_pending_ || are_links_old_) find_links(waiting_);
  are_links_old_ = is_pending_ = false;
  size_t i = waiting_;
  while (i < units_.size()) {
    if (items_.size() == kMostItems) {
      is_pending_ = true;
      break;
    }
    if (!in_word_) {
      int shift = 0;
      count_ = 0;
      for (; i < units_.size(); ++i, shift += WordFile<Symbol>::kCountBits) {
        count_ |= static_cast<uint64_t>(units_[i] & ~WordFile<Symbol>::kMore & kEnd) << shift;
        if ((units_[i] & WordFile<Symbol>::kMore) == 0) break;
      }
      if (i == units_.size()) break;
      waiting_ = ++i;
      in_word_ = at_begin_ = true;
    }
    size_t end = i + 1;  // a word has at least one symbol
    while (end < units_.size() && units_[end] != kEnd && is_linked_[end]) ++end;
    if (end >= units_.size()) break;
    const bool ends_word = units_[end] == kEnd;
    const uint64_t hash = end - i < 2 ? 0 : SegmentTable<Symbol>::hash(units_.data() + i, end - i);
    items_.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(end - i), count_, hash,
                      at_begin_, ends_word});
    at_begin_ = false;
    i = waiting_ = ends_word ? end + 1 : end;
    in_word_ = !ends_word;
  }
  return true;
}

template <typename Symbol>
SegmentTable<Symbol>::SegmentTable(size_t most_symbols, size_t most_segments)
    : most_units_(most_symbols + most_segments),
      most_segments_(most_segments),
      mask_(std::bit_ceil(most_segments * 3 / 2 + 2) - 1),
      slots_(mask_ + 1) {}

template <typename Symbol>
uint64_t SegmentTable<Symbol>::hash(const Symbol* symbols, size_t length) {
  uint64_t hash = length;
  for (size_t i = 0; i < length; ++i) {
    hash = (std::rotl(hash, 23) ^ symbols[i]) * 0x9E3779B97F4A7C15;
  }
  return hash ^ hash >> 32;
}

template <typename Symbol>
size_t SegmentTable<Symbol>::slot(const Symbol* symbols, size_t length, uint64_t hash) const {
  size_t at = static_cast<size_t>(hash) & mask_;
  for (; slots_[at].number != kEmpty; at = (at + 1) & mask_) {
    const Symbol* const there = &arena_[slots_[at].begin];
    // No symbol is kEnd, so a shorter segment differs there.
    size_t i = 0;
    while (i < length && there[i] == symbols[i]) ++i;
    if (i == length && there[i] == kEnd) break;
  }
  return at;
}

template <typename Symbol>
void SegmentTable<Symbol>::add(const Symbol* symbols, size_t length, uint64_t count) {
  Slot& found = slots_[slot(symbols, length, hash(symbols, length))];
  if (found.number != kEmpty) {
    counts_[found.number] += count;
    return;
  }
  found = {static_cast<uint32_t>(begins_.size()), static_cast<uint32_t>(arena_.size())};
  begins_.push_back(found.begin);
  counts_.push_back(count);
  for (size_t i = 0; i < length; ++i) arena_.push_back(symbols[i]);
  arena_.push_back(kEnd);
}

template <typename Symbol>
std::span<const Symbol> SegmentTable<Symbol>::segment(size_t number) const {
  const Symbol* const begin = &arena_[begins_[number]];
  const size_t next = number + 1 < begins_.size() ? begins_[number + 1] : arena_.size();
  return {begin, next - begins_[number] - 1};
}

template <typename Symbol>
void SegmentTable<Symbol>::cut(const PairLinks& links) {
  SegmentTable old(0, 0);
  old.arena_.swap(arena_);
  old.begins_.swap(begins_);
  old.counts_.swap(counts_);
  std::fill(slots_.begin(), slots_.end(), Slot{});
  for (size_t number = 0; number < old.size(); ++number) {
    cut_segment(old.segment(number), links, [&](std::span<const Symbol> part) {
      add(part.data(), part.size(), old.counts_[number]);
    });
  }
}

template <typename Symbol>
std::pair<uint32_t, uint32_t> SegmentTable<Symbol>::low_bound(const PairSketch& sketch) const {
  constexpr size_t kSamples = 1 << 16;
  const size_t step = begins_.size() / kSamples + 1;
  std::vector<uint32_t> bounds;
  uint32_t largest = 0;
  for (size_t number = 0; number < begins_.size(); number += step) {
    const std::span<const Symbol> symbols = segment(number);
    for (size_t i = 1; i < std::min<size_t>(symbols.size(), 64); ++i) {
      bounds.push_back(sketch.bound(symbols[i - 1], symbols[i]));
      largest = std::max(largest, bounds.back());
    }
  }
  if (bounds.empty()) return {0, 0};
  std::nth_element(bounds.begin(), bounds.begin() + static_cast<ptrdiff_t>(bounds.size() / 3),
                   bounds.end());
  return {bounds[bounds.size() / 3], largest};
}

template class SegmentReader<uint16_t>;
template class SegmentReader<uint32_t>;
template class SegmentTable<uint16_t>;
template class SegmentTable<uint32_t>;

}  // namespace lowtide
