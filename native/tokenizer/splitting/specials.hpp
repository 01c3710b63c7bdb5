// Find special tokens in text: the leftmost first, at one position the longest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lowtide {

class SpecialFinder {
 public:
  SpecialFinder() = default;
  // An empty token is refused; equal ones are found as the first of them. `takes_blanks`: some of
  // them include the blanks beside them.
  explicit SpecialFinder(std::vector<std::string> tokens, bool takes_blanks = false);

  struct Match {
    size_t begin;  // npos if there is none
    size_t length;
    size_t index;  // in the list given
  };
  static constexpr size_t npos = static_cast<size_t>(-1);

  // The first occurrence at or after `from`.
  Match find(const uint8_t* text, size_t length, size_t from) const;
  // True if text can be cut before text[at], a safe cut for the pattern, without changing the
  // occurrences: none begins before it and ends after it, or includes blanks across it.
  bool allows_cut(const uint8_t* text, size_t length, size_t at) const;
  // True if an occurrence begins before `at` and ends after it.
  bool spans(const uint8_t* text, size_t length, size_t at) const;

  bool empty() const { return tokens_.empty(); }
  size_t longest() const { return longest_; }
  size_t length_of(size_t index) const { return tokens_[index].size(); }

 private:
  std::vector<std::string> tokens_;
  std::vector<size_t> by_length_;  // indices, longest first
  bool is_first_[256] = {};
  // The pairs of bytes that tokens begin with, a bit each; empty if a token is a single byte.
  std::vector<uint64_t> begins_;
  bool takes_blanks_ = false;
  int only_first_ = -1;  // the one first byte, if they all share it
  size_t longest_ = 0;
};

}  // namespace lowtide
