#include "encoder.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "windows.hpp"

namespace lowtide {

namespace {
constexpr size_t kEndsBatch = 2048;
constexpr size_t kShortPiece = 48;       // up to here scanning for the lowest rank beats a heap
constexpr size_t kLongestCached = 1024;  // bytes; longer pieces hardly ever come twice
constexpr uint32_t kIdMask = kMaxTokens - 1;
constexpr size_t kLargestPart = size_t{1} << 30;
constexpr size_t kLargestScratch = 1 << 20;

size_t power_of_two_below(size_t value) {
  size_t power = 1;
  while (power * 2 <= value) power *= 2;
  return power;
}
}  // namespace

Encoder::Encoder(std::shared_ptr<const Vocabulary> vocabulary, size_t cache_bytes)
    : vocabulary_(std::move(vocabulary)), split_(splitter(vocabulary_->pattern())) {
  // Three quarters for short pieces, the rest for long ones.
  sets_ = HugeArray<Set>(std::max<size_t>(cache_bytes / 4 * 3, 1 << 14) / sizeof(Set));
  const size_t long_bytes = std::max<size_t>(cache_bytes / 4, 1 << 14);
  long_slots_.resize(power_of_two_below(long_bytes / 4 / sizeof(LongSlot)));
  long_mask_ = long_slots_.size() - 1;
  arena_.resize(long_bytes / 4 * 3 / sizeof(uint32_t));
  ends_.resize(kEndsBatch);
}

template <typename Sink>
void Encoder::encode_part(const uint8_t* text, size_t length, const Sink& sink) {
  size_t begin = 0, position = 0;
  while (position < length) {
    const size_t count = split_(text, length, &position, ends_.data(), ends_.size());
    if (scratch_.size() < position - begin + 4) scratch_.resize(position - begin + 4);
    const uint32_t* const end = encode_pieces(text, length, begin, count, scratch_.data());
    sink(scratch_.data(), static_cast<size_t>(end - scratch_.data()));
    begin = position;
  }
  if (scratch_.size() > kLargestScratch) scratch_ = {};
}

template <typename Sink>
void Encoder::encode_text(const uint8_t* text, size_t length, const Sink& sink) {
  // Offsets of pieces have 32 bits, so very long text is taken in parts.
  static const SpecialFinder no_specials;
  while (length > kLargestPart) {
    const size_t cut = find_cut(text, length, kLargestPart / 2, no_specials);
    if (cut > UINT32_MAX) throw std::runtime_error("no place to cut in 4 GiB: is it text?");
    encode_part(text, cut, sink);
    text += cut;
    length -= cut;
  }
  encode_part(text, length, sink);
}

template <typename Sink>
void Encoder::encode_any(std::string_view text, bool specials, const Sink& sink) {
  const uint8_t* const data = reinterpret_cast<const uint8_t*>(text.data());
  if (!specials) return encode_text(data, text.size(), sink);
  size_t at = 0;
  while (at < text.size()) {
    const SpecialFinder::Match match = vocabulary_->special_finder().find(data, text.size(), at);
    const bool found = match.begin != SpecialFinder::npos;
    const size_t end = found ? match.begin : text.size();
    encode_text(data + at, end - at, sink);
    if (found) {
      const uint32_t id = vocabulary_->special_id(match.index);
      sink(&id, 1);
    }
    at = end + match.length;
  }
}

namespace {
auto append_to(std::vector<uint32_t>& ids) {
  return [&ids](const uint32_t* data, size_t count) { ids.insert(ids.end(), data, data + count); };
}
auto append_to(std::vector<uint16_t>& ids) {
  return [&ids](const uint32_t* data, size_t count) {
    const size_t old = ids.size();
    ids.resize(old + count);
    for (size_t i = 0; i < count; ++i) ids[old + i] = static_cast<uint16_t>(data[i]);
  };
}
}  // namespace

void Encoder::encode_ordinary(std::string_view text, std::vector<uint32_t>& ids) {
  encode_any(text, false, append_to(ids));
}
void Encoder::encode_with_specials(std::string_view text, std::vector<uint32_t>& ids) {
  encode_any(text, true, append_to(ids));
}
void Encoder::encode_ordinary(std::string_view text, std::vector<uint16_t>& ids) {
  encode_any(text, false, append_to(ids));
}
void Encoder::encode_with_specials(std::string_view text, std::vector<uint16_t>& ids) {
  encode_any(text, true, append_to(ids));
}

uint32_t* Encoder::encode_pieces(const uint8_t* text, size_t length, size_t begin, size_t count,
                                 uint32_t* out) {
  Probe probes[kProbes];
  for (size_t first = 0; first < count; first += kProbes) {
    const size_t n = std::min(kProbes, count - first);
    begin = make_probes(text, length, begin, ends_.data() + first, n, probes,
                        [this](uint64_t hash) { __builtin_prefetch(&sets_[set_of(hash)]); });
    for (size_t i = 0; i < n; ++i) {
      const Probe& probe = probes[i];
      if (probe.length > kInlineBytes) {
        out = encode_long(probe.piece, probe.length, out);
        continue;
      }
      Slot* const ways = sets_[set_of(probe.hash)].ways;
      if (!(ways[0].key == probe.key)) {
        if (!(ways[1].key == probe.key)) {
          out = encode_miss(probe.key, probe.hash, probe.piece, out);
          continue;
        }
        std::swap(ways[0], ways[1]);  // newcomers take the second place
      }
      // Always four ids, of which as many count as there are: cheaper than a branch on the number.
      std::memcpy(out, ways[0].ids, sizeof(ways[0].ids));
      const uint32_t num_ids = out[0] >> 24;
      out[0] &= kIdMask;
      out += num_ids;
    }
  }
  return out;
}

uint32_t* Encoder::encode_miss(const PieceKey& key, uint64_t hash, const uint8_t* piece,
                               uint32_t* out) {
  const size_t length = key.length();
  hash |= 1;
  if (const LongSlot* slot = find_long(piece, length, hash)) {
    const uint32_t* const ids = arena_.data() + slot->offset + (length + 3) / 4;
    return std::copy_n(ids, slot->num_ids, out);
  }
  const size_t num_ids = merge_piece(piece, length, out);
  if (num_ids > 4) {
    keep_long(piece, length, hash, out, num_ids);
  } else {
    Slot& slot = sets_[set_of(hash_key(key))].ways[1];
    slot.key = key;
    std::copy_n(out, num_ids, slot.ids);
    slot.ids[0] |= static_cast<uint32_t>(num_ids) << 24;
  }
  return out + num_ids;
}

uint32_t* Encoder::encode_long(const uint8_t* piece, size_t length, uint32_t* out) {
  if (length > kLongestCached) return out + merge_piece(piece, length, out);
  const uint64_t hash = hash_bytes(piece, length) | 1;
  if (const LongSlot* slot = find_long(piece, length, hash)) {
    const uint32_t* const ids = arena_.data() + slot->offset + (length + 3) / 4;
    return std::copy_n(ids, slot->num_ids, out);
  }
  const size_t num_ids = merge_piece(piece, length, out);
  keep_long(piece, length, hash, out, num_ids);
  return out + num_ids;
}

const Encoder::LongSlot* Encoder::find_long(const uint8_t* piece, size_t length,
                                            uint64_t hash) const {
  const LongSlot& slot = long_slots_[(hash >> 8) & long_mask_];
  if (slot.hash != hash || slot.length != length ||
      std::memcmp(arena_.data() + slot.offset, piece, length) != 0) {
    return nullptr;
  }
  return &slot;
}

void Encoder::keep_long(const uint8_t* piece, size_t length, uint64_t hash, const uint32_t* ids,
                        size_t num_ids) {
  const size_t byte_words = (length + 3) / 4;
  if (byte_words + num_ids > arena_.size()) return;
  if (arena_used_ + byte_words + num_ids > arena_.size()) {  // full: begin again
    std::fill(long_slots_.begin(), long_slots_.end(), LongSlot{});
    arena_used_ = 0;
  }
  long_slots_[(hash >> 8) & long_mask_] = {hash, static_cast<uint32_t>(arena_used_),
                                           static_cast<uint32_t>(length),
                                           static_cast<uint32_t>(num_ids)};
  std::memcpy(arena_.data() + arena_used_, piece, length);
  std::copy_n(ids, num_ids, arena_.data() + arena_used_ + byte_words);
  arena_used_ += byte_words + num_ids;
}

size_t Encoder::merge_piece(const uint8_t* piece, size_t length, uint32_t* out) {
  if (vocabulary_->whole_pieces()) {
    const uint32_t id = vocabulary_->whole_piece({reinterpret_cast<const char*>(piece), length});
    if (id != kNoToken) {
      *out = id;
      return 1;
    }
  }
  return length <= kShortPiece ? merge_short(piece, length, out)
                               : merge_with_heap(piece, length, out);
}

size_t Encoder::merge_short(const uint8_t* piece, size_t length, uint32_t* out) const {
  uint32_t ids[kShortPiece];
  MergeResult results[kShortPiece];  // of each token with the next
  size_t n = length;
  for (size_t i = 0; i < n; ++i) ids[i] = vocabulary_->byte_id(piece[i]);
  for (size_t i = 0; i + 1 < n; ++i) results[i] = vocabulary_->merge_bytes(piece[i], piece[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (results[i].rank < results[best].rank) best = i;
    }
    if (results[best].rank == kNoToken) break;
    ids[best] = results[best].token;
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      ids[i] = ids[i + 1];
      results[i] = results[i + 1];
    }
    if (best > 0) results[best - 1] = vocabulary_->merge(ids[best - 1], ids[best]);
    if (best + 1 < n) results[best] = vocabulary_->merge(ids[best], ids[best + 1]);
  }
  std::copy_n(ids, n, out);
  return n;
}

size_t Encoder::merge_with_heap(const uint8_t* piece, size_t length, uint32_t* out) const {
  struct Node {
    uint32_t id, previous, next, rank;
  };
  constexpr uint32_t kNone = 0xFFFFFFFF;
  const uint32_t n = static_cast<uint32_t>(length);
  std::vector<Node> nodes(n);
  std::vector<uint64_t> heap;  // rank and place: the lowest rank first, then the leftmost place
  heap.reserve(n);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t rank = i + 1 < n ? vocabulary_->merge_bytes(piece[i], piece[i + 1]).rank : kNone;
    nodes[i] = {vocabulary_->byte_id(piece[i]), i == 0 ? kNone : i - 1, i + 1 < n ? i + 1 : kNone,
                rank};
    if (rank != kNone) heap.push_back(uint64_t{rank} << 32 | i);
  }
  const auto later = std::greater<uint64_t>();
  std::make_heap(heap.begin(), heap.end(), later);
  const auto update = [&](uint32_t i) {
    Node& node = nodes[i];
    node.rank = node.next == kNone ? kNone : vocabulary_->merge(node.id, nodes[node.next].id).rank;
    if (node.rank == kNone) return;
    heap.push_back(uint64_t{node.rank} << 32 | i);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const uint32_t rank = static_cast<uint32_t>(heap.back() >> 32);
    const uint32_t i = static_cast<uint32_t>(heap.back());
    heap.pop_back();
    if (nodes[i].rank != rank) continue;  // merged away or changed since
    const uint32_t right = nodes[i].next;
    nodes[i].id = vocabulary_->merge(nodes[i].id, nodes[right].id).token;
    nodes[i].next = nodes[right].next;
    nodes[right].rank = kNone;
    if (nodes[i].next != kNone) nodes[nodes[i].next].previous = i;
    if (nodes[i].previous != kNone) update(nodes[i].previous);
    update(i);
  }
  size_t count = 0;
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) out[count++] = nodes[i].id;
  return count;
}

}  // namespace lowtide
