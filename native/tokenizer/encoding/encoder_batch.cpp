// Encoding a batch of pieces: see encoder.hpp.
#include <algorithm>
#include <cstring>

#include "tokenizer/encoding/encoder.hpp"

namespace lowtide {

namespace {
// For a piece that is in no slot; no key of a piece has this length.
constexpr PieceKey kNoKey = {0, ~uint64_t{0}};
}  // namespace

template <typename Id>
Id* TextEncoder<Id>::encode_batch(const Batch& batch, Id* out) {
  // Keys are read 16 bytes at a time, which may exceed the text for its last pieces.
  if (batch.ends[batch.count - 1] + 16 <= batch.length) {
    make_keys<true>(batch);
  } else {
    make_keys<false>(batch);
  }
  size_t num_merged = find_slots(batch.count);
  if (num_merged > 0) {
    num_merged = find_others(batch, num_merged);
    merge_missing(batch, num_merged);
  }
  const size_t count = batch.count;
  for (size_t i = 0; i < count; ++i) {
    const Found found = found_[i];
    std::memcpy(out, found.ids, kReadBytes);  // cheaper than a branch on their number
    out[0] = first_id(out[0]);
    if (found.count > kReadIds) [[unlikely]] {
      std::copy_n(found.ids, found.count, out);
    }
    out += found.count;
  }
  // Only after all are written, because a new piece may replace one that is still to be read.
  keep_merged(batch, num_merged);
  return out;
}

template <typename Id>
template <bool kInside>
void TextEncoder<Id>::make_keys(const Batch& batch) {
  const uint8_t* const text = batch.text;
  const uint8_t* const text_end = text + batch.length;
  const uint32_t* const ends = batch.ends;
  const uint8_t* piece = text + batch.begin;
  const size_t count = batch.count;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* const end = text + ends[i];
    const size_t length = static_cast<size_t>(end - piece);
    PieceKey key = kNoKey;
    if (length <= kInlineBytes) [[likely]] {
      key = piece_key(piece, length, kInside ? piece + 16 : text_end);
    }
    const Set* const set = cache_.set_of(key);
    __builtin_prefetch(set);
    keys_[i] = key;
    sets_[i] = set;
    piece = end;
  }
}

template <typename Id>
size_t TextEncoder<Id>::find_slots(size_t count) {
  size_t num_missing = 0;
  for (size_t i = 0; i < count; ++i) {
    const PieceKey key = keys_[i];
    const Set* const set = sets_[i];
    const bool first = set->ways[0].key == key;
    const bool second = set->ways[1].key == key;
    const auto& block = set->ways[first ? 0 : 1].ids;
    // A missing piece has none: without a branch, which would be unpredictable.
    const uint32_t num_ids = block.count() & (0u - static_cast<uint32_t>(first | second));
    found_[i] = {block.ids, num_ids};
    missing_[num_missing] = static_cast<uint32_t>(i);
    num_missing += num_ids == 0;
  }
  return num_missing;
}

template <typename Id>
size_t TextEncoder<Id>::find_others(const Batch& batch, size_t count) {
  size_t num_probes = 0, num_missing = 0;
  for (size_t m = 0; m < count; ++m) {
    const uint32_t i = missing_[m];
    const uint8_t* const piece = batch.piece(i);
    const size_t length = batch.length_of(i);
    Probe& probe = probes_[num_probes];
    probe.i = i;
    probe.is_long = length > kWideBytes;
    is_cut_ |= PieceCuts::is_candidate(piece, length);
    if (probe.is_long) {
      probe.hash = LongPieceCache<Id>::hash_of(piece, length);
      long_cache_.prefetch(probe.hash);
      ++num_probes;
    } else if (length > kInlineBytes || sets_[i]->has(keys_[i])) {
      probe.key = WideKey(piece, length, batch.text_end());
      probe.slots = wide_cache_.slots_of(probe.key);
      __builtin_prefetch(&probe.slots[0]);
      __builtin_prefetch(&probe.slots[1]);
      ++num_probes;
    } else {
      missing_[num_missing++] = i;
    }
  }
  for (size_t p = 0; p < num_probes; ++p) {
    const Probe& probe = probes_[p];
    bool is_found = false, is_further = probe.is_long;
    if (!probe.is_long) {
      const bool first = probe.slots[0].key == probe.key;
      if (first || probe.slots[1].key == probe.key) {
        const auto& block = probe.slots[first ? 0 : 1].ids;
        found_[probe.i] = {block.ids, block.count()};
        is_found = block.count() > 0;
        is_further = !is_found;
      }
    }
    if (is_further) is_found = find_long(batch, probe);
    missing_[num_missing] = probe.i;
    num_missing += !is_found;
  }
  return num_missing;
}

template <typename Id>
bool TextEncoder<Id>::find_long(const Batch& batch, const Probe& probe) {
  const uint8_t* const piece = batch.piece(probe.i);
  const size_t length = batch.length_of(probe.i);
  const uint64_t hash = probe.is_long ? probe.hash : LongPieceCache<Id>::hash_of(piece, length);
  const std::span<const Id> ids = long_cache_.find(hash, piece, length);
  found_[probe.i] = {ids.data(), static_cast<uint32_t>(ids.size())};
  return !ids.empty();
}

template <typename Id>
void TextEncoder<Id>::merge_missing(const Batch& batch, size_t count) {
  size_t room = 0, num_to_merge = 0;
  for (size_t m = 0; m < count; ++m) room += batch.length_of(missing_[m]);
  if (merge_scratch_.size() < room) merge_scratch_.resize(room);
  if (fresh_.size() < room + kReadIds) fresh_.resize(room + kReadIds);
  uint32_t* ids = merge_scratch_.data();
  for (size_t m = 0; m < count; ++m) {
    const uint32_t i = missing_[m];
    const uint8_t* const piece = batch.piece(i);
    const size_t length = batch.length_of(i);
    merged_[m] = {i, 1, ids};
    *ids = whole_piece(piece, length);
    if (*ids == kNoToken) to_merge_[num_to_merge++] = {piece, length, ids, &merged_[m].num_ids};
    ids += length;
  }
  merger_.merge_all(vocabulary_.merges(), vocabulary_.characters(),
                    {to_merge_.data(), num_to_merge});
  const bool has_halves = vocabulary_.halves().first != kNoToken;
  Id* fresh = fresh_.data();
  for (size_t m = 0; m < count; ++m) {
    Merged& merged = merged_[m];
    if (has_halves) merged.num_ids = vocabulary_.expand_halves(merged.ids, merged.num_ids);
    found_[merged.i] = {fresh, merged.num_ids};
    const size_t length = batch.length_of(merged.i);
    if (length <= kInlineBytes && merged.num_ids > PieceCache<Id>::kMostIds) {
      const WideKey key(batch.piece(merged.i), length, batch.text_end());
      __builtin_prefetch(wide_cache_.slots_of(key));
    }
    fresh = std::transform(merged.ids, merged.ids + merged.num_ids, fresh,
                           [](uint32_t id) { return static_cast<Id>(id); });
  }
}

template <typename Id>
void TextEncoder<Id>::keep_merged(const Batch& batch, size_t count) {
  for (size_t m = 0; m < count; ++m) {
    const size_t i = merged_[m].i;
    const uint8_t* const piece = batch.piece(i);
    const size_t length = batch.length_of(i);
    const std::span<const Id> ids(found_[i].ids, found_[i].count);
    if (length <= kInlineBytes) {
      cache_.keep(keys_[i], ids);
      if (ids.size() <= PieceCache<Id>::kMostIds) continue;
    }
    if (length <= kWideBytes) {
      wide_cache_.keep(WideKey(piece, length, batch.text_end()), ids);
      if (ids.size() <= WidePieceCache<Id>::kMostIds) continue;
    }
    if (length <= LongPieceCache<Id>::kLongest) {
      long_cache_.keep(LongPieceCache<Id>::hash_of(piece, length), piece, length, ids);
    }
  }
}

template uint16_t* TextEncoder<uint16_t>::encode_batch(const Batch&, uint16_t*);
template uint32_t* TextEncoder<uint32_t>::encode_batch(const Batch&, uint32_t*);

}  // namespace lowtide
