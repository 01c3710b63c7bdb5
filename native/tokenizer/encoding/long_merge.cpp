#include "tokenizer/encoding/long_merge.hpp"

#include <algorithm>

namespace lowtide {

LongPieceMerger::LongPieceMerger(const Vocabulary& vocabulary, size_t chunk)
    : vocabulary_(vocabulary),
      longest_(vocabulary.longest()),
      chunk_(std::max(chunk, 8 * vocabulary.longest())) {}

std::span<const uint32_t> LongPieceMerger::merge_chunk(const uint8_t* text, size_t length) {
  if (ids_.size() < length) ids_.resize(length);
  uint32_t count = 0;
  merger_.merge(vocabulary_.merges(), {text, length, ids_.data(), &count});
  return {ids_.data(), count};
}

size_t LongPieceMerger::count_proven(const uint8_t* text, size_t length,
                                     std::span<const uint32_t> ids, size_t& bytes) {
  // A border near the end is usually enough; the further back, the longer a proof takes.
  size_t border = length, count = ids.size();
  for (size_t distance = 2 * longest_; distance < length; distance *= 4) {
    while (count > 0 && length - border < distance) {
      border -= vocabulary_.token(ids[--count]).size();
    }
    if (count == 0) return 0;
    if (stays(text, length, border, ids[count - 1])) {
      bytes = border;
      return count;
    }
  }
  return 0;
}

bool LongPieceMerger::stays(const uint8_t* text, size_t length, size_t border, uint32_t left) {
  uint32_t known = kNoToken;  // the last right-hand token that was proved not to merge
  tail_ids_.resize(length - border);
  for (size_t end = length - longest_ + 1; end <= length; ++end) {
    uint32_t count = 0;
    merger_.merge(vocabulary_.merges(), {text + border, end - border, tail_ids_.data(), &count});
    if (tail_ids_[0] == known) continue;
    if (!keep_apart(left, tail_ids_[0])) return false;
    known = tail_ids_[0];
  }
  return true;
}

bool LongPieceMerger::keep_apart(uint32_t left, uint32_t right) {
  const std::string& a = vocabulary_.token(left);
  const std::string& b = vocabulary_.token(right);
  pair_.assign(a.begin(), a.end());
  pair_.insert(pair_.end(), b.begin(), b.end());
  std::vector<uint32_t> ids(pair_.size());
  uint32_t count = 0;
  merger_.merge(vocabulary_.merges(), {pair_.data(), pair_.size(), ids.data(), &count});
  return count == 2 && ids[0] == left && ids[1] == right;
}

}  // namespace lowtide
