#include "loader/orders.hpp"

#include <array>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace lowtide {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
constexpr int kRounds = 8;
// Below this size a network with so few bits would show patterns, and a table is cheap.
constexpr uint64_t kTableSize = 256;
// Halves of at least seven bits; a small size takes a few dozen steps of cycle walking instead.
constexpr int kMinBits = 14;
constexpr uint64_t kMostSamples = uint64_t{1} << 56;

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

uint64_t epoch_key(uint64_t seed, uint64_t epoch) {
  return mix(mix(seed + kGolden) ^ mix(epoch + 2 * kGolden));
}

uint64_t scale(uint64_t hash, uint64_t size) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * size) >> 64);
}

class Permutation {
 public:
  Permutation(uint64_t key, uint64_t size) : size_(size) {
    if (size <= kTableSize) {
      fill_table(key);
      return;
    }
    const int bits = std::max(kMinBits, static_cast<int>(std::bit_width(size - 1)));
    right_bits_ = bits / 2;
    left_bits_ = bits - right_bits_;
    for (int round = 0; round < kRounds; ++round) keys_[round] = mix(key + kGolden * (round + 1));
  }

  uint64_t operator()(uint64_t index) const {
    if (size_ <= kTableSize) return table_[index];
    do {
      index = encrypt(index);
    } while (index >= size_);
    return index;
  }

 private:
  void fill_table(uint64_t key) {
    std::iota(table_.begin(), table_.begin() + size_, uint16_t{0});
    for (uint64_t last = size_ - 1; last > 0; --last) {
      std::swap(table_[last], table_[scale(mix(key + kGolden * last), last + 1)]);
    }
  }

  uint64_t encrypt(uint64_t index) const {
    int left_bits = left_bits_, right_bits = right_bits_;
    uint64_t left = index >> right_bits;
    uint64_t right = index & ((uint64_t{1} << right_bits) - 1);
    for (const uint64_t key : keys_) {
      const uint64_t mask = (uint64_t{1} << left_bits) - 1;
      const uint64_t mixed = left ^ (mix(right ^ key) & mask);
      left = right;
      right = mixed;
      std::swap(left_bits, right_bits);
    }
    return (left << right_bits) | right;
  }

  uint64_t size_;
  int left_bits_ = 0;
  int right_bits_ = 0;
  std::array<uint64_t, kRounds> keys_{};
  std::array<uint16_t, kTableSize> table_{};
};

}  // namespace

void shuffled_indices(uint64_t seed, uint64_t size, uint64_t first, size_t count, uint64_t* out) {
  if (count == 0) return;
  if (size == 0) throw std::invalid_argument("there is nothing to shuffle");
  uint64_t epoch = first / size, index = first % size;
  Permutation permutation(epoch_key(seed, epoch), size);
  for (size_t i = 0; i < count; ++i) {
    if (index == size) {
      index = 0;
      permutation = Permutation(epoch_key(seed, ++epoch), size);
    }
    out[i] = permutation(index++);
  }
}

void random_indices(uint64_t seed, uint64_t size, uint64_t first, size_t count, uint64_t* out) {
  if (count > 0 && size == 0) throw std::invalid_argument("there is nothing to draw from");
  const uint64_t key = mix(seed + 3 * kGolden);
  for (size_t i = 0; i < count; ++i) out[i] = scale(mix(key ^ mix(first + i + kGolden)), size);
}

MixtureSchedule::MixtureSchedule(std::vector<uint64_t> weights) : weights_(std::move(weights)) {
  if (weights_.empty()) throw std::invalid_argument("a mixture needs at least one weight");
  for (const uint64_t weight : weights_) {
    if (weight == 0 || weight > (uint64_t{1} << 40)) {
      throw std::invalid_argument("weights must lie between 1 and 2**40");
    }
    total_ += weight;
  }
}

size_t MixtureSchedule::next_source(const uint64_t* taken) const {
  size_t best = 0;
  for (size_t i = 1; i < weights_.size(); ++i) {
    // (2 taken_i + 1) / w_i < (2 taken_best + 1) / w_best, without rounding
    const auto mine = static_cast<unsigned __int128>(2 * taken[i] + 1) * weights_[best];
    const auto theirs = static_cast<unsigned __int128>(2 * taken[best] + 1) * weights_[i];
    if (mine < theirs) best = i;
  }
  return best;
}

void MixtureSchedule::slots(uint64_t first, size_t count, uint32_t* sources,
                            uint64_t* taken) const {
  if (first > kMostSamples) throw std::invalid_argument("a schedule has 2**56 samples at most");
  // By the virtual time t every source has floor(t w_i / total + 1/2) samples, so at most t + n / 2
  // in all: start that far before `first`, and take the last few one by one.
  const uint64_t num = weights_.size();
  const uint64_t time = first > num ? first - num : 0;
  uint64_t done = 0;
  for (size_t i = 0; i < num; ++i) {
    const auto doubled = static_cast<unsigned __int128>(2) * time * weights_[i] + total_;
    taken[i] = time == 0 ? 0 : static_cast<uint64_t>(doubled / (2 * total_));
    done += taken[i];
  }
  std::vector<uint64_t> now(taken, taken + num);
  for (; done < first; ++done) ++now[next_source(now.data())];
  std::copy(now.begin(), now.end(), taken);
  for (size_t i = 0; i < count; ++i) {
    const size_t source = next_source(now.data());
    sources[i] = static_cast<uint32_t>(source);
    ++now[source];
  }
}

}  // namespace lowtide
