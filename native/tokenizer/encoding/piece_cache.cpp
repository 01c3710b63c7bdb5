#include "tokenizer/encoding/piece_cache.hpp"

#include <algorithm>
#include <bit>

namespace lowtide {

LongPieceCache::LongPieceCache(size_t bytes)
    : entries_(std::bit_floor(bytes / 4 / sizeof(Entry))),
      arena_(bytes / 4 * 3 / sizeof(uint32_t)) {}

std::span<const uint32_t> LongPieceCache::find(const uint8_t* piece, size_t length) const {
  const uint64_t hash = hash_of(piece, length);
  const Entry& entry = entries_[place_of(hash)];
  if (entry.hash != hash || entry.length != length ||
      std::memcmp(arena_.data() + entry.offset, piece, length) != 0) {
    return {};
  }
  return {arena_.data() + entry.offset + (length + 3) / 4, entry.num_ids};
}

void LongPieceCache::keep(const uint8_t* piece, size_t length, std::span<const uint32_t> ids) {
  const size_t byte_words = (length + 3) / 4;
  const size_t words = byte_words + ids.size();
  if (length > kLongest || words > arena_.size()) return;
  if (arena_used_ + words > arena_.size()) {  // full: begin again
    std::fill(entries_.begin(), entries_.end(), Entry{});
    arena_used_ = 0;
  }
  const uint64_t hash = hash_of(piece, length);
  entries_[place_of(hash)] = {hash, static_cast<uint32_t>(arena_used_),
                              static_cast<uint32_t>(length), static_cast<uint32_t>(ids.size())};
  std::memcpy(arena_.data() + arena_used_, piece, length);
  std::copy(ids.begin(), ids.end(),
            arena_.begin() + static_cast<ptrdiff_t>(arena_used_ + byte_words));
  arena_used_ += words;
}

}  // namespace lowtide
