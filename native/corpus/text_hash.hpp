// A 128-bit content hash for lines and documents: two lanes of multiply-and-fold over 16 bytes.
//
// Not cryptographic. Values stored on disk (duplicates, split) must be the same on every machine, so
// bytes are always read as little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lowtide {

static_assert(std::endian::native == std::endian::little, "stored files are little-endian");

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
};

inline uint64_t fold_multiply(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t load64(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// A bijection on 64 bits that spreads every input bit over all output bits.
inline uint64_t scatter64(uint64_t word) {
  word ^= word >> 32;
  word *= 0xE9846AF9B1A615DULL;
  word ^= word >> 32;
  word *= 0xE9846AF9B1A615DULL;
  word ^= word >> 28;
  return word;
}

// The hash of the bytes read so far: 16 at a time, and fewer only at the end.
struct HashState {
  static constexpr uint64_t kA = 0x9E3779B97F4A7C15ULL, kB = 0xC2B2AE3D27D4EB4FULL;
  static constexpr uint64_t kC = 0x165667B19E3779F9ULL, kD = 0xD6E8FEB86659FD93ULL;
  uint64_t a, b;

  explicit HashState(uint64_t seed) : a(scatter64(seed ^ kA)), b(scatter64(seed ^ kB)) {}

  void add(const char* bytes) {
    const uint64_t first = load64(bytes), second = load64(bytes + 8);
    a = fold_multiply(first ^ kC ^ a, second ^ kA) + second;
    b = fold_multiply(second ^ kD ^ b, first ^ kB) + first;
  }

  // `left` bytes are less than 16.
  Hash128 finish(const char* bytes, size_t left, size_t size) {
    char rest[16] = {};
    if (left != 0) std::memcpy(rest, bytes, left);
    add(rest);
    a ^= size * kD;
    b ^= size * kC;
    return {scatter64(a + (b << 1 | b >> 63)), scatter64(b ^ scatter64(a))};
  }
};

inline Hash128 hash128(const char* bytes, size_t size, uint64_t seed) {
  HashState state(seed);
  size_t left = size;
  for (; left >= 16; bytes += 16, left -= 16) state.add(bytes);
  return state.finish(bytes, left, size);
}

}  // namespace lowtide
