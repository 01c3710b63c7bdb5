#include "model/packed_states.hpp"

#include <bit>
#include <cmath>

#include "system/clones.hpp"

// Compiled without fused multiplication and addition, which only some processors have.

namespace lowtide {
namespace {

constexpr float kWhole = 12582912.0f;       // 1.5 * 2^23: adding it leaves the nearest integer
constexpr int32_t kWholeBits = 0x4B400000;  // in the low bits
constexpr float kFirstUnit = 1.0f / 127.0f, kSecondUnit = 1.0f / 255.0f;

inline int32_t nearest(float x) { return std::bit_cast<int32_t>(x + kWhole) - kWholeBits; }

inline float widen(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline float join(uint16_t weight, int8_t rest) {
  return std::bit_cast<float>(((uint32_t{weight} << 8) + static_cast<uint32_t>(int32_t{rest}))
                              << 8);
}

// Write a weight in 24 bits, with stochastic rounding.
inline void split(float weight, uint32_t by_chance, uint16_t& high_bits, int8_t& rest) {
  const uint32_t kept = (std::bit_cast<uint32_t>(weight) + by_chance) >> 8;
  const uint32_t high = (kept + 0x80u) >> 8;
  high_bits = static_cast<uint16_t>(high);
  rest = static_cast<int8_t>(kept - (high << 8));
}

inline float first_moment(int8_t code, float scale) {
  const float bent = static_cast<float>(code) * kFirstUnit;
  return bent / (2.0f - std::fabs(bent)) * scale;
}

inline int8_t first_code(float moment, float scale) {
  const float x = moment / scale;
  return static_cast<int8_t>(nearest((x + x) / (1.0f + std::fabs(x)) * 127.0f));
}

inline uint16_t round_to_bfloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Eight random bits for a number of a step.
inline uint32_t chance(uint32_t place, uint32_t seed) {
  uint32_t x = (place * 0x9E3779B1u) ^ seed;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return (x ^ (x >> 16)) & 0xFFu;
}

}  // namespace

LOWTIDE_CLONES
void adamw_packed(const PackedStates& states, const uint16_t* gradients, const PackedStep& step,
                  uint32_t position, size_t num_blocks) {
  float first[kPackedBlock], second[kPackedBlock];
  for (size_t block = 0; block < num_blocks; ++block) {
    const size_t start = block * kPackedBlock;
    uint16_t* const weights = states.weights + start;
    int8_t* const low_bits = states.low_bits + start;
    int8_t* const first_codes = states.first + start;
    uint8_t* const second_codes = states.second + start;
    const uint16_t* const gradient = gradients + start;
    const float first_scale = states.first_scales[block];
    const float second_scale = states.second_scales[block];
    const uint32_t place = position + static_cast<uint32_t>(start);
#pragma omp simd
    for (size_t i = 0; i < kPackedBlock; ++i) {
      const float g = widen(gradient[i]) * step.factor;
      first[i] = step.beta1 * first_moment(first_codes[i], first_scale) + step.rest1 * g;
      float root = static_cast<float>(second_codes[i]) * kSecondUnit;
      root = root * root;
      const float v = root * root * second_scale;
      second[i] = step.beta2 * v + step.rest2 * (g * g);
    }
#pragma omp simd
    for (size_t i = 0; i < kPackedBlock; ++i) {
      const float root = std::sqrt(second[i]) * step.root_factor + step.eps;
      const float weight =
          join(weights[i], low_bits[i]) * step.kept - step.step_size * (first[i] / root);
      split(weight, chance(place + static_cast<uint32_t>(i), step.seed), weights[i], low_bits[i]);
    }
    float first_max = 0.0f, second_max = 0.0f;
#pragma omp simd reduction(max : first_max, second_max)
    for (size_t i = 0; i < kPackedBlock; ++i) {
      first_max = std::fmax(first_max, std::fabs(first[i]));
      second_max = std::fmax(second_max, second[i]);
    }
    states.first_scales[block] = first_max;
    states.second_scales[block] = second_max;
    // All zeros: any divisor gives their code, zero.
    const float first_by = first_max > 0.0f ? first_max : 1.0f;
    const float second_by = second_max > 0.0f ? second_max : 1.0f;
#pragma omp simd
    for (size_t i = 0; i < kPackedBlock; ++i) {
      first_codes[i] = first_code(first[i], first_by);
      const int32_t code = nearest(std::sqrt(std::sqrt(second[i] / second_by)) * 255.0f);
      // Never zero for a nonzero gradient: with a mean of zero, the divisor would be eps alone.
      second_codes[i] = static_cast<uint8_t>(code + (code == 0 && second[i] > 0.0f ? 1 : 0));
    }
  }
}

LOWTIDE_CLONES
void momentum_packed(int8_t* codes, float* scales, uint16_t* gradients, float factor,
                     float momentum, float rest, size_t num_blocks) {
  float moments[kPackedBlock];
  for (size_t block = 0; block < num_blocks; ++block) {
    const size_t start = block * kPackedBlock;
    int8_t* const own = codes + start;
    uint16_t* const gradient = gradients + start;
    const float scale = scales[block];
#pragma omp simd
    for (size_t i = 0; i < kPackedBlock; ++i) {
      const float g = widen(gradient[i]) * factor;
      moments[i] = momentum * first_moment(own[i], scale) + rest * g;
      gradient[i] = round_to_bfloat16(rest * g + momentum * moments[i]);
    }
    float largest = 0.0f;
#pragma omp simd reduction(max : largest)
    for (size_t i = 0; i < kPackedBlock; ++i) {
      largest = std::fmax(largest, std::fabs(moments[i]));
    }
    scales[block] = largest;
    const float by = largest > 0.0f ? largest : 1.0f;
#pragma omp simd
    for (size_t i = 0; i < kPackedBlock; ++i) own[i] = first_code(moments[i], by);
  }
}

LOWTIDE_CLONES
void move_packed(uint16_t* weights, int8_t* low_bits, const uint16_t* steps, const PackedMove& move,
                 uint32_t position, size_t size) {
#pragma omp simd
  for (size_t i = 0; i < size; ++i) {
    const float old = join(weights[i], low_bits[i]);
    const float step = widen(steps[i]);
    const float kept = move.cautious && old * step < 0.0f ? 1.0f : move.kept;
    const float weight = old * kept - move.rate * step;
    split(weight, chance(position + static_cast<uint32_t>(i), move.seed), weights[i], low_bits[i]);
  }
}

LOWTIDE_CLONES
void pack_weights(const float* values, uint16_t* weights, int8_t* low_bits, size_t size) {
#pragma omp simd
  for (size_t i = 0; i < size; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    split(values[i], 0x7Fu + ((bits >> 8) & 1u), weights[i], low_bits[i]);
  }
}

LOWTIDE_CLONES
void unpack_weights(const uint16_t* weights, const int8_t* low_bits, float* out, size_t size) {
#pragma omp simd
  for (size_t i = 0; i < size; ++i) out[i] = join(weights[i], low_bits[i]);
}

}  // namespace lowtide
