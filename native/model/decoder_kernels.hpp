// The parts of a decoder's step for one row or one head. Nothing here allocates.
//
// A step with few rows reads all weights once and does little with each, so its time is that of
// reading them: numbers stay as files have them, two bytes for bfloat16, and become float32 in
// registers. Some rows of x and of a matrix are multiplied side by side, so that what was read serves
// all of them while it is there. Every sum is a chain of its own in a fixed order: neither the rows
// beside it nor the number of threads change a bit of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

enum class NumberKind : uint8_t { float32, bfloat16, float16 };

// The numbers of a matrix [out, in] as files have them; sums are float32 whatever they are.
struct Matrix {
  const void* numbers = nullptr;
  NumberKind kind = NumberKind::float32;
};

// y = x * rsqrt(mean(x^2) + eps) * weight; all ones where there is no weight.
void norm_row(const float* x, const float* weight, float eps, float* y, size_t width);
// With the mean taken off first, and a bias.
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, float* y,
                    size_t width);

// The pairs (j, head_dim / 2 + j) of a head turned by the angles of its position.
void turn_head(float* x, const float* cos, const float* sin, size_t head_dim);

// What one query finds in keys and values [length, head_dim]: their mean, weighted by the softmax
// of its products with the keys.
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
