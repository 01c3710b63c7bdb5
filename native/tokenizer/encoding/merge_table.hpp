// The ranks of mergeable pairs of tokens: a hash table with branch-free lookup.
//
// Merging a piece looks up two pairs after every merge and has to wait for the results, so a lookup
// needs low latency and no mispredicted branch: a pair is in one of two buckets of two slots of 8
// bytes; both are read at once, and the lowest of four numbers is its rank. A slot has the rank and
// those bits of the pair that the bucket's number does not determine (left and right have 24 bits
// each, permuted bijectively to 48 bits), so a match is exact.
//
// Memory:  8 bytes per slot, of which at most four fifths are used; 4 bytes per rank; 256 KiB for
//          pairs of bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

constexpr uint32_t kMaxTokens = 1u << 24;

struct MergeRule {
  uint32_t left, right, rank, token;
};

class MergeTable {
 public:
  static constexpr unsigned kRankBits = 26;
  static constexpr uint32_t kNoRank = (1u << kRankBits) - 1;
  static constexpr uint8_t kReplacement = 0xEF;  // the first byte of U+FFFD

  MergeTable() = default;
  // `byte_ids`: the tokens of single bytes. Allocates for `num_rules` at once.
  MergeTable(const std::array<uint32_t, 256>& byte_ids, size_t num_rules);

  // The last of equal pairs is used. Ranks are below kNoRank, ids below kMaxTokens.
  void add(const MergeRule& rule);
  // The rank of a pair; kNoRank if it does not merge.
  uint32_t rank(uint32_t left, uint32_t right) const { return rank_of(mix_pair(left, right)); }

  // The same in two steps, for callers with other work until the pair's buckets are prefetched.
  uint64_t ask(uint32_t left, uint32_t right) const {
    const uint64_t mixed = mix_pair(left, right);
    __builtin_prefetch(&buckets_[mixed >> rest_bits_]);
    __builtin_prefetch(&buckets_[fold(mixed) & mask_]);
    return mixed;
  }
  uint32_t rank_of(uint64_t mixed) const {
    const uint64_t folded = fold(mixed);
    const Bucket& a = buckets_[mixed >> rest_bits_];
    const Bucket& b = buckets_[folded & mask_];
    // A slot of another pair differs in the bits above the rank, so it is larger than any rank.
    const uint64_t of_a = (mixed & rest_mask_) << (kRankBits + 1);
    const uint64_t of_b = (folded >> bucket_bits()) << (kRankBits + 1) | kSecond;
    const uint64_t from_a = least(a.slots[0] ^ of_a, a.slots[1] ^ of_a);
    const uint64_t from_b = least(b.slots[0] ^ of_b, b.slots[1] ^ of_b);
    return static_cast<uint32_t>(least(least(from_a, from_b), kNoRank));
  }
  // The token that a merge of this rank makes.
  uint32_t token(uint32_t rank) const { return consecutive_ ? rank + offset_ : tokens_[rank]; }

  // Calls visit(left, right, rank) for every pair, in no order.
  template <typename Visit>
  void visit(const Visit& visit) const {
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      for (const uint64_t slot : buckets_[bucket].slots) {
        if (slot == kEmpty) continue;
        const uint64_t pair = mixed_of(slot, bucket) * kUnmix & kPairMask;
        visit(static_cast<uint32_t>(pair >> 24), static_cast<uint32_t>(pair & (kMaxTokens - 1)),
              static_cast<uint32_t>(slot & kNoRank));
      }
    }
  }

  uint32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }
  uint32_t byte_rank(uint8_t left, uint8_t right) const {
    return byte_ranks_[size_t{left} << 8 | right];
  }

 private:
  struct alignas(16) Bucket {
    uint64_t slots[2];
  };
  static constexpr uint64_t kPairMask = (uint64_t{1} << 48) - 1;
  static constexpr uint64_t kSecond = uint64_t{1} << kRankBits;  // in the bucket of folded bits
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr unsigned kLeastBucketBits = 12;  // so that no used slot looks empty

  static constexpr uint64_t kMix = 0x9E3779B97F4A7C15ull;
  static constexpr uint64_t kUnmix =
      [] {  // kMix * kUnmix is 1: each round doubles the correct bits
        uint64_t inverse = kMix;
        for (int round = 0; round < 6; ++round) inverse *= 2 - kMix * inverse;
        return inverse;
      }();

  static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
  // Both steps are invertible, so 48 bits stay 48 bits.
  static uint64_t mix_pair(uint32_t left, uint32_t right) {
    return (uint64_t{left} << 24 | right) * kMix & kPairMask;
  }
  static uint64_t fold(uint64_t mixed) { return mixed ^ mixed >> 24; }

  void resize(unsigned bucket_bits);
  // Inserts a new pair into the table, which grows if it does not fit.
  void place(uint64_t mixed, uint32_t rank);
  uint64_t* find(uint64_t mixed);
  unsigned bucket_bits() const { return 48 - rest_bits_; }
  uint64_t slot_in_first(uint64_t mixed, uint32_t rank) const;
  uint64_t slot_in_second(uint64_t mixed, uint32_t rank) const;
  uint64_t mixed_of(uint64_t slot, size_t bucket) const;

  std::array<uint32_t, 256> byte_ids_{};
  std::vector<int16_t> byte_of_;  // by id; -1 where a token is not a single byte
  std::vector<Bucket> buckets_;
  unsigned rest_bits_ = 0;  // of 48, those that the bucket number does not determine
  uint64_t rest_mask_ = 0, mask_ = 0;
  std::vector<uint32_t> tokens_;  // by rank
  bool consecutive_ = true;
  uint32_t offset_ = 0;
  std::vector<uint32_t> byte_ranks_;
};

}  // namespace lowtide
