#include "quality/ngrams.hpp"

#include <algorithm>
#include <bit>

#include "corpus/text_hash.hpp"

namespace lowtide {

void NgramCounter::begin(const std::vector<Word>& words) {
  words_ = &words;
  n_ = 2;
  alive_.clear();
  const size_t count = words.size() < 2 ? 0 : words.size() - 1;
  first_.resize(words.size());
  counts_.assign(words.size(), 0);
  const size_t size = std::bit_ceil(count + count / 2 + 1);
  slots_.assign(size, 0);
  slot_places_.resize(size);
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
  for (size_t place = 0; place < count; ++place) {
    const uint64_t key = (words[place].hash ^ words[place + 1].hash * kFactor) | 1;
    size_t at = (key * kFactor) >> 32 & (size - 1);
    while (slots_[at] != 0 && slots_[at] != key) at = (at + 1) & (size - 1);
    if (slots_[at] == 0) {
      slots_[at] = key;
      slot_places_[at] = static_cast<uint32_t>(place);
    }
    first_[place] = slot_places_[at];
    ++counts_[slot_places_[at]];
  }
  for (size_t place = 0; place < count; ++place) {
    if (counts_[first_[place]] > 1) alive_.push_back(static_cast<uint32_t>(place));
  }
}

void NgramCounter::advance() {
  ++n_;
  places_.clear();
  keys_.clear();
  for (size_t row = 0; row + 1 < alive_.size(); ++row) {
    const uint32_t place = alive_[row];
    if (alive_[row + 1] != place + 1) continue;
    places_.push_back(place);
    keys_.push_back(uint64_t{first_[place]} << 32 | first_[place + 1]);
  }
  number(places_, keys_);
}

void NgramCounter::number(const std::vector<uint32_t>& places, const std::vector<uint64_t>& keys) {
  for (const uint32_t place : alive_) counts_[first_[place]] = 0;
  alive_.clear();
  const size_t size = std::bit_ceil(places.size() + places.size() / 2 + 1);
  slots_.assign(size, 0);
  for (size_t row = 0; row < places.size(); ++row) {
    const uint64_t key = keys[row] + 1;  // never zero: no place is the largest number
    size_t at = scatter64(key) & (size - 1);
    while (slots_[at] != 0 && slots_[at] != key) at = (at + 1) & (size - 1);
    if (slots_[at] == 0) {
      slots_[at] = key;
      slot_places_[at] = places[row];
      counts_[places[row]] = 0;
    }
    first_[places[row]] = slot_places_[at];
    ++counts_[slot_places_[at]];
  }
  for (const uint32_t place : places) {
    if (counts_[first_[place]] > 1) alive_.push_back(place);
  }
}

uint64_t NgramCounter::count_chars(size_t place) const {
  uint64_t chars = 0;
  for (size_t at = place; at < place + n_; ++at) chars += (*words_)[at].chars();
  return chars;
}

uint64_t NgramCounter::measure_top() const {
  if (words_->size() < n_) return 0;
  size_t top = 0;
  uint32_t most = 1;
  for (const uint32_t place : alive_) {
    const uint32_t count = counts_[first_[place]];
    if (count > most) most = count, top = first_[place];
  }
  return (count_chars(top) + n_ - 1) * most;
}

uint64_t NgramCounter::measure_repeated() {
  // Counts serve as marks meanwhile: the highest bit says that the n-gram was met.
  constexpr uint32_t kMet = 0x80000000u;
  uint64_t chars = 0;
  size_t next = 0;
  for (const uint32_t place : alive_) {
    if (place < next) continue;
    uint32_t& count = counts_[first_[place]];
    if (count & kMet) {
      chars += count_chars(place);
      next = place + n_;
    } else {
      count |= kMet;
    }
  }
  for (const uint32_t place : alive_) counts_[first_[place]] &= ~kMet;
  return chars;
}

}  // namespace lowtide
