#include "tokenizer/encoding/piece_cache.hpp"

#include <algorithm>
#include <bit>

namespace lowtide {

namespace {
template <typename Id>
constexpr size_t room_for(size_t bytes) {
  return (bytes + sizeof(Id) - 1) / sizeof(Id);
}
}  // namespace

template <typename Id>
LongPieceCache<Id>::LongPieceCache(size_t bytes)
    : entries_(std::bit_floor(bytes / 4 / sizeof(Entry))), arena_(bytes / 4 * 3 / sizeof(Id)) {}

template <typename Id>
std::span<const Id> LongPieceCache<Id>::find(uint64_t hash, const uint8_t* piece,
                                             size_t length) const {
  const Entry& entry = entries_[place_of(hash)];
  if (entry.hash != hash || entry.length != length ||
      std::memcmp(arena_.data() + entry.offset, piece, length) != 0) {
    return {};
  }
  return {arena_.data() + entry.offset + room_for<Id>(length), entry.num_ids};
}

template <typename Id>
void LongPieceCache<Id>::keep(uint64_t hash, const uint8_t* piece, size_t length,
                              std::span<const Id> ids) {
  const size_t room = room_for<Id>(length) + ids.size();
  const size_t slack = kReadBytes / sizeof(Id);
  if (length > kLongest || room + slack > arena_.size()) return;
  if (arena_used_ + room + slack > arena_.size()) {  // full: start again
    std::fill(entries_.begin(), entries_.end(), Entry{});
    arena_used_ = 0;
  }
  entries_[place_of(hash)] = {hash, static_cast<uint32_t>(arena_used_),
                              static_cast<uint16_t>(length), static_cast<uint16_t>(ids.size())};
  std::memcpy(arena_.data() + arena_used_, piece, length);
  std::copy(ids.begin(), ids.end(),
            arena_.begin() + static_cast<ptrdiff_t>(arena_used_ + room_for<Id>(length)));
  arena_used_ += room;
}

template class LongPieceCache<uint16_t>;
template class LongPieceCache<uint32_t>;

}  // namespace lowtide
