// What the bytes of a character merge into, whatever stands around it: merging can begin there.
//
// Merging byte by byte puts every character together first, over and over: two merges for each of
// Chinese or Korean, one for each of Russian. Where no token of the vocabulary has a part of a
// character together with bytes beside it, nothing but the character's own bytes can take part in these
// merges, and their result is known beforehand. With c such a character:
//
//  - If c becomes several tokens by itself, that is final: every token with c in it, or with a part of
//    it and something else, would have to be made from a part of c and something else. So these tokens
//    are closed: they merge with nothing.
//  - If c becomes one token, and every merge of this token comes later in rank than those that make it,
//    then beginning with the token changes no choice: as long as c is not whole, a pair of its own is
//    there whose rank is lower than that of any pair which the token is a part of.
//
// Which bytes beside a part of a character are in the way is read off the tokens: few are, so that the
// byte before and the byte behind a character tell. Most vocabularies have tokens of a space and a part
// of a character, so a space at the beginning of a piece and the character behind it are looked up
// together. They are merged up to where the last token has the whole character: then that token takes
// the place of c's, and if it does not come to that, all is closed.
//
// Memory:  up to 2 MiB, used as characters come
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
  // `tokens`: the bytes of every token that merging can make, and perhaps of others. Both must live as
  // long as this does, and are read when characters are asked for: text in ASCII does not.
  SolidCharacters(const std::vector<std::string>& tokens, const MergeTable& table)
      : tokens_(tokens), table_(table) {}

  struct Start {
    size_t count;   // of tokens
    uint64_t open;  // of up to 64: a bit for each that may merge with the one behind it
  };
  // Writes the tokens that merging the piece may begin with; there must be room for one a byte.
  Start begin(const uint8_t* piece, size_t length, uint32_t* ids) const;

 private:
  static constexpr uint32_t kNumCodes = 0x10000;  // characters of two and three bytes
  using Bytes = std::bitset<256>;
  // Of a character, or of a space and a character.
  struct Tokens {
    std::array<uint32_t, 4> ids;  // of 24 bits; above them, in the first, `count` and `closed`
    // 0: it has to be merged with what is around it.
    unsigned count() const { return ids[0] >> 24 & 7; }
    bool closed() const { return ids[0] >> 31 != 0; }
  };

  static constexpr uint32_t kRow = 64;  // characters that are made at a time

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
  // The bytes that stand in some token before the first one or two bytes of a character, and behind its
  // last one or two: by these bytes, six bits of each.
  mutable std::vector<Bytes> before_one_, before_two_, behind_one_, behind_two_;
};

}  // namespace lowtide
