// Hash and compare pieces: those of up to 15 bytes are stored in two machine words, longer ones are
// not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lowtide {

constexpr size_t kInlineBytes = 15;

// A piece of at most kInlineBytes bytes, zero-filled; the length is the last byte.
struct PieceKey {
  uint64_t low, high;
  bool operator==(const PieceKey& other) const {
    return ((low ^ other.low) | (high ^ other.high)) == 0;
  }
  size_t length() const { return high >> 56; }
};

namespace detail {
struct KeyMasks {
  uint64_t low[16], high[16];
  constexpr KeyMasks() : low{}, high{} {
    for (int n = 0; n < 16; ++n) {
      low[n] = n >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * n)) - 1;
      high[n] = n <= 8 ? 0 : (uint64_t{1} << (8 * (n - 8))) - 1;
    }
  }
};
inline constexpr KeyMasks kKeyMasks{};
}  // namespace detail

// The key of the `length` <= kInlineBytes bytes at `p`; `text_end` bounds what may be read.
inline PieceKey piece_key(const uint8_t* p, size_t length, const uint8_t* text_end) {
  PieceKey key;
  if (static_cast<size_t>(text_end - p) >= 16) [[likely]] {
    std::memcpy(&key, p, 16);
    key.low &= detail::kKeyMasks.low[length];
    key.high &= detail::kKeyMasks.high[length];
  } else {
    key = {0, 0};
    std::memcpy(&key, p, length);
  }
  key.high |= static_cast<uint64_t>(length) << 56;
  return key;
}

inline uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_key(const PieceKey& key) {
  return mix(key.low ^ 0x9E3779B97F4A7C15ull, key.high ^ 0xD1B54A32D192ED03ull);
}

inline uint64_t hash_bytes(const uint8_t* p, size_t length) {
  uint64_t state = 0x2545F4914F6CDD1Dull ^ length;
  size_t i = 0;
  for (; i + 16 <= length; i += 16) {
    uint64_t words[2];
    std::memcpy(words, p + i, 16);
    state = mix(words[0] ^ state, words[1] ^ 0xA0761D6478BD642Full);
  }
  uint64_t words[2] = {0, 0};
  if (i < length) std::memcpy(words, p + i, length - i);
  return mix(words[0] ^ state, words[1] ^ 0xE7037ED1A0B428DBull);
}

// A piece to be looked up in a table. Tables are probed in two passes over a few pieces: the first
// computes the keys and prefetches the cache lines, the second reads them. `key` and `hash` are set
// for pieces of at most kInlineBytes.
struct Probe {
  PieceKey key;
  uint64_t hash;
  const uint8_t* piece;
  size_t length;
};
constexpr size_t kProbes = 32;

// Makes probes of the `count` pieces that end at `ends` (offsets from `text`), the first of which
// begins at `begin`; calls prefetch(hash) for each short one. Returns the end of the last one.
template <typename Prefetch>
inline size_t make_probes(const uint8_t* text, size_t length, size_t begin, const uint32_t* ends,
                          size_t count, Probe* probes, const Prefetch& prefetch) {
  for (size_t i = 0; i < count; ++i) {
    Probe& probe = probes[i];
    probe.piece = text + begin;
    probe.length = ends[i] - begin;
    begin = ends[i];
    if (probe.length > kInlineBytes) continue;
    probe.key = piece_key(probe.piece, probe.length, text + length);
    probe.hash = hash_key(probe.key);
    prefetch(probe.hash);
  }
  return begin;
}

}  // namespace lowtide
