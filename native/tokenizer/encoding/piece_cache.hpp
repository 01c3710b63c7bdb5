// The encoders' caches from pieces to ids: three caches of fixed size.
//
// A piece of up to 15 bytes is looked up in the first (PieceCache): two slots per hash in one cache
// line. A piece of up to 31 bytes, or a shorter one with more ids than fit a slot of the first, is in
// the second (WidePieceCache), with a cache line per piece. Pieces that fit neither are in the third
// (LongPieceCache). A piece in a later cache has an empty slot in the cache that is looked up first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "system/huge_array.hpp"
#include "tokenizer/splitting/pieces.hpp"

namespace lowtide {

// Found ids are read in chunks of this many bytes, regardless of their number.
constexpr size_t kReadBytes = 32;

// Up to kMost ids in a fixed number of bytes: their number is in the last one if ids have 16 bits,
// and in the highest 8 bits of the first one if they have 32 (see first_id).
template <typename Id, size_t kBytes>
struct IdBlock {
  static constexpr size_t kIds = kBytes / sizeof(Id);
  static constexpr size_t kMost = sizeof(Id) == 2 ? kIds - 1 : kIds;
  Id ids[kIds];

  uint32_t count() const {
    return sizeof(Id) == 2 ? uint32_t{ids[kIds - 1]} : uint32_t{ids[0]} >> 24;
  }
  // None if there are more than kMost.
  void set(std::span<const Id> from) {
    const size_t count = from.size() <= kMost ? from.size() : 0;
    for (size_t i = 0; i < kIds; ++i) ids[i] = i < count ? from[i] : Id{0};
    if constexpr (sizeof(Id) == 2) {
      ids[kIds - 1] = static_cast<Id>(count);
    } else {
      ids[0] |= static_cast<Id>(count) << 24;
    }
  }
};
template <typename Id>
inline Id first_id(Id id) {
  return static_cast<Id>(sizeof(Id) == 2 ? id : id & 0xFFFFFFu);
}

// Pieces of up to kInlineBytes bytes. If both slots are used, a new piece has to occur twice within
// a short time, and then replaces the second, so that the first, usually the most frequent, is
// kept; every sixteenth replaces the first, so that the cache adapts when the text changes.
template <typename Id>
class PieceCache {
 public:
  struct Slot {
    IdBlock<Id, 16> ids;  // first: kReadBytes from here on are in the cache line
    PieceKey key;
  };
  struct alignas(64) Set {
    Slot ways[2];
    bool has(const PieceKey& key) const { return ways[0].key == key || ways[1].key == key; }
  };
  static constexpr size_t kMostIds = IdBlock<Id, 16>::kMost;

  explicit PieceCache(size_t bytes) : sets_(bytes / sizeof(Set)) {}

  // Only two multiplications, because this runs for every piece of a text.
  Set* set_of(const PieceKey& key) {
    const uint64_t hash =
        (key.low ^ key.high * 0xD1B54A32D192ED03ull) * 0x9E3779B97F4A7C15ull >> 32;
    return &sets_[static_cast<size_t>(hash * sets_.size() >> 32)];
  }
  void keep(const PieceKey& key, std::span<const Id> ids) {
    Set& set = *set_of(key);
    bool first = set.ways[0].key.length() == 0;
    if (!first && set.ways[1].key.length() != 0) {
      if (!comes_again(key)) return;
      first = num_kept_++ % 16 == 0;
    }
    Slot& slot = set.ways[first ? 0 : 1];
    slot.ids.set(ids);
    slot.key = key;
  }

 private:
  static constexpr unsigned kMarkBits = 14;  // 16 and 18 remember more, keep fewer useful

  // True if the piece was looked up recently; half of all pieces of a text occur only once.
  bool comes_again(const PieceKey& key) {
    const uint64_t hash = hash_key(key);
    const uint16_t mark = static_cast<uint16_t>(hash);
    return std::exchange(marks_[hash >> (64 - kMarkBits)], mark) == mark;
  }

  HugeArray<Set> sets_;
  std::vector<uint16_t> marks_ = std::vector<uint16_t>(size_t{1} << kMarkBits);
  size_t num_kept_ = 0;
};

// A piece of at most kWideBytes bytes, zero-filled; the length is the last byte.
constexpr size_t kWideBytes = 31;
struct WideKey {
  std::array<uint64_t, 4> words;

  // `piece` has `length` bytes; up to `text_end` more may be read.
  WideKey() = default;
  WideKey(const uint8_t* piece, size_t length, const uint8_t* text_end) {
    const PieceKey empty{0, 0};
    const size_t front = length < 16 ? length : 16;
    PieceKey halves[2] = {empty, empty};
    if (length < 16) {
      halves[0] = piece_key(piece, length, text_end);
      halves[0].high &= ~uint64_t{0} >> 8;
    } else {
      std::memcpy(&halves[0], piece, 16);
      halves[1] = piece_key(piece + front, length - front, text_end);
      halves[1].high &= ~uint64_t{0} >> 8;
    }
    words = {halves[0].low, halves[0].high, halves[1].low,
             halves[1].high | static_cast<uint64_t>(length) << 56};
  }
  bool operator==(const WideKey& other) const {
    return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1]) |
            (words[2] ^ other.words[2]) | (words[3] ^ other.words[3])) == 0;
  }
};

// Pieces of up to kWideBytes bytes: two adjacent slots per hash.
template <typename Id>
class WidePieceCache {
 public:
  struct alignas(64) Slot {
    IdBlock<Id, 32> ids;
    WideKey key;
  };
  static constexpr size_t kMostIds = IdBlock<Id, 32>::kMost;

  explicit WidePieceCache(size_t bytes) : slots_(bytes / sizeof(Slot) / 2 * 2) {}

  // The first of its two slots.
  Slot* slots_of(const WideKey& key) {
    const uint64_t hash = mix(key.words[0] ^ key.words[2] * 0x9E3779B97F4A7C15ull,
                              key.words[1] ^ (key.words[3] + 0xD1B54A32D192ED03ull)) >>
                          32;
    return &slots_[static_cast<size_t>(hash * (slots_.size() / 2) >> 32) * 2];
  }
  void keep(const WideKey& key, std::span<const Id> ids) {
    Slot* const slots = slots_of(key);
    const bool first = slots[0].key.words[3] == 0 || num_kept_++ % 16 == 0;
    slots[first ? 0 : 1].ids.set(ids);
    slots[first ? 0 : 1].key = key;
  }

 private:
  HugeArray<Slot> slots_;
  size_t num_kept_ = 0;
};

// Longer pieces, and those with many ids: found by hash, stored consecutively in memory that is
// used from front to back and then again from the beginning.
template <typename Id>
class LongPieceCache {
 public:
  explicit LongPieceCache(size_t bytes);
  static constexpr size_t kLongest = 1024;  // bytes; longer pieces rarely occur twice

  static uint64_t hash_of(const uint8_t* piece, size_t length) {
    return hash_bytes(piece, length) | 1;
  }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[place_of(hash)]); }
  // The ids of a piece; none if it is not cached. They are valid until the next keep().
  std::span<const Id> find(uint64_t hash, const uint8_t* piece, size_t length) const;
  void keep(uint64_t hash, const uint8_t* piece, size_t length, std::span<const Id> ids);

 private:
  struct Entry {
    uint64_t hash;  // 0: empty
    uint32_t offset;
    uint16_t length, num_ids;
  };
  size_t place_of(uint64_t hash) const { return (hash >> 8) & (entries_.size() - 1); }

  std::vector<Entry> entries_;
  std::vector<Id> arena_;  // bytes, then ids, of each piece
  size_t arena_used_ = 0;
};

}  // namespace lowtide
