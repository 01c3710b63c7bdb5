// Where a piece of Chinese, Japanese or Korean can be cut in parts that merge on their own.
//
// These scripts have few blanks, so that pieces are whole clauses, and most clauses are new: a cache
// of pieces does not help. But few pairs of characters are side by side in a token. A merge across the
// border between two characters makes a token that has bytes of both sides, the last byte of the first
// and the first byte of the second at least. If no token of the vocabulary has, nothing merges across,
// and what is left of the border and what is right of it merge as if the other were not there. The
// parts are a character or a few, and come again and again.
//
// What stands in a token at such a border is one of
//
//  - both characters: their pair is kept in a set of bits by its hash, where a wrong answer only means
//    that there is no cut;
//  - the first character and a part of the second: the leads of such second ones are kept by the first;
//  - a part of the first: the leads behind it are kept by all characters that end so.
//
// A vocabulary may have pieces that are a token as a whole though they would not merge into it. Such a
// token is not cut, having all its pairs in itself, and no part may be mistaken for one: there are no
// cuts before the character it begins with, nor behind the one it ends with.
//
// Other scripts are not cut: nearly all pairs of Russian letters are side by side in some token.
//
// Memory:  0.2 MiB, made when there is such text
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
  // `tokens`: the bytes of every token that merging can make, and perhaps of others; `whole_pieces`:
  // those that are not made by merging. Both must live as long as this does, and are read when there is
  // something to cut.
  PieceCuts(const std::vector<std::string>& tokens, const WholePieces& whole_pieces)
      : tokens_(tokens), whole_pieces_(whole_pieces) {}

  // True if a piece looks as if there were something to cut.
  static bool is_candidate(const uint8_t* piece, size_t length) {
    return length > kUncut && (has_lead(piece[0]) || has_lead(piece[1]) || has_lead(piece[3]));
  }
  // Writes where the parts of pieces end, of which piece i ends at text[ends[i]] and the first begins
  // at text[begin]. There must be room for one and for each three bytes another. Returns their number.
  size_t cut(const uint8_t* text, size_t begin, std::span<const uint32_t> ends,
             uint32_t* parts) const;

 private:
  // Pieces of so few bytes come often enough as they are.
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
  static constexpr uint16_t kNeverBefore = 1;  // no lead has this bit: 0xE0 is none of them
  static constexpr uint16_t kNeverBehind = 0xFFFE;

  void prepare() const;
  void add_borders(std::string_view token) const;
  uint32_t* cut_piece(const uint8_t* text, size_t begin, size_t end, uint32_t* parts) const;

  const std::vector<std::string>& tokens_;
  const WholePieces& whole_pieces_;
  mutable std::once_flag prepared_;
  // By character: the leads of characters that are not cut off behind it, and kNeverBefore.
  mutable std::vector<uint16_t> uncut_;
  mutable std::vector<uint64_t> pairs_;  // a bit by pair_hash
};

}  // namespace lowtide
