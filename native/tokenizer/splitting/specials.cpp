#include "tokenizer/splitting/specials.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "tokenizer/splitting/character_classes.hpp"

namespace lowtide {

SpecialFinder::SpecialFinder(std::vector<std::string> tokens, bool takes_blanks)
    : tokens_(std::move(tokens)), takes_blanks_(takes_blanks) {
  for (const std::string& token : tokens_) {
    if (token.empty()) throw std::invalid_argument("a special token is empty");
  }
  by_length_.resize(tokens_.size());
  std::iota(by_length_.begin(), by_length_.end(), size_t{0});
  std::stable_sort(by_length_.begin(), by_length_.end(),
                   [&](size_t a, size_t b) { return tokens_[a].size() > tokens_[b].size(); });
  int distinct = 0;
  for (const std::string& token : tokens_) {
    const uint8_t first = static_cast<uint8_t>(token[0]);
    distinct += !is_first_[first];
    is_first_[first] = true;
    longest_ = std::max(longest_, token.size());
  }
  if (distinct == 1) only_first_ = static_cast<uint8_t>(tokens_[0][0]);
  // For runs of blanks as tokens: most blanks are not followed by another, and then no token is
  // compared.
  const bool has_single = std::any_of(tokens_.begin(), tokens_.end(),
                                      [](const std::string& token) { return token.size() == 1; });
  if (tokens_.empty() || has_single) return;
  begins_.resize(1 << 10);
  for (const std::string& token : tokens_) {
    const size_t pair =
        static_cast<size_t>(static_cast<uint8_t>(token[0])) << 8 | static_cast<uint8_t>(token[1]);
    begins_[pair >> 6] |= uint64_t{1} << (pair & 63);
  }
}

SpecialFinder::Match SpecialFinder::find(const uint8_t* text, size_t length, size_t from) const {
  if (tokens_.empty()) return {npos, 0, 0};
  size_t at = from;
  while (at < length) {
    if (only_first_ >= 0) {
      const void* hit = std::memchr(text + at, only_first_, length - at);
      if (hit == nullptr) break;
      at = static_cast<size_t>(static_cast<const uint8_t*>(hit) - text);
    } else {
      while (at < length && !is_first_[text[at]]) ++at;
      if (at == length) break;
    }
    if (!begins_.empty()) {
      const size_t pair =
          at + 1 < length ? static_cast<size_t>(text[at]) << 8 | text[at + 1] : size_t{0};
      if (at + 1 >= length) break;
      if ((begins_[pair >> 6] >> (pair & 63) & 1) == 0) {
        ++at;
        continue;
      }
    }
    for (const size_t index : by_length_) {
      const std::string& token = tokens_[index];
      if (token.size() <= length - at && std::memcmp(text + at, token.data(), token.size()) == 0) {
        return {at, token.size(), index};
      }
    }
    ++at;
  }
  return {npos, 0, 0};
}

bool SpecialFinder::allows_cut(const uint8_t* text, size_t length, size_t at) const {
  if (tokens_.empty()) return true;
  if (takes_blanks_) {
    // Only a position without a blank on either side is certain.
    const CharClass right = char_at(text + at, text + length).cls;
    if (text[at - 1] == '\n' || right == kSpace || right == kNewline) return false;
  }
  return !spans(text, length, at);
}

bool SpecialFinder::spans(const uint8_t* text, size_t length, size_t at) const {
  for (const std::string& token : tokens_) {
    const size_t size = token.size();
    for (size_t before = 1; before < size && before <= at; ++before) {
      if (at - before + size <= length && text[at] == static_cast<uint8_t>(token[before]) &&
          std::memcmp(text + at - before, token.data(), size) == 0) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace lowtide
