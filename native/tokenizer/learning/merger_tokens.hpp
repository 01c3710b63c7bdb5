// The tokens that merging makes, and the tie-break between pairs with the same count.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lowtide {

// Which of several pairs with the same count is merged first.
enum class TieBreak : uint8_t {
  kHuggingFace,  // the smallest pair of ids, bytes numbered in the order of their printable forms
  kCs336,        // the greatest pair of byte strings
};

struct Merge {
  uint32_t left, right, token;  // 0 to 255: bytes; 256 + n: the n-th token made
};

struct PairCount {
  int64_t count;
  uint32_t left, right;
};

// A limit for the bytes of a token. Repetitive text without a place to cut has tokens as long as
// itself, which need many times their size wherever the vocabulary is loaded.
constexpr size_t kAnyLength = std::numeric_limits<size_t>::max();

// Symbols 0 to 255 are the bytes, in tie-break order; those above are tokens made by merges.
class TokenTable {
 public:
  explicit TokenTable(TieBreak tie_break, size_t longest_token = kAnyLength)
      : tie_break_(tie_break), longest_token_(longest_token) {
    size_t next = 0;
    const bool by_printable = tie_break == TieBreak::kHuggingFace;
    for (const bool printable : {true, false}) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        if (by_printable ? is_printable(byte) == printable : printable) {
          byte_of_[next++] = static_cast<uint8_t>(byte);
        }
      }
    }
    for (uint32_t symbol = 0; symbol < 256; ++symbol) {
      symbol_of_[byte_of_[symbol]] = symbol;
      tokens_.push_back(std::string(1, static_cast<char>(byte_of_[symbol])));
    }
  }

  TieBreak tie_break() const { return tie_break_; }
  uint32_t symbol_of(uint8_t byte) const { return symbol_of_[byte]; }
  size_t size() const { return tokens_.size(); }
  const std::vector<Merge>& merges() const { return merges_; }

  // Records the merge of two symbols and returns the token they make. See merger.hpp for why no two
  // merges spell the same token.
  uint32_t merge(uint32_t left, uint32_t right) {
    const uint32_t token = static_cast<uint32_t>(tokens_.size());
    tokens_.push_back(tokens_[left] + tokens_[right]);
    longest_made_ = std::max(longest_made_, tokens_.back().size());
    merges_.push_back({plain(left), plain(right), token});
    return token;
  }

  // True if the token of two symbols is not too long.
  bool can_merge(uint32_t left, uint32_t right) const {
    return tokens_[left].size() + tokens_[right].size() <= longest_token_;
  }
  // True if any two symbols can be merged, by their lengths, as is usual in text of words.
  bool all_can_merge() const { return longest_made_ <= longest_token_ / 2; }

  // For two pairs with the same count: true if (left, right) comes before (other_left,
  // other_right).
  bool before(uint32_t left, uint32_t right, uint32_t other_left, uint32_t other_right) const {
    if (tie_break_ == TieBreak::kHuggingFace) {
      return left != other_left ? left < other_left : right < other_right;
    }
    const int order = tokens_[left].compare(tokens_[other_left]);
    return order != 0 ? order > 0 : tokens_[right].compare(tokens_[other_right]) > 0;
  }
  // True if a pair is merged before another one.
  bool before(const PairCount& a, const PairCount& b) const {
    if (a.count != b.count) return a.count > b.count;
    return before(a.left, a.right, b.left, b.right);
  }

 private:
  // Byte-level tokenizers write bytes as printable characters; these are the bytes written as their
  // own Latin-1 character. The others use characters from U+0100 on, and so sort after them.
  static bool is_printable(unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  }
  uint32_t plain(uint32_t symbol) const { return symbol < 256 ? byte_of_[symbol] : symbol; }

  TieBreak tie_break_;
  size_t longest_token_;
  size_t longest_made_ = 1;
  uint8_t byte_of_[256];
  uint32_t symbol_of_[256];
  std::vector<std::string> tokens_;  // by symbol
  std::vector<Merge> merges_;
};

}  // namespace lowtide
