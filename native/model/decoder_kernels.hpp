// Kernels of a decoder step for one row or one head. Nothing here allocates.
//
// A step with few rows reads all weights once and does little with each, so it is limited by memory
// bandwidth: weights keep their stored type, two bytes for bfloat16, and become float32 in registers.
// Several rows of x and of a matrix are multiplied together, so that loaded numbers are reused while
// they are in registers. Every sum is computed separately in a fixed order, so that it is
// bit-identical for any other rows and any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

enum class NumberKind : uint8_t { float32, bfloat16, float16 };

// The numbers of a matrix [out, in] in their stored type; sums are always float32.
struct Matrix {
  const void* numbers = nullptr;
  NumberKind kind = NumberKind::float32;
};

// y = x * rsqrt(mean(x^2) + eps) * weight; without a weight, all ones.
void norm_row(const float* x, const float* weight, float eps, float* y, size_t width);
// With the mean subtracted first, and a bias (layer norm).
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, float* y,
                    size_t width);

// Rotates the pairs (j, head_dim / 2 + j) of a head by the angles of its position (RoPE).
void turn_head(float* x, const float* cos, const float* sin, size_t head_dim);

// Attention of one query over keys and values [length, head_dim]: the mean of the values, weighted
// by the softmax of its products with the keys.
void look_up(const float* query, const float* keys, const float* values, size_t length,
             size_t head_dim, float* found);

void add_row(const float* y, float* x, size_t width);    // x += y
void remove_part(const float* own, float* x, size_t n);  // x less its part along `own`
void mix_row(const float* mix, const float* start, float* x, size_t n);  // x = m0 x + m1 start
void cap_row(float cap, float* x, size_t width);                         // cap * tanh(x / cap)
// Gates 2 * sigmoid(x) in place.
void open_row(float* x, size_t width);

// Numbers [first, first + count) of a matrix as float32.
void widen(const Matrix& matrix, size_t first, float* y, size_t count);

// y[i][j] = sum of x[i][k] * weight[j][k], plus bias[j] if there is one, for j in [first, end).
void multiply_rows(const float* x, const Matrix& weight, const float* bias, float* y,
                   size_t num_rows, size_t in, size_t out, size_t first, size_t end);

}  // namespace lowtide
