#include "tokenizer/encoding/solid_characters.hpp"

#include <algorithm>
#include <string_view>

namespace lowtide {

namespace {

bool continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// Bytes of the character that begins with `lead`, if it is one of those in the table.
size_t length_of(uint8_t lead) { return lead < 0xC2 || lead >= 0xF0 ? 1 : lead < 0xE0 ? 2 : 3; }

// Two bytes of a character, the second of which continues it.
size_t pair_of(uint8_t first, uint8_t second) {
  return size_t{first & 0x3Fu} << 6 | (second & 0x3Fu);
}

uint64_t bits_below(size_t i) { return i < 64 ? (uint64_t{1} << i) - 1 : ~uint64_t{0}; }

}  // namespace

void SolidCharacters::prepare() const {
  find_borders();
  least_uses_.assign(tokens_.size(), MergeTable::kNoRank);
  table_.visit([&](uint32_t left, uint32_t right, uint32_t rank) {
    least_uses_[left] = std::min(least_uses_[left], rank);
    least_uses_[right] = std::min(least_uses_[right], rank);
  });
  plain_ = std::vector<Tokens>(kNumCodes);
  spaced_ = std::vector<Tokens>(kNumCodes);
}

void SolidCharacters::make_row(uint32_t row) const {
  const std::lock_guard<std::mutex> lock(making_);
  if (is_made_[row].load(std::memory_order_relaxed)) return;  // by another thread meanwhile
  for (uint32_t code = row * kRow; code < (row + 1) * kRow; ++code) {
    plain_[code] = make(code, false);
    spaced_[code] = make(code, true);
  }
  is_made_[row].store(true, std::memory_order_release);
}

void SolidCharacters::find_borders() const {
  before_one_.resize(64);
  before_two_.resize(64 * 64);
  behind_one_.resize(64);
  behind_two_.resize(64 * 64);
  for (const std::string& token : tokens_) {
    const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(token.data());
    const size_t size = token.size();
    size_t rest = 0;  // of a character that began before the token
    while (rest < size && continues(bytes[rest])) ++rest;
    if (rest == 1 && size > 1) behind_one_[bytes[0] & 0x3F].set(bytes[1]);
    if (rest == 2 && size > 2) behind_two_[pair_of(bytes[0], bytes[1])].set(bytes[2]);
    // A character that begins in the token and ends after it: a lead is 0xC2 or more.
    if (size > 1 && length_of(bytes[size - 1]) > 1) {
      before_one_[bytes[size - 1] & 0x3F].set(bytes[size - 2]);
    }
    if (size > 2 && continues(bytes[size - 1]) && length_of(bytes[size - 2]) > 2) {
      before_two_[pair_of(bytes[size - 2], bytes[size - 1])].set(bytes[size - 3]);
    }
  }
  // A continuation byte belongs to no later character, and may merge with the character's last
  // byte.
  for (Bytes& behind : behind_one_) {
    for (unsigned byte = 0x80; byte < 0xC0; ++byte) behind.set(byte);
  }
}

SolidCharacters::Tokens SolidCharacters::make(uint32_t code, bool spaced) const {
  Tokens made{};
  std::array<uint32_t, 4>& ids = made.ids;
  size_t count = 0;
  const auto add = [&](uint32_t byte) {
    ids[count++] = table_.byte_id(static_cast<uint8_t>(byte));
  };
  if (spaced) add(' ');
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
  const size_t size = count - spaced;
  uint32_t latest = 0;
  // Up to where its last token has the whole character, which other tokens may include.
  while (count > 1 && tokens_[ids[count - 1]].size() < size) {
    uint32_t best = MergeTable::kNoRank;
    size_t at = 0;
    for (size_t i = 0; i + 1 < count; ++i) {
      const uint32_t rank = table_.rank(ids[i], ids[i + 1]);
      if (rank < best) best = rank, at = i;
    }
    if (best == MergeTable::kNoRank) break;
    ids[at] = table_.token(best);
    for (size_t i = at + 1; i + 1 < count; ++i) ids[i] = ids[i + 1];
    --count;
    latest = std::max(latest, best);
  }
  const uint32_t last = ids[count - 1];
  const bool closed = tokens_[last].size() < size;
  if (!closed && least_uses_[last] <= latest) return {};
  ids[0] |= static_cast<uint32_t>(count) << 24 | static_cast<uint32_t>(closed) << 31;
  return made;
}

bool SolidCharacters::is_open_before(const uint8_t* piece, size_t at, size_t size) const {
  if (at == 0) return false;
  const uint8_t* const p = piece + at;
  return before_one_[p[0] & 0x3F][p[-1]] || (size == 3 && before_two_[pair_of(p[0], p[1])][p[-1]]);
}

bool SolidCharacters::is_open_behind(const uint8_t* piece, size_t length, size_t at,
                                     size_t size) const {
  if (at + size == length) return false;
  const uint8_t* const p = piece + at;
  return behind_one_[p[size - 1] & 0x3F][p[size]] ||
         (size == 3 && behind_two_[pair_of(p[1], p[2])][p[size]]);
}

SolidCharacters::Start SolidCharacters::begin(const uint8_t* piece, size_t length,
                                              uint32_t* ids) const {
  std::call_once(prepared_, [&] { prepare(); });
  size_t count = 0;
  uint64_t open = ~uint64_t{0};
  for (size_t from = 0; from < length;) {
    const bool spaced = from == 0 && piece[0] == ' ' && length > 1;
    const size_t at = from + spaced;
    const uint8_t lead = piece[at];
    const size_t size = length_of(lead);
    if (size > 1 && size <= length - at && continues(piece[at + 1]) &&
        (size == 2 || (continues(piece[at + 2]) && (lead > 0xE0 || piece[at + 1] >= 0xA0)))) {
      const size_t high = size == 2 ? lead & 0x1Fu : pair_of(lead & 0x0Fu, piece[at + 1]);
      const size_t code = high << 6 | (piece[at + size - 1] & 0x3Fu);
      const Tokens& tokens = tokens_of(static_cast<uint32_t>(code), spaced);
      if (tokens.count() > 0 && (spaced || !is_open_before(piece, at, size)) &&
          !is_open_behind(piece, length, at, size)) {
        const size_t first = count;
        ids[count++] = tokens.ids[0] & (kMaxTokens - 1);
        for (size_t i = 1; i < tokens.count(); ++i) ids[count++] = tokens.ids[i];
        if (tokens.closed()) {  // also for the token before it
          open &= ~bits_below(count) | bits_below(first > 0 ? first - 1 : 0);
        }
        from = at + size;
        continue;
      }
    }
    ids[count++] = table_.byte_id(piece[from]);
    ++from;
  }
  return {count, count <= 64 ? open & bits_below(count - 1) : ~uint64_t{0}};
}

}  // namespace lowtide
