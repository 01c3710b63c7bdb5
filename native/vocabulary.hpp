// A vocabulary: the bytes of every token, and which pairs of tokens merge into which, in which order.
//
// Built once, then read by any number of threads.
// Memory:  the tokens' bytes, 16 bytes per merge at half load, 512 KiB for pairs of bytes
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

  MergeResult merge(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    for (size_t i = hash_pair(key) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].result;
      if (slots_[i].key == kEmptyKey) return {kNoToken, kNoToken};
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
  struct Slot {
    uint64_t key;
    MergeResult result;
  };
  static constexpr uint64_t kEmptyKey = ~uint64_t{0};
  static uint64_t hash_pair(uint64_t key) { return (key * 0x9E3779B97F4A7C15ull) >> 32; }

  Pattern pattern_;
  bool whole_pieces_;
  std::vector<std::string> tokens_;
  std::vector<Special> specials_;
  SpecialFinder finder_;
  std::array<uint32_t, 256> byte_ids_;
  std::vector<MergeResult> byte_pairs_;
  std::vector<Slot> slots_;
  size_t mask_ = 0;
  std::unordered_map<std::string_view, uint32_t> by_bytes_;
};

}  // namespace lowtide
