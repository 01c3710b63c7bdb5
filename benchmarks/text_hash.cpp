// The hash of lines and documents beside XXH3-128: speed on a text, spreading, collisions.
//
//   XXHASH=$(.venv/bin/python -c "import pyarrow as p; print(p.get_include())")/arrow/vendored
//   c++ -std=c++20 -O3 -I native -I $XXHASH benchmarks/text_hash.cpp -o /tmp/text_hash
//   /tmp/text_hash corpus.txt
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include "corpus/text_hash.hpp"
#include "xxhash/xxhash.h"

namespace {

using lowtide::Hash128;

struct Ours {
  static constexpr const char* kName = "hash128";
  static Hash128 hash(std::string_view text) {
    return lowtide::hash128(text.data(), text.size(), 1);
  }
};

struct Xxh3 {
  static constexpr const char* kName = "XXH3-128";
  static Hash128 hash(std::string_view text) {
    const XXH128_hash_t found = XXH3_128bits_withSeed(text.data(), text.size(), 1);
    return {found.low64, found.high64};
  }
};

template <typename Hasher>
double seconds_for(const std::vector<std::string_view>& texts) {
  double best = 1e9;
  uint64_t sum = 0;
  for (int round = 0; round < 7; ++round) {
    const auto began = std::chrono::steady_clock::now();
    for (const std::string_view text : texts) sum += Hasher::hash(text).low;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
    best = std::min(best, taken.count());
  }
  if (sum == 42) std::puts("");  // the sums are wanted, so nothing is left out
  return best;
}

// How far the chance that an output bit changes with an input bit is from one half, at most.
template <typename Hasher>
double worst_bias() {
  double worst = 0;
  for (const size_t size : {3, 8, 15, 16, 17, 31, 33, 64, 200}) {
    const size_t rounds = 4096;
    std::vector<uint32_t> flips(size * 8 * 128);
    uint64_t state = 7;
    for (size_t round = 0; round < rounds; ++round) {
      std::string text(size, ' ');
      for (char& letter : text) letter = static_cast<char>(lowtide::scatter64(++state) >> 56);
      const Hash128 before = Hasher::hash(text);
      for (size_t bit = 0; bit < size * 8; ++bit) {
        text[bit / 8] ^= static_cast<char>(1 << bit % 8);
        const Hash128 after = Hasher::hash(text);
        text[bit / 8] ^= static_cast<char>(1 << bit % 8);
        for (size_t out = 0; out < 128; ++out) {
          const uint64_t word = out < 64 ? before.low ^ after.low : before.high ^ after.high;
          flips[bit * 128 + out] += word >> out % 64 & 1;
        }
      }
    }
    for (const uint32_t count : flips) {
      worst = std::max(worst, std::abs(static_cast<double>(count) / rounds - 0.5));
    }
  }
  return worst;
}

// Equal 32-bit quarters of the hashes of 2^20 short texts that count up; 128 are expected in each.
template <typename Hasher>
std::array<size_t, 4> equal_quarters() {
  constexpr size_t kTexts = 1 << 20;
  std::array<std::vector<uint32_t>, 4> parts;
  for (size_t number = 0; number < kTexts; ++number) {
    const Hash128 hash = Hasher::hash("line " + std::to_string(number));
    parts[0].push_back(static_cast<uint32_t>(hash.low));
    parts[1].push_back(static_cast<uint32_t>(hash.low >> 32));
    parts[2].push_back(static_cast<uint32_t>(hash.high));
    parts[3].push_back(static_cast<uint32_t>(hash.high >> 32));
  }
  std::array<size_t, 4> equal{};
  for (size_t part = 0; part < 4; ++part) {
    std::sort(parts[part].begin(), parts[part].end());
    for (size_t i = 1; i < kTexts; ++i) equal[part] += parts[part][i] == parts[part][i - 1];
  }
  return equal;
}

template <typename Hasher>
void report(const std::string& text, const std::vector<std::string_view>& lines,
            const std::vector<std::string_view>& large) {
  const double size = static_cast<double>(text.size());
  const double by_line = seconds_for<Hasher>(lines), by_block = seconds_for<Hasher>(large);
  const auto equal = equal_quarters<Hasher>();
  std::printf(
      "%-9s lines %6.2f GB/s (%5.1f ns each)  64 KiB %6.2f GB/s  bias %.3f  equal %zu %zu %zu "
      "%zu\n",
      Hasher::kName, size / by_line / 1e9, by_line / static_cast<double>(lines.size()) * 1e9,
      size / by_block / 1e9, worst_bias<Hasher>(), equal[0], equal[1], equal[2], equal[3]);
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::puts("usage: text_hash FILE"), 2;
  std::ifstream file(words[1], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string_view> lines, large;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.data() + at, end - at);
    at = end + 1;
  }
  for (size_t at = 0; at < text.size(); at += 1 << 16) {
    large.emplace_back(std::string_view(text).substr(at, 1 << 16));
  }
  std::printf("%zu bytes, %zu lines\n", text.size(), lines.size());
  report<Ours>(text, lines, large);
  report<Xxh3>(text, lines, large);
}
