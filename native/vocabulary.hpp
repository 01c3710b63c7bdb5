// A vocabulary: the bytes of every token, and which pairs of tokens merge into which, in which order.
//
// Built once, then read by any number of threads.
// Memory:  the tokens' bytes, 16 bytes per merge and 8 to 16 for finding it, 512 KiB for byte pairs
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pieces.hpp"
#include "specials.hpp"
#include "splitter.hpp"

namespace lowtide {

constexpr uint32_t kNoToken = 0xFFFFFFFF;
constexpr uint32_t kMaxTokens = 1u << 24;  // ids are stored in 24 bits in the encoder's cache

struct MergeResult {
  uint32_t rank, token;  // kNoToken: the pair does not merge
};

class Vocabulary {
 public:
  struct MergeRule {
    uint32_t left, right, rank, token;
  };
  struct Special {
    std::string bytes;
    uint32_t id;
  };
  // `tokens`: bytes by id, empty where an id is not used. Every single byte must be a token.
  // `whole_pieces`: a piece that is a token is that token, whatever the merges say.
  Vocabulary(Pattern pattern, std::vector<std::string> tokens, std::vector<MergeRule> merges,
             std::vector<Special> specials, bool whole_pieces);

  // Merge rules of a vocabulary that is ordered by rank, as .tiktoken files are: every pair of tokens
  // that together spell a token merges into it, in the order of the ids.
  static std::vector<MergeRule> rules_by_rank(const std::vector<std::string>& tokens);

  // Looking up pairs is waiting for memory, so what it reads is kept small enough for a core's own
  // cache: a slot of 4 bytes (a few bits of the hash and the number of the rule), then the rule's two
  // sides to confirm. With whole rules of 16 bytes in the slots, encoding text for the first time ran
  // at half the speed.
  MergeResult merge(uint32_t left, uint32_t right) const {
    const uint64_t hash = hash_pair(left, right);
    const uint32_t tag = static_cast<uint32_t>(hash >> 32) & tag_mask_;
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const uint32_t slot = slots_[i];
      if (slot == kNoToken) return {kNoToken, kNoToken};
      if ((slot & tag_mask_) != tag) continue;
      const uint32_t rule = slot & ~tag_mask_;
      if (sides_[rule].left == left && sides_[rule].right == right) return results_[rule];
    }
  }
  MergeResult merge_bytes(uint8_t left, uint8_t right) const {
    return byte_pairs_[size_t{left} << 8 | right];
  }
  uint32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }
  // The token a piece is as a whole, where `whole_pieces` was given; else kNoToken.
  uint32_t whole_piece(std::string_view piece) const {
    const auto found = by_bytes_.find(piece);
    return found == by_bytes_.end() ? kNoToken : found->second;
  }

  Pattern pattern() const { return pattern_; }
  size_t size() const { return tokens_.size(); }
  const std::string& token(uint32_t id) const { return tokens_[id]; }
  bool whole_pieces() const { return whole_pieces_; }
  const SpecialFinder& special_finder() const { return finder_; }
  uint32_t special_id(size_t index) const { return specials_[index].id; }

 private:
  struct Sides {
    uint32_t left, right;
  };
  static uint64_t hash_pair(uint32_t left, uint32_t right) {
    return mix(uint64_t{left} << 32 | right, 0x9E3779B97F4A7C15ull);
  }

  Pattern pattern_;
  bool whole_pieces_;
  std::vector<std::string> tokens_;
  std::vector<Special> specials_;
  SpecialFinder finder_;
  std::array<uint32_t, 256> byte_ids_;
  std::vector<MergeResult> byte_pairs_;
  std::vector<Sides> sides_;          // by rule
  std::vector<MergeResult> results_;  // by rule
  std::vector<uint32_t> slots_;
  uint32_t tag_mask_ = 0;
  size_t mask_ = 0;
  std::unordered_map<std::string_view, uint32_t> by_bytes_;
};

}  // namespace lowtide
