#include "model/decoder_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/exponential.hpp"
#include "system/clones.hpp"

namespace lowtide {
namespace {

constexpr size_t kLanes = 8;    // numbers of one vector
constexpr size_t kOutputs = 4;  // rows of a matrix that are read in parallel
constexpr size_t kRows = 3;     // rows of x whose sums fit into the registers with those
constexpr size_t kGroupNumbers = 65536;
constexpr size_t kPositions = 128;  // keys whose products are held at a time

using Vector = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));
using Bits = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
using Halves = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t)), aligned(2)));

// Exact conversion of a matrix's numbers to float32: a vector of them, or one. Vectors are passed
// by reference, because the ABI of returning them depends on the processor.
struct Float32 {
  using Number = float;
  [[gnu::always_inline]] static void load(const float* from, Vector& into) {
    into = *reinterpret_cast<const Vector*>(from);
  }
  static float one(const float* from) { return *from; }
};

template <typename WIDENED>
struct Half {
  using Number = uint16_t;
  [[gnu::always_inline]] static void load(const uint16_t* from, Vector& into) {
    const Halves halves = *reinterpret_cast<const Halves*>(from);
    WIDENED::widen(__builtin_convertvector(halves, Bits), into);
  }
  static float one(const uint16_t* from) {
    Halves halves = {};
    halves[0] = *from;
    Vector wide;
    WIDENED::widen(__builtin_convertvector(halves, Bits), wide);
    return wide[0];
  }
};

struct BFloat16 : Half<BFloat16> {
  [[gnu::always_inline]] static void widen(const Bits& bits, Vector& into) {
    into = reinterpret_cast<Vector>(bits << 16);
  }
};

// The exponent is 5 bits with a bias of 15: shifted into place it is 112 too small, which a
// multiplication corrects, also for subnormal numbers; infinities and NaN keep their exponent.
struct Float16 : Half<Float16> {
  [[gnu::always_inline]] static void widen(const Bits& bits, Vector& into) {
    const Bits sign = (bits & 0x8000u) << 16, body = (bits & 0x7FFFu) << 13;
    const Vector scaled = reinterpret_cast<Vector>(body) * 0x1p112f;
    const Bits is_endless = reinterpret_cast<Bits>(body >= (0x7C00u << 13)) & 0x7F800000u;
    into = reinterpret_cast<Vector>(reinterpret_cast<Bits>(scaled) | is_endless | sign);
  }
};

// ROWS x OUTPUTS sums, each computed separately: how they are grouped does not change any bit.
template <typename KIND, size_t ROWS, size_t OUTPUTS>
[[gnu::always_inline]] inline void multiply_block(const float* x,
                                                  const typename KIND::Number* weight,
                                                  const float* bias, float* y, size_t in,
                                                  size_t out) {
  Vector sums[ROWS][OUTPUTS] = {};
  size_t k = 0;
  for (; k + kLanes <= in; k += kLanes) {
#pragma GCC unroll 4
    for (size_t j = 0; j < OUTPUTS; ++j) {
      Vector column;
      KIND::load(weight + j * in + k, column);
#pragma GCC unroll 3
      for (size_t i = 0; i < ROWS; ++i) {
        sums[i][j] += *reinterpret_cast<const Vector*>(x + i * in + k) * column;
      }
    }
  }
  for (size_t i = 0; i < ROWS; ++i) {
    for (size_t j = 0; j < OUTPUTS; ++j) {
      const Vector& lanes = sums[i][j];
      float sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                  ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
      for (size_t rest = k; rest < in; ++rest) {
        sum += x[i * in + rest] * KIND::one(weight + j * in + rest);
      }
      y[i * out + j] = sum + (bias == nullptr ? 0.0f : bias[j]);
    }
  }
}

template <typename KIND, size_t OUTPUTS>
[[gnu::always_inline]] inline void multiply_all(const float* x, const typename KIND::Number* weight,
                                                const float* bias, float* y, size_t num_rows,
                                                size_t in, size_t out) {
  size_t i = 0;
  for (; i + kRows <= num_rows; i += kRows) {
    multiply_block<KIND, kRows, OUTPUTS>(x + i * in, weight, bias, y + i * out, in, out);
  }
  if (num_rows - i == 2) {
    multiply_block<KIND, 2, OUTPUTS>(x + i * in, weight, bias, y + i * out, in, out);
  } else if (num_rows - i == 1) {
    multiply_block<KIND, 1, OUTPUTS>(x + i * in, weight, bias, y + i * out, in, out);
  }
}

template <typename KIND>
[[gnu::always_inline]] inline void multiply(const float* x, const typename KIND::Number* weight,
                                            const float* bias, float* y, size_t num_rows, size_t in,
                                            size_t out, size_t first, size_t end) {
  // As many rows of x at a time as a core's cache holds besides a block of the matrix.
  const size_t group = std::max<size_t>(kGroupNumbers / std::max<size_t>(in, 1) / kRows, 1) * kRows;
  for (size_t row = 0; row < num_rows; row += group) {
    const size_t rows = std::min(group, num_rows - row);
    const float* const part = x + row * in;
    float* const found = y + row * out;
    size_t j = first;
    for (; j + kOutputs <= end; j += kOutputs) {
      multiply_all<KIND, kOutputs>(part, weight + j * in, bias == nullptr ? nullptr : bias + j,
                                   found + j, rows, in, out);
    }
    for (; j < end; ++j) {
      multiply_all<KIND, 1>(part, weight + j * in, bias == nullptr ? nullptr : bias + j, found + j,
                            rows, in, out);
    }
  }
}

template <typename KIND>
[[gnu::always_inline]] inline void widen_all(const typename KIND::Number* from, float* y,
                                             size_t count) {
  size_t k = 0;
  for (; k + kLanes <= count; k += kLanes) {
    KIND::load(from + k, *reinterpret_cast<Vector*>(y + k));
  }
  for (; k < count; ++k) y[k] = KIND::one(from + k);
}

}  // namespace

LOWTIDE_CLONES
void widen(const Matrix& matrix, size_t first, float* y, size_t count) {
  if (matrix.kind == NumberKind::bfloat16) {
    widen_all<BFloat16>(static_cast<const uint16_t*>(matrix.numbers) + first, y, count);
  } else if (matrix.kind == NumberKind::float16) {
    widen_all<Float16>(static_cast<const uint16_t*>(matrix.numbers) + first, y, count);
  } else {
    std::memcpy(y, static_cast<const float*>(matrix.numbers) + first, count * sizeof(float));
  }
}

LOWTIDE_CLONES
void multiply_rows(const float* x, const Matrix& weight, const float* bias, float* y,
                   size_t num_rows, size_t in, size_t out, size_t first, size_t end) {
  if (weight.kind == NumberKind::bfloat16) {
    multiply<BFloat16>(x, static_cast<const uint16_t*>(weight.numbers), bias, y, num_rows, in, out,
                       first, end);
  } else if (weight.kind == NumberKind::float16) {
    multiply<Float16>(x, static_cast<const uint16_t*>(weight.numbers), bias, y, num_rows, in, out,
                      first, end);
  } else {
    multiply<Float32>(x, static_cast<const float*>(weight.numbers), bias, y, num_rows, in, out,
                      first, end);
  }
}

LOWTIDE_CLONES
void norm_row(const float* x, const float* weight, float eps, float* y, size_t width) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (size_t j = 0; j < width; ++j) sum += x[j] * x[j];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
  if (weight == nullptr) {
#pragma omp simd
    for (size_t j = 0; j < width; ++j) y[j] = x[j] * scale;
    return;
  }
#pragma omp simd
  for (size_t j = 0; j < width; ++j) y[j] = x[j] * scale * weight[j];
}

LOWTIDE_CLONES
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, float* y,
                    size_t width) {
  float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (size_t j = 0; j < width; ++j) sum += x[j];
  const float mean = sum / static_cast<float>(width);
#pragma omp simd reduction(+ : squares)
  for (size_t j = 0; j < width; ++j) squares += (x[j] - mean) * (x[j] - mean);
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
#pragma omp simd
  for (size_t j = 0; j < width; ++j) y[j] = (x[j] - mean) * scale * weight[j] + bias[j];
}

LOWTIDE_CLONES
void turn_head(float* x, const float* cos, const float* sin, size_t head_dim) {
  const size_t half = head_dim / 2;
#pragma omp simd
  for (size_t j = 0; j < half; ++j) {
    const float first = x[j], second = x[half + j];
    x[j] = first * cos[j] - second * sin[j];
    x[half + j] = second * cos[j] + first * sin[j];
  }
}

// Positions are processed in parts, to bound the memory; sums are rescaled when a larger product
// occurs.
LOWTIDE_CLONES
void look_up(const float* query, const float* keys, const float* values, size_t length,
             size_t head_dim, float* found) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  float shares[kPositions];
  float largest = -INFINITY, total = 0.0f;
  std::memset(found, 0, head_dim * sizeof(float));
  for (size_t begin = 0; begin < length; begin += kPositions) {
    const size_t count = std::min(kPositions, length - begin);
    float top = largest;
    for (size_t t = 0; t < count; ++t) {
      const float* const key = keys + (begin + t) * head_dim;
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (size_t j = 0; j < head_dim; ++j) sum += query[j] * key[j];
      shares[t] = sum * scale;
      top = std::max(top, shares[t]);
    }
    const float kept = begin == 0 ? 0.0f : exponential(largest - top);
    largest = top;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t t = 0; t < count; ++t) {
      shares[t] = exponential(shares[t] - top);
      sum += shares[t];
    }
    total = total * kept + sum;
#pragma omp simd
    for (size_t j = 0; j < head_dim; ++j) found[j] *= kept;
    for (size_t t = 0; t < count; ++t) {
      const float* const value = values + (begin + t) * head_dim;
      const float share = shares[t];
#pragma omp simd
      for (size_t j = 0; j < head_dim; ++j) found[j] += share * value[j];
    }
  }
#pragma omp simd
  for (size_t j = 0; j < head_dim; ++j) found[j] /= total;
}

LOWTIDE_CLONES
void add_row(const float* y, float* x, size_t width) {
#pragma omp simd
  for (size_t j = 0; j < width; ++j) x[j] += y[j];
}

LOWTIDE_CLONES
void remove_part(const float* own, float* x, size_t n) {
  float product = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : product, squares)
  for (size_t j = 0; j < n; ++j) {
    product += own[j] * x[j];
    squares += own[j] * own[j];
  }
  const float share = product / std::max(squares, 1e-24f);
#pragma omp simd
  for (size_t j = 0; j < n; ++j) x[j] -= share * own[j];
}

LOWTIDE_CLONES
void mix_row(const float* mix, const float* start, float* x, size_t n) {
  const float own = mix[0], other = mix[1];
#pragma omp simd
  for (size_t j = 0; j < n; ++j) x[j] = own * x[j] + other * start[j];
}

LOWTIDE_CLONES
void cap_row(float cap, float* x, size_t width) {
#pragma omp simd
  for (size_t j = 0; j < width; ++j) x[j] = cap * (2.0f * sigmoid(2.0f * (x[j] / cap)) - 1.0f);
}

LOWTIDE_CLONES
void open_row(float* x, size_t width) {
#pragma omp simd
  for (size_t j = 0; j < width; ++j) x[j] = 2.0f * sigmoid(x[j]);
}

}  // namespace lowtide
