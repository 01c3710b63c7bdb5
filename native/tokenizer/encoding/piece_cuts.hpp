// Split a piece of Chinese, Japanese or Korean text into parts that can be merged independently.
//
// These scripts have few spaces, so that pieces are whole clauses, and most clauses are new: a cache
// of pieces does not help. But few pairs of characters are adjacent in any token. A merge across the
// border between two characters makes a token with bytes of both sides: at least the last byte of the
// first and the first byte of the second. If no token of the vocabulary contains these, nothing merges
// across, and both sides of the border merge independently. The parts are one or a few characters
// long, and occur repeatedly, so that the cache is effective.
//
// A token that crosses such a border contains one of
//
//  - both characters: their pair is in a bit set by its hash, where a collision only prevents a cut;
//  - the first character and the beginning of the second: the lead bytes of such second characters are
//    stored with the first;
//  - the end of the first: the lead bytes that follow it are stored with all characters with that end.
//
// A vocabulary may have tokens that are a whole piece although merging would not produce them. Such a
// token is never cut, because all its pairs occur in a token (itself), and no part may be mistaken for
// it: there are no cuts before the character it begins with, nor after the one it ends with.
//
// Other scripts are not cut: nearly all pairs of Russian letters are adjacent in some token.
//
// Memory:  0.2 MiB, allocated when such text occurs
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lowtide {

class PieceCuts {
 public:
  using WholePieces = std::unordered_map<std::string_view, uint32_t>;
  // `tokens`: the bytes of every token that merging can make, and maybe of others; `whole_pieces`:
  // those that are not made by merging. Both must outlive this, and are read when there is
  // something to cut.
  PieceCuts(const std::vector<std::string>& tokens, const WholePieces& whole_pieces)
      : tokens_(tokens), whole_pieces_(whole_pieces) {}

  // True if a piece may have something to cut.
  static bool is_candidate(const uint8_t* piece, size_t length) {
    return length > kUncut && (has_lead(piece[0]) || has_lead(piece[1]) || has_lead(piece[3]));
  }
  // Writes the ends of the parts of pieces; piece i ends at text[ends[i]], the first begins at
  // text[begin]. There must be room for one and one more for each three bytes. Returns their
  // number.
  size_t cut(const uint8_t* text, size_t begin, std::span<const uint32_t> ends,
             uint32_t* parts) const;

 private:
  // Pieces this short are frequent enough uncut.
  static constexpr size_t kUncut = 9;
  static constexpr uint8_t kFirstLead = 0xE3, kLastLead = 0xED;  // of kana, Chinese and Korean
  static constexpr size_t kPairBits = size_t{1} << 19;
  static bool has_lead(uint8_t byte) {
    return static_cast<uint8_t>(byte - kFirstLead) <= kLastLead - kFirstLead;
  }
  // 16 bits of a character: four of its lead, twelve of the rest.
  static uint32_t code_of(const uint8_t* p) {
    return uint32_t{p[0] & 0x0Fu} << 12 | uint32_t{p[1] & 0x3Fu} << 6 | (p[2] & 0x3Fu);
  }
  static bool is_character(const uint8_t* p) {
    return has_lead(p[0]) && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80;
  }
  static uint32_t pair_hash(uint32_t first, uint32_t second) {
    return (first << 16 | second) * 0x9E3779B1u >> (32 - 19);
  }
  static constexpr uint16_t kNeverBefore = 1;  // no lead has this bit (0xE0 is not one)
  static constexpr uint16_t kNeverBehind = 0xFFFE;

  void prepare() const;
  void add_borders(std::string_view token) const;
  uint32_t* cut_piece(const uint8_t* text, size_t begin, size_t end, uint32_t* parts) const;

  const std::vector<std::string>& tokens_;
  const WholePieces& whole_pieces_;
  mutable std::once_flag prepared_;
  // By character: the leads of characters that must not be cut off after it, and kNeverBefore.
  mutable std::vector<uint16_t> uncut_;
  mutable std::vector<uint64_t> pairs_;  // a bit by pair_hash
};

}  // namespace lowtide
