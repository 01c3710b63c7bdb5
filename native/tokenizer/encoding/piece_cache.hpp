// Where encoders remember the ids of pieces: two caches of fixed size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "system/huge_array.hpp"
#include "tokenizer/splitting/pieces.hpp"

namespace lowtide {

// Pieces of up to kInlineBytes bytes: two places per hash in one cache line, the key and the ids side
// by side. A newcomer takes the second place, so that what came first, which is what comes most often,
// stays; every sixteenth takes the first, so that the cache follows when the text changes.
template <typename Id>
class PieceCache {
 public:
  static constexpr size_t kIds = 16 / sizeof(Id);
  static constexpr size_t kMostIds = sizeof(Id) == 2 ? kIds - 1 : kIds;
  struct Slot {
    PieceKey key;
    Id ids[kIds];  // the last one holds how many there are: all of 16 bits, the highest 8 of 32
    size_t num_ids() const { return sizeof(Id) == 2 ? ids[kIds - 1] : ids[kIds - 1] >> 24; }
    void set_ids(std::span<const uint32_t> from) {
      for (size_t i = 0; i < kIds; ++i) ids[i] = i < from.size() ? static_cast<Id>(from[i]) : Id{0};
      if constexpr (sizeof(Id) == 2) {
        ids[kIds - 1] = static_cast<Id>(from.size());
      } else {
        ids[kIds - 1] |= static_cast<Id>(from.size()) << 24;
      }
    }
    // Writes all of `ids`, of which num_ids() count: cheaper than a branch on the number.
    Id* write(Id* out) const {
      std::memcpy(out, ids, sizeof(ids));
      if constexpr (sizeof(Id) == 4) out[kIds - 1] = ids[kIds - 1] & 0xFFFFFF;
      return out + num_ids();
    }
  };
  struct alignas(64) Set {
    Slot ways[2];
  };

  explicit PieceCache(size_t bytes) : sets_(bytes / sizeof(Set)) {}

  // Two multiplications: every piece of a text comes by here.
  Set* set_of(const PieceKey& key) {
    const uint64_t hash =
        (key.low ^ key.high * 0xD1B54A32D192ED03ull) * 0x9E3779B97F4A7C15ull >> 32;
    return &sets_[static_cast<size_t>(hash * sets_.size() >> 32)];
  }
  void keep(const Slot& slot) {
    Set& set = *set_of(slot.key);
    const bool first = set.ways[0].key.length() == 0 || num_kept_++ % 16 == 0;
    set.ways[first ? 0 : 1] = slot;
  }

 private:
  HugeArray<Set> sets_;
  size_t num_kept_ = 0;
};

// Longer pieces, and those with more ids than a slot holds: found by hash, kept one behind the other
// in memory that is used from front to back and then again from the beginning.
class LongPieceCache {
 public:
  explicit LongPieceCache(size_t bytes);
  static constexpr size_t kLongest = 1024;  // bytes; longer pieces hardly ever come twice

  // The ids of a piece; none if it is not there. They stay until the next keep().
  std::span<const uint32_t> find(const uint8_t* piece, size_t length) const;
  void keep(const uint8_t* piece, size_t length, std::span<const uint32_t> ids);

 private:
  struct Entry {
    uint64_t hash;  // 0: empty
    uint32_t offset, length, num_ids;
  };
  static uint64_t hash_of(const uint8_t* piece, size_t length) {
    return hash_bytes(piece, length) | 1;
  }
  size_t place_of(uint64_t hash) const { return (hash >> 8) & (entries_.size() - 1); }

  std::vector<Entry> entries_;
  std::vector<uint32_t> arena_;  // bytes, then ids, of each piece
  size_t arena_used_ = 0;
};

}  // namespace lowtide
