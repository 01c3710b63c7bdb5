#include "tokenizer/encoding/encoder.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "tokenizer/splitting/windows.hpp"

namespace lowtide {

namespace {
constexpr size_t kEndsBatch = 2048;
constexpr size_t kLargestPart = size_t{1} << 30;
constexpr size_t kLargestScratch = LongPieceMerger::kChunk;  // of pieces whose ids are together
// Of a piece that is in no slot; no key of a piece has this length.
constexpr PieceKey kNoKey = {0, ~uint64_t{0}};
constexpr std::string_view kBlankSign = "\xE2\x96\x81";
}  // namespace

template <typename Id>
TextEncoder<Id>::TextEncoder(const Vocabulary& vocabulary, size_t cache_bytes)
    : vocabulary_(vocabulary),
      split_(splitter(vocabulary.pattern())),
      long_merger_(vocabulary),
      // Three quarters for short pieces, the rest for long ones.
      cache_(std::max<size_t>(cache_bytes / 4 * 3, 1 << 14)),
      long_cache_(std::max<size_t>(cache_bytes / 4, 1 << 14)),
      ends_(kEndsBatch) {}

template <typename Id>
template <typename Sink>
void TextEncoder<Id>::encode_part(const uint8_t* text, size_t length, const Sink& sink) {
  size_t begin = 0, position = 0;
  while (position < length) {
    const size_t count = split_(text, length, &position, ends_.data(), ends_.size());
    if (position - begin > kLargestScratch) [[unlikely]] {
      encode_long_batch({text, length, begin, ends_.data(), count}, sink);
      begin = position;
      continue;
    }
    const size_t room = position - begin + PieceCache<Id>::kIds;
    if (scratch_.size() < room) scratch_.resize(room);
    Id* out = scratch_.data();
    for (size_t first = 0; first < count; first += kBatch) {
      const size_t n = std::min(kBatch, count - first);
      out = encode_batch({text, length, begin, ends_.data() + first, n}, out);
      begin = ends_[first + n - 1];
    }
    sink(scratch_.data(), static_cast<size_t>(out - scratch_.data()));
  }
}

template <typename Id>
template <typename Sink>
void TextEncoder<Id>::encode_long_batch(const Batch& batch, const Sink& sink) {
  const bool has_halves = vocabulary_.halves().first != kNoToken;
  size_t begin = batch.begin;
  for (size_t first = 0; first < batch.count;) {
    size_t count = 0;  // of pieces that fit the scratch together
    while (first + count < batch.count && count < kBatch &&
           batch.ends[first + count] - begin <= kLargestScratch) {
      ++count;
    }
    if (count == 0) {
      const size_t length = batch.ends[first] - begin;
      long_merger_.merge(batch.text + begin, length, [&](std::span<const uint32_t> ids) {
        if (has_halves) {
          const uint32_t num_ids = static_cast<uint32_t>(ids.size());
          long_scratch_.assign(ids.begin(), ids.end());
          long_scratch_.resize(vocabulary_.count_expanded(ids.data(), num_ids));
          vocabulary_.expand_halves(long_scratch_.data(), num_ids);
          ids = long_scratch_;
        }
        scratch_.assign(ids.begin(), ids.end());
        sink(scratch_.data(), scratch_.size());
      });
      begin = batch.ends[first++];
      continue;
    }
    const size_t room = batch.ends[first + count - 1] - begin + PieceCache<Id>::kIds;
    if (scratch_.size() < room) scratch_.resize(room);
    Id* const out =
        encode_batch({batch.text, batch.length, begin, batch.ends + first, count}, scratch_.data());
    sink(scratch_.data(), static_cast<size_t>(out - scratch_.data()));
    first += count;
    begin = batch.ends[first - 1];
  }
}

template <typename Id>
template <typename Sink>
void TextEncoder<Id>::encode_text(const uint8_t* text, size_t length, const Sink& sink) {
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

template <typename Id>
template <typename Sink>
void TextEncoder<Id>::encode_stretch(std::string_view text, bool is_begin, bool is_first,
                                     const Sink& sink) {
  if (text.size() > kLargestPart) throw std::invalid_argument("more than 1 GiB of text at once");
  const auto encode_bytes = [&](std::string_view part) {
    encode_text(reinterpret_cast<const uint8_t*>(part.data()), part.size(), sink);
  };
  std::string plain;
  if (text.find(kBlankSign) != std::string_view::npos) {  // means the same as a space
    for (size_t at = 0; at < text.size();) {
      const size_t sign = std::min(text.find(kBlankSign, at), text.size());
      plain.append(text, at, sign - at);
      if (sign < text.size()) plain += ' ';
      at = sign + kBlankSign.size();
    }
    text = plain;
  }
  const BlankBefore before = vocabulary_.halves().before;
  bool is_wanted = before != BlankBefore::kNever;
  if (before != BlankBefore::kEach) is_wanted &= text[0] != ' ';
  if (before == BlankBefore::kFirstWithout) is_wanted &= is_begin;
  if (is_begin && !is_first) is_wanted = false;
  if (!is_wanted) return encode_bytes(text);
  // Only the first piece changes.
  const size_t word = std::min(text.find_first_not_of(' '), text.size());
  const size_t end = std::min(text.find(' ', word), text.size());
  stretch_.assign(1, ' ').append(text, 0, end);
  encode_bytes(stretch_);
  encode_bytes(text.substr(end));
}

template <typename Id>
template <typename Sink>
void TextEncoder<Id>::encode(std::string_view text, bool specials, bool is_first,
                             const Sink& sink) {
  const uint8_t* const data = reinterpret_cast<const uint8_t*>(text.data());
  if (vocabulary_.pattern() == Pattern::kSpaces) {
    bool is_begin = true;
    return vocabulary_.added().split(
        text, specials,
        [&](std::string_view part) {
          encode_stretch(part, is_begin, is_first, sink);
          is_begin = false;
        },
        [&](uint32_t token) {
          const Id id = static_cast<Id>(token);
          sink(&id, 1);
          is_begin = false;
        });
  }
  if (!vocabulary_.added().empty()) {
    return vocabulary_.added().split(
        text, specials,
        [&](std::string_view part) {
          encode_text(reinterpret_cast<const uint8_t*>(part.data()), part.size(), sink);
        },
        [&](uint32_t token) {
          const Id id = static_cast<Id>(token);
          sink(&id, 1);
        });
  }
  if (!specials) return encode_text(data, text.size(), sink);
  size_t at = 0;
  while (at < text.size()) {
    const SpecialFinder::Match match = vocabulary_.special_finder().find(data, text.size(), at);
    const bool found = match.begin != SpecialFinder::npos;
    const size_t end = found ? match.begin : text.size();
    encode_text(data + at, end - at, sink);
    if (found) {
      const Id id = static_cast<Id>(vocabulary_.special_id(match.index));
      sink(&id, 1);
    }
    at = end + match.length;
  }
}

template <typename Id>
Id* TextEncoder<Id>::encode_batch(const Batch& batch, Id* out) {
  // Keys are read 16 bytes at a time, which the last pieces of a text may not have.
  if (batch.ends[batch.count - 1] + 16 <= batch.length) {
    make_keys<true>(batch);
  } else {
    make_keys<false>(batch);
  }
  const size_t num_missing = find_slots(batch.count);
  merge_missing(batch, num_missing);
  const size_t count = batch.count;
  for (size_t i = 0; i < count; ++i) {
    const Slot& slot = *slots_[i];
    if (slot.num_ids() == 0) [[unlikely]] {
      out = encode_long(batch.piece(i), batch.length_of(i), out);
    } else {
      out = slot.write(out);
    }
  }
  // Not before all are written: a newcomer may take the place of a slot that is still to be read.
  for (size_t i = 0; i < num_missing; ++i) {
    if (fresh_[i].key.length() <= kInlineBytes) cache_.keep(fresh_[i]);
  }
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
    slots_[i] = &set->ways[first ? 0 : 1];
    missing_[num_missing] = static_cast<uint32_t>(i);
    num_missing += static_cast<size_t>(!first) & static_cast<size_t>(!second);
  }
  return num_missing;
}

template <typename Id>
void TextEncoder<Id>::merge_missing(const Batch& batch, size_t num_missing) {
  size_t num_merged = 0;
  for (size_t m = 0; m < num_missing; ++m) {
    const size_t i = missing_[m];
    const uint8_t* const piece = batch.piece(i);
    const size_t length = batch.length_of(i);
    Slot& slot = fresh_[m];
    slot.key = keys_[i];
    slot.set_ids({});  // as it stays for a long piece: see encode_long
    slots_[i] = &slot;
    if (length > kInlineBytes) continue;
    if (const uint32_t id = whole_piece(piece, length); id != kNoToken) {
      slot.set_ids({&id, 1});
      continue;
    }
    Merged& merged = merged_[num_merged];
    merged.slot = &slot;
    to_merge_[num_merged++] = {piece, length, merged.ids, &merged.num_ids};
  }
  merger_.merge_short(vocabulary_.merges(), {to_merge_.data(), num_merged});
  const bool has_halves = vocabulary_.halves().first != kNoToken;
  for (size_t m = 0; m < num_merged; ++m) {
    Merged& merged = merged_[m];
    if (has_halves) merged.num_ids = vocabulary_.expand_halves(merged.ids, merged.num_ids);
    if (merged.num_ids <= PieceCache<Id>::kMostIds) {
      merged.slot->set_ids({merged.ids, merged.num_ids});
    } else {
      long_cache_.keep(to_merge_[m].bytes, to_merge_[m].length, {merged.ids, merged.num_ids});
    }
  }
}

template <typename Id>
Id* TextEncoder<Id>::encode_long(const uint8_t* piece, size_t length, Id* out) {
  std::span<const uint32_t> ids;
  if (length <= LongPieceCache::kLongest) ids = long_cache_.find(piece, length);
  if (ids.empty()) {
    if (long_scratch_.size() < length) long_scratch_.resize(length);
    uint32_t num_ids = 1;
    long_scratch_[0] = whole_piece(piece, length);
    if (long_scratch_[0] == kNoToken) {
      merger_.merge(vocabulary_.merges(), {piece, length, long_scratch_.data(), &num_ids});
      if (vocabulary_.halves().first != kNoToken) {
        num_ids = vocabulary_.expand_halves(long_scratch_.data(), num_ids);
      }
    }
    ids = {long_scratch_.data(), num_ids};
    long_cache_.keep(piece, length, ids);
  }
  return std::transform(ids.begin(), ids.end(), out,
                        [](uint32_t id) { return static_cast<Id>(id); });
}

namespace {
template <typename To>
auto append_to(std::vector<To>& ids) {
  return [&ids]<typename From>(const From* data, size_t count) {
    if constexpr (sizeof(To) >= sizeof(From)) {
      ids.insert(ids.end(), data, data + count);
    } else {
      throw std::invalid_argument("ids of this vocabulary do not fit 16 bits");
    }
  };
}
}  // namespace

Encoder::Encoder(std::shared_ptr<const Vocabulary> vocabulary, size_t cache_bytes)
    : vocabulary_(std::move(vocabulary)),
      encoder_(vocabulary_->size() <= 65536
                   ? decltype(encoder_)(std::in_place_type<TextEncoder<uint16_t>>, *vocabulary_,
                                        cache_bytes)
                   : decltype(encoder_)(std::in_place_type<TextEncoder<uint32_t>>, *vocabulary_,
                                        cache_bytes)) {}

void Encoder::encode_ordinary(std::string_view text, std::vector<uint32_t>& ids) {
  std::visit([&](auto& encoder) { encoder.encode(text, false, true, append_to(ids)); }, encoder_);
}
void Encoder::encode_with_specials(std::string_view text, std::vector<uint32_t>& ids) {
  std::visit([&](auto& encoder) { encoder.encode(text, true, true, append_to(ids)); }, encoder_);
}
void Encoder::encode_pieces(std::string_view text, bool specials, bool is_first,
                            std::vector<uint32_t>& ids) {
  std::visit([&](auto& encoder) { encoder.encode(text, specials, is_first, append_to(ids)); },
             encoder_);
}
void Encoder::encode_ordinary(std::string_view text, std::vector<uint16_t>& ids) {
  std::visit([&](auto& encoder) { encoder.encode(text, false, true, append_to(ids)); }, encoder_);
}
void Encoder::encode_with_specials(std::string_view text, std::vector<uint16_t>& ids) {
  std::visit([&](auto& encoder) { encoder.encode(text, true, true, append_to(ids)); }, encoder_);
}

template <typename Id>
void Encoder::encode_in_parts(std::string_view text, bool specials,
                              const std::function<void(const Id*, size_t)>& sink) {
  std::vector<Id> wide;
  std::visit(
      [&](auto& encoder) {
        encoder.encode(text, specials, true, [&]<typename From>(const From* data, size_t count) {
          if constexpr (std::is_same_v<From, Id>) {
            sink(data, count);
          } else if constexpr (sizeof(From) < sizeof(Id)) {
            wide.assign(data, data + count);
            sink(wide.data(), count);
          } else {
            throw std::invalid_argument("ids of this vocabulary do not fit 16 bits");
          }
        });
      },
      encoder_);
}
template void Encoder::encode_in_parts(std::string_view, bool,
                                       const std::function<void(const uint16_t*, size_t)>&);
template void Encoder::encode_in_parts(std::string_view, bool,
                                       const std::function<void(const uint32_t*, size_t)>&);

}  // namespace lowtide
