#include "tokenizer/encoding/piece_cuts.hpp"

namespace lowtide {

namespace {
constexpr size_t kNumCodes = 0x10000;
bool continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }
uint16_t bit_of(uint8_t lead) { return static_cast<uint16_t>(1u << (lead & 0x0F)); }
}  // namespace

void PieceCuts::prepare() const {
  uncut_.assign(kNumCodes, 0);
  pairs_.assign(kPairBits / 64, 0);
  for (const std::string& token : tokens_) add_borders(token);
  for (const auto& [bytes, id] : whole_pieces_) {
    const size_t size = bytes.size();
    if (size < 3) continue;
    const uint8_t* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
    const uint8_t* const last = begin + size - 3;
    if (is_character(begin)) uncut_[code_of(begin)] |= kNeverBefore;
    if (is_character(last)) uncut_[code_of(last)] |= kNeverBehind;
  }
}

void PieceCuts::add_borders(std::string_view token) const {
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(token.data());
  const size_t size = token.size();
  for (size_t at = 1; at < size; ++at) {
    const uint8_t* const p = bytes + at;
    if (!has_lead(p[0]) || !continues(p[-1])) continue;
    if (at >= 3 && is_character(p - 3)) {
      const uint32_t first = code_of(p - 3);
      if (at + 3 > size) {
        uncut_[first] |= bit_of(p[0]);
      } else {
        const uint32_t hash = pair_hash(first, code_of(p));
        pairs_[hash / 64] |= uint64_t{1} << (hash % 64);
      }
    } else if (at == 1 || (at == 2 && continues(p[-2]))) {
      // All characters that end with these bytes.
      const uint32_t step = at == 1 ? 0x40 : 0x1000;
      uint32_t code = p[-1] & 0x3Fu;
      if (at == 2) code |= uint32_t{p[-2] & 0x3Fu} << 6;
      for (; code < kNumCodes; code += step) uncut_[code] |= bit_of(p[0]);
    }
  }
}

size_t PieceCuts::cut(const uint8_t* text, size_t begin, std::span<const uint32_t> ends,
                      uint32_t* parts) const {
  std::call_once(prepared_, [&] { prepare(); });
  uint32_t* out = parts;
  for (const uint32_t end : ends) {
    if (end - begin > kUncut) out = cut_piece(text, begin, end, out);
    *out++ = end;
    begin = end;
  }
  return static_cast<size_t>(out - parts);
}

uint32_t* PieceCuts::cut_piece(const uint8_t* text, size_t begin, size_t end,
                               uint32_t* parts) const {
  while (begin + 6 <= end) {
    const uint8_t* p = text + begin;
    if (!is_character(p)) {
      ++begin;
      continue;
    }
    uint32_t first = code_of(p);
    uint32_t uncut = uncut_[first];
    for (begin += 3, p += 3; begin + 3 <= end && is_character(p); begin += 3, p += 3) {
      const uint32_t second = code_of(p);
      const uint32_t hash = pair_hash(first, second);
      const uint32_t others = uncut_[second];
      const uint64_t in_token = pairs_[hash / 64] >> (hash % 64) | uncut >> (p[0] & 0x0F) | others;
      // Without a branch, which would be unpredictable.
      *parts = static_cast<uint32_t>(begin);
      parts += ~in_token & 1;
      first = second;
      uncut = others;
    }
  }
  return parts;
}

}  // namespace lowtide
