// Upper bounds of the counts of pairs of symbols, in a fixed amount of memory (a count sketch).
//
// Pairs share buckets by hash, and a bucket has the sum of the counts of its pairs: if it is below a
// threshold, so is every pair in it. Once the threshold is chosen, one bit per bucket is enough,
// and the bits fit in the processor's cache, unlike the sums. If so many rare pairs share a bucket
// that their sum reaches the threshold too, several times as many buckets are used: their sums are
// computed part by part, in as many passes, and only the bits are kept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "system/huge_array.hpp"

namespace lowtide {

// The bucket of a pair. With another seed, other pairs share a bucket.
class PairPlaces {
 public:
  PairPlaces(size_t num_buckets, uint64_t seed)
      : num_buckets_(num_buckets), factor_((seed * 0x9E3779B97F4A7C15) | 1) {}
  size_t size() const { return num_buckets_; }
  size_t of(uint32_t left, uint32_t right) const {
    uint64_t hash = (uint64_t{left} << 32 | right) * factor_;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93;
    return (hash >> 32) * num_buckets_ >> 32;  // at most 2^32 of them
  }

 private:
  size_t num_buckets_;
  uint64_t factor_;
};

// The pairs that may reach a threshold, as bits.
class PairLinks {
 public:
  explicit PairLinks(const PairPlaces& places) : places_(places), bits_(places.size() / 64 + 1) {}
  const PairPlaces& places() const { return places_; }
  void link(uint32_t left, uint32_t right) { set(places_.of(left, right), true); }
  void set(size_t bucket, bool value) {
    const uint64_t bit = uint64_t{1} << bucket % 64;
    bits_[bucket / 64] = value ? bits_[bucket / 64] | bit : bits_[bucket / 64] & ~bit;
  }
  bool operator()(uint32_t left, uint32_t right) const {
    const size_t bucket = places_.of(left, right);
    return bits_[bucket / 64] >> bucket % 64 & 1;
  }

 private:
  PairPlaces places_;
  std::vector<uint64_t> bits_;
};

class PairSketch {
 public:
  static constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();  // or more

  explicit PairSketch(size_t num_buckets) : sums_(num_buckets), places_(num_buckets, 1) {}

  // Starts counting the pairs of one of `num_parts` parts.
  void clear(uint64_t seed, size_t parts, size_t part) {
    places_ = PairPlaces(sums_.size() * parts, seed);
    first_ = sums_.size() * part;
    std::fill_n(&sums_[0], sums_.size(), 0);
  }
  size_t part() const { return first_ / sums_.size(); }
  size_t parts() const { return places_.size() / sums_.size(); }
  const PairPlaces& places() const { return places_; }

  // Takes effect by flush() at the latest, because the bucket is prefetched well before it is used.
  void add(uint32_t left, uint32_t right, uint64_t count) {
    const size_t bucket = places_.of(left, right) - first_;
    if (bucket >= sums_.size()) return;  // of another part, before or after
    __builtin_prefetch(&sums_[bucket], 1);
    waiting_[num_waiting_++] = {bucket, count};
    if (num_waiting_ == kWaiting) flush();
  }
  void flush() {
    for (size_t i = 0; i < num_waiting_; ++i) {
      uint32_t& sum = sums_[waiting_[i].bucket];
      sum = static_cast<uint32_t>(std::min<uint64_t>(sum + waiting_[i].count, kMost));
    }
    num_waiting_ = 0;
  }

  // For pairs of this part.
  uint32_t bound(uint32_t left, uint32_t right) const {
    return sums_[places_.of(left, right) - first_];
  }
  void find_links(uint32_t threshold, PairLinks& links) const {
    for (size_t i = 0; i < sums_.size(); ++i) links.set(first_ + i, sums_[i] >= threshold);
  }
  uint32_t largest() const { return *std::max_element(&sums_[0], &sums_[0] + sums_.size()); }
  uint32_t mean() const {
    uint64_t total = 0;
    for (size_t i = 0; i < sums_.size(); ++i) total += sums_[i];
    return static_cast<uint32_t>(total / sums_.size());
  }

 private:
  static constexpr size_t kWaiting = 64;
  struct Waiting {
    size_t bucket;
    uint64_t count;
  };
  HugeArray<uint32_t> sums_;
  PairPlaces places_;
  size_t first_ = 0;  // first bucket of sums_ in places_
  Waiting waiting_[kWaiting];
  size_t num_waiting_ = 0;
};

}  // namespace lowtide
