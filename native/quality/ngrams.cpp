#include "quality/ngrams.hpp"

#include <algorithm>
#include <bit>

#include "corpus/text_hash.hpp"
#include "quality/large_buffers.hpp"

namespace lowtide {

namespace {

// Of the filter: bits for each pair. One pair in sixteen is mistaken for one that occurs twice.
constexpr size_t kFilterBits = 16, kMostFilter = 1 << 15;
constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;

}  // namespace

void NgramCounter::begin(const std::vector<Word>& words) {
  words_ = &words;
  n_ = 2;
  alive_.clear();
  first_.resize(words.size());
  counts_.resize(words.size());
  filter_pairs(words);
  number();
}

void NgramCounter::filter_pairs(const std::vector<Word>& words) {
  const size_t count = words.size() < 2 ? 0 : words.size() - 1;
  const size_t size = std::min(std::bit_ceil(count * kFilterBits / 64 + 2), kMostFilter);
  const int shift = 64 - std::countr_zero(size);
  once_.assign(size, 0);
  twice_.assign(size, 0);
  places_.resize(count);
  keys_.resize(count);
  longest_word_ = 0;
  for (const Word& word : words) longest_word_ = std::max(longest_word_, word.chars());
  for (size_t place = 0; place < count; ++place) {
    const uint64_t key = words[place].hash ^ words[place + 1].hash * kFactor;
    const uint64_t spread = key * kFactor, bit = uint64_t{1} << (spread >> 8 & 63);
    uint64_t& once = once_[spread >> shift];
    twice_[spread >> shift] |= once & bit;
    once |= bit;
    keys_[place] = key;
  }
  size_t left = 0;
  for (size_t place = 0; place < count; ++place) {
    const uint64_t key = keys_[place], spread = key * kFactor;
    places_[left] = static_cast<uint32_t>(place);
    keys_[left] = key;
    left += twice_[spread >> shift] >> (spread >> 8 & 63) & 1;
  }
  places_.resize(left);
  keys_.resize(left);
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
  number();
}

void NgramCounter::number() {
  for (const uint32_t place : alive_) counts_[first_[place]] = 0;
  alive_.clear();
  const size_t size = std::bit_ceil(places_.size() + places_.size() / 2 + 1);
  slots_.assign(size, 0);
  for (size_t row = 0; row < places_.size(); ++row) {
    const uint64_t key = keys_[row];
    size_t at = (key * kFactor) >> 32 & (size - 1);
    while (slots_[at] != 0 && keys_[slots_[at] - 1] != key) at = (at + 1) & (size - 1);
    if (slots_[at] == 0) {
      slots_[at] = static_cast<uint32_t>(row + 1);
      counts_[places_[row]] = 0;
    }
    const uint32_t first = places_[slots_[at] - 1];
    first_[places_[row]] = first;
    ++counts_[first];
  }
  alive_.resize(places_.size());
  size_t left = 0;
  top_ = 0, most_ = 1;
  for (const uint32_t place : places_) {
    const uint32_t count = counts_[first_[place]];
    if (count > most_) most_ = count, top_ = first_[place];
    alive_[left] = place;
    left += count > 1;
  }
  alive_.resize(left);
}

void NgramCounter::give_back() {
  for (std::vector<uint32_t>* rows : {&alive_, &first_, &counts_, &places_, &slots_}) {
    give_back_large(*rows);
  }
  give_back_large(keys_);
}

uint64_t NgramCounter::count_chars(size_t place) const {
  uint64_t chars = 0;
  for (size_t at = place; at < place + n_; ++at) chars += (*words_)[at].chars();
  return chars;
}

uint64_t NgramCounter::measure_top() const {
  if (words_->size() < n_) return 0;
  return (count_chars(top_) + n_ - 1) * most_;
}

uint64_t NgramCounter::bound_top(size_t words, uint64_t enough) const {
  if (words_->size() < words) return 0;
  uint64_t most = words - 1;  // if none occurs twice, the first one is used
  for (size_t at = 0; at < words; ++at) most += (*words_)[at].chars();
  const uint64_t longest = words * longest_word_ + words - 1;
  const size_t run = words - n_ + 1;
  for (size_t row = 0; row + run <= alive_.size() && most_ * longest > enough; ++row) {
    const size_t place = alive_[row];
    uint64_t count = counts_[first_[place]];
    if (count * longest <= enough) {
      most = std::max(most, count * longest);
      continue;
    }
    if (alive_[row + run - 1] != place + run - 1) continue;
    for (size_t at = row + 1; at < row + run; ++at) {
      count = std::min<uint64_t>(count, counts_[first_[alive_[at]]]);
    }
    uint64_t chars = words - 1;
    for (size_t at = place; at < place + words; ++at) chars += (*words_)[at].chars();
    most = std::max(most, chars * count);
  }
  return std::max(most, std::min(most_ * longest, enough));
}

uint64_t NgramCounter::bound_repeated(size_t words) const {
  const size_t run = words - n_ + 1;
  uint64_t chars = 0;
  size_t next = 0;
  for (size_t row = 0; row + run <= alive_.size(); ++row) {
    const size_t place = alive_[row];
    if (alive_[row + run - 1] != place + run - 1) continue;
    for (next = std::max(next, place); next < place + words; ++next) {
      chars += (*words_)[next].chars();
    }
  }
  return chars;
}

uint64_t NgramCounter::measure_repeated() {
  // Counts are also used as marks here: the highest bit means that the n-gram has occurred.
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
