#include "tokenizer/encoding/encoder.hpp"

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "tokenizer/splitting/windows.hpp"

namespace lowtide {

namespace {
constexpr size_t kEndsBatch = 2048;
constexpr size_t kLargestPart = size_t{1} << 30;
constexpr size_t kLargestScratch = LongPieceMerger::kChunk;  // of pieces whose ids are contiguous
constexpr std::string_view kBlankSign = "\xE2\x96\x81";
}  // namespace

template <typename Id>
TextEncoder<Id>::TextEncoder(const Vocabulary& vocabulary, size_t cache_bytes)
    : vocabulary_(vocabulary),
      split_(splitter(vocabulary.pattern())),
      long_merger_(vocabulary),
      // Three quarters for short pieces, an eighth for each of the others.
      cache_(std::max<size_t>(cache_bytes / 4 * 3, 1 << 14)),
      wide_cache_(std::max<size_t>(cache_bytes / 8, 1 << 14)),
      long_cache_(std::max<size_t>(cache_bytes / 8, 1 << 14)),
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
    const size_t room = position - begin + kReadIds;
    if (scratch_.size() < room) scratch_.resize(room);
    Id* out = scratch_.data();
    const std::span<const uint32_t> ends = cut_pieces(text, begin, count);
    for (size_t first = 0; first < ends.size(); first += kBatch) {
      const size_t n = std::min(kBatch, ends.size() - first);
      out = encode_batch({text, length, begin, ends.data() + first, n}, out);
      begin = ends[first + n - 1];
    }
    sink(scratch_.data(), static_cast<size_t>(out - scratch_.data()));
  }
}

template <typename Id>
std::span<const uint32_t> TextEncoder<Id>::cut_pieces(const uint8_t* text, size_t begin,
                                                      size_t count) {
  const std::span<const uint32_t> ends(ends_.data(), count);
  if (!is_cut_) return ends;
  const size_t room = count + (ends.back() - begin) / 3;
  if (parts_.size() < room) parts_.resize(room);
  const size_t num_parts = vocabulary_.cuts().cut(text, begin, ends, parts_.data());
  is_cut_ = num_parts > count;
  return {parts_.data(), num_parts};
}

template <typename Id>
template <typename Sink>
void TextEncoder<Id>::encode_long_batch(const Batch& batch, const Sink& sink) {
  const bool has_halves = vocabulary_.halves().first != kNoToken;
  size_t begin = batch.begin;
  for (size_t first = 0; first < batch.count;) {
    size_t count = 0;  // of pieces that fit into the scratch together
    while (first + count < batch.count && count < kBatch &&
           batch.ends[first + count] - begin <= kLargestScratch) {
      ++count;
    }
    if (count == 0) {
      const size_t length = batch.ends[first] - begin;
      long_merger_.merge(batch.text + begin, length, [&](std::span<const uint32_t> ids) {
        if (has_halves) {
          const uint32_t num_ids = static_cast<uint32_t>(ids.size());
          merge_scratch_.assign(ids.begin(), ids.end());
          merge_scratch_.resize(vocabulary_.count_expanded(ids.data(), num_ids));
          vocabulary_.expand_halves(merge_scratch_.data(), num_ids);
          ids = merge_scratch_;
        }
        scratch_.assign(ids.begin(), ids.end());
        sink(scratch_.data(), scratch_.size());
      });
      begin = batch.ends[first++];
      continue;
    }
    const size_t room = batch.ends[first + count - 1] - begin + kReadIds;
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
  // Offsets of pieces have 32 bits, so very long text is processed in parts.
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
  if (text.find(kBlankSign) != std::string_view::npos) {  // equivalent to a space
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
