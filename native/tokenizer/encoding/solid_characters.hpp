// The tokens that the bytes of a character merge into in any context, from which merging can start.
//
// Merging byte by byte first assembles every character, again and again: two merges for each one of
// Chinese or Korean, one for Russian. If no token of the vocabulary has a part of a character
// together with bytes beside it, only the character's own bytes can take part in these merges, and
// their result is known in advance. With c such a character:
//
//  - If c becomes several tokens by itself, that is final: every token with c in it, or with a part of
//    it and something else, would have to be made from a part of c and something else. So these tokens
//    are closed: they merge with nothing.
//  - If c becomes one token, and every merge of this token comes later in rank than those that make it,
//    then beginning with the token changes no choice: as long as c is not whole, a pair of its own is
//    there whose rank is lower than that of any pair which the token is a part of.
//
// Which bytes beside a part of a character prevent this is found from the tokens: they are few, so
// the byte before and the byte after a character decide. Most vocabularies have tokens of a space
// and a part of a character, so a space at the beginning of a piece and the character after it are
// looked up together. They are merged up to where the last token has the whole character: then that
// token replaces c's, and if that never happens, all are closed.
//
// Memory:  up to 2 MiB, used as characters occur
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tokenizer/encoding/merge_table.hpp"

namespace lowtide {

class SolidCharacters {
 public:
  // `tokens`: the bytes of every token that merging can make, and maybe of others. Both must
  // outlive this, and are read when characters are looked up, which ASCII text does not need.
  SolidCharacters(const std::vector<std::string>& tokens, const MergeTable& table)
      : tokens_(tokens), table_(table) {}

  struct Start {
    size_t count;   // of tokens
    uint64_t open;  // of up to 64: a bit for each that may merge with the next one
  };
  // Writes the tokens that merging the piece may start with; there must be room for one per byte.
  Start begin(const uint8_t* piece, size_t length, uint32_t* ids) const;

 private:
  static constexpr uint32_t kNumCodes = 0x10000;  // characters of two and three bytes
  using Bytes = std::bitset<256>;
  // The tokens of a character, or of a space and a character.
  struct Tokens {
    std::array<uint32_t, 4> ids;  // of 24 bits; above them, in the first, `count` and `closed`
    // 0: it has to be merged together with its context.
    unsigned count() const { return ids[0] >> 24 & 7; }
    bool closed() const { return ids[0] >> 31 != 0; }
  };

  static constexpr uint32_t kRow = 64;  // characters that are computed at a time

  void prepare() const;
  void find_borders() const;
  void make_row(uint32_t row) const;
  Tokens make(uint32_t code, bool spaced) const;
  const Tokens& tokens_of(uint32_t code, bool spaced) const {
    const uint32_t row = code / kRow;
    if (!is_made_[row].load(std::memory_order_acquire)) make_row(row);
    return spaced ? spaced_[code] : plain_[code];
  }
  bool is_open_before(const uint8_t* piece, size_t at, size_t size) const;
  bool is_open_behind(const uint8_t* piece, size_t length, size_t at, size_t size) const;

  const std::vector<std::string>& tokens_;
  const MergeTable& table_;
  mutable std::once_flag prepared_;
  mutable std::vector<uint32_t>
      least_uses_;  // by token: the lowest rank of a merge it is a part of
  mutable std::mutex making_;
  mutable std::array<std::atomic<bool>, kNumCodes / kRow> is_made_{};
  mutable std::vector<Tokens> plain_, spaced_;  // by code point
  // The bytes that some token has before the first one or two bytes of a character, and after its
  // last one or two; indexed by six bits of each of these bytes.
  mutable std::vector<Bytes> before_one_, before_two_, behind_one_, behind_two_;
};

}  // namespace lowtide
