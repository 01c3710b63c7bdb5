#include "tokenizer/encoding/merge_table.hpp"

#include <algorithm>
#include <utility>

namespace lowtide {

namespace {
constexpr int kLongestChase = 500;  // moves after which a table is considered too full
}

MergeTable::MergeTable(const std::array<uint32_t, 256>& byte_ids, size_t num_rules)
    : byte_ids_(byte_ids), byte_ranks_(256 * 256, kNoRank) {
  byte_of_.assign(*std::max_element(byte_ids.begin(), byte_ids.end()) + size_t{1}, -1);
  for (size_t byte = 0; byte < 256; ++byte) byte_of_[byte_ids[byte]] = static_cast<int16_t>(byte);
  byte_of_[byte_ids[kReplacement]] = kReplacement;  // even if other bytes have the same id
  unsigned bits = kLeastBucketBits;
  while ((size_t{2} << bits) * 4 / 5 < num_rules) ++bits;
  resize(bits);
}

void MergeTable::add(const MergeRule& rule) {
  const uint64_t mixed = mix_pair(rule.left, rule.right);
  if (uint64_t* const known = find(mixed)) {
    *known = (*known & ~uint64_t{kNoRank}) | rule.rank;
  } else {
    place(mixed, rule.rank);
  }
  if (rule.left < byte_of_.size() && rule.right < byte_of_.size() && byte_of_[rule.left] >= 0 &&
      byte_of_[rule.right] >= 0) {
    byte_ranks_[static_cast<size_t>(byte_of_[rule.left] << 8 | byte_of_[rule.right])] = rule.rank;
  }
  if (tokens_.empty()) offset_ = rule.token - rule.rank;
  consecutive_ = consecutive_ && rule.token - rule.rank == offset_;
  if (tokens_.size() <= rule.rank) tokens_.resize(rule.rank + size_t{1});
  tokens_[rule.rank] = rule.token;
}

void MergeTable::resize(unsigned bucket_bits) {
  rest_bits_ = 48 - bucket_bits;
  rest_mask_ = (uint64_t{1} << rest_bits_) - 1;
  mask_ = (uint64_t{1} << bucket_bits) - 1;
  buckets_.assign(mask_ + 1, {{kEmpty, kEmpty}});
}

uint64_t MergeTable::slot_in_first(uint64_t mixed, uint32_t rank) const {
  return (mixed & rest_mask_) << (kRankBits + 1) | rank;
}

uint64_t MergeTable::slot_in_second(uint64_t mixed, uint32_t rank) const {
  return (fold(mixed) >> bucket_bits()) << (kRankBits + 1) | kSecond | rank;
}

uint64_t MergeTable::mixed_of(uint64_t slot, size_t bucket) const {
  const uint64_t rest = slot >> (kRankBits + 1);
  if ((slot & kSecond) == 0) return uint64_t{bucket} << rest_bits_ | rest;
  return fold(rest << bucket_bits() | bucket);  // folding twice changes nothing
}

uint64_t* MergeTable::find(uint64_t mixed) {
  for (uint64_t& slot : buckets_[mixed >> rest_bits_].slots) {
    if ((slot ^ slot_in_first(mixed, 0)) <= kNoRank) return &slot;
  }
  for (uint64_t& slot : buckets_[fold(mixed) & mask_].slots) {
    if ((slot ^ slot_in_second(mixed, 0)) <= kNoRank) return &slot;
  }
  return nullptr;
}

void MergeTable::place(uint64_t mixed, uint32_t rank) {
  bool second = false;  // which of its two buckets is tried
  for (int moves = 0; moves < kLongestChase; ++moves) {
    for (int other = 0; other < 2; ++other, second = !second) {
      Bucket& bucket = buckets_[second ? fold(mixed) & mask_ : mixed >> rest_bits_];
      for (uint64_t& slot : bucket.slots) {
        if (slot != kEmpty) continue;
        slot = second ? slot_in_second(mixed, rank) : slot_in_first(mixed, rank);
        return;
      }
    }
    // Both are full: one of the four moves to its other bucket.
    const size_t bucket = second ? fold(mixed) & mask_ : mixed >> rest_bits_;
    uint64_t& slot = buckets_[bucket].slots[moves >> 1 & 1];
    const uint64_t moved = slot;
    slot = second ? slot_in_second(mixed, rank) : slot_in_first(mixed, rank);
    second = (moved & kSecond) == 0;
    mixed = mixed_of(moved, bucket);
    rank = moved & kNoRank;
  }
  const unsigned bits = bucket_bits();
  std::vector<std::pair<uint64_t, uint32_t>> pairs{{mixed, rank}};
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const uint64_t slot : buckets_[bucket].slots) {
      if (slot != kEmpty) pairs.emplace_back(mixed_of(slot, bucket), slot & kNoRank);
    }
  }
  resize(bits + 1);
  for (const auto& [pair, its_rank] : pairs) place(pair, its_rank);
}

}  // namespace lowtide
