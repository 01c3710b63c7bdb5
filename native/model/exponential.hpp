// The exponential function, in a form that the compiler can vectorize.
#pragma once

#include <bit>
#include <cstdint>

namespace lowtide {

// e to the x to about 2 units in the last place; NaN stays NaN.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  // Adding 1.5 * 2^23 to a number leaves the nearest integer in the low bits.
  const float shifted = x * 1.44269504088896341f + 12582912.0f;
  const float rounded = shifted - 12582912.0f;
  const float rest = (x - rounded * 0.693359375f) + rounded * 2.12194440e-4f;
  float sum = 1.9875691500e-4f;
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  const uint32_t power = std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u;
  return sum * std::bit_cast<float>(power << 23);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace lowtide
