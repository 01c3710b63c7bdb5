#include "model/row_kernels.hpp"

#include <cmath>
#include <cstring>

#include "model/exponential.hpp"
#include "system/clones.hpp"

namespace lowtide {
namespace {

constexpr float kGeluLinear = 1.5957691216057308f;  // 2 * sqrt(2 / pi)
constexpr float kGeluCubic = 0.071354816272600f;    // times 0.044715

}  // namespace

LOWTIDE_CLONES
void rms_norm(const float* x, const float* weight, float eps, float* y, float* scales,
              size_t num_rows, size_t width) {
  for (size_t i = 0; i < num_rows; ++i, x += width, y += width) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < width; ++j) sum += x[j] * x[j];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
    scales[i] = scale;
#pragma omp simd
    for (size_t j = 0; j < width; ++j) y[j] = x[j] * scale * weight[j];
  }
}

LOWTIDE_CLONES
void rms_norm_backward(const float* gradient, const float* x, const float* weight,
                       const float* scales, float* x_gradient, float* weight_gradient,
                       size_t num_rows, size_t width) {
  for (size_t i = 0; i < num_rows; ++i, x += width, gradient += width, x_gradient += width) {
    const float scale = scales[i];
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < width; ++j) {
      sum += gradient[j] * weight[j] * x[j];
      weight_gradient[j] += gradient[j] * (x[j] * scale);
    }
    const float along = sum * scale * scale / static_cast<float>(width);
#pragma omp simd
    for (size_t j = 0; j < width; ++j) {
      x_gradient[j] = scale * (gradient[j] * weight[j] - x[j] * along);
    }
  }
}

LOWTIDE_CLONES
void swiglu(const float* x, float* y, size_t num_rows, size_t width) {
  for (size_t i = 0; i < num_rows; ++i, x += 2 * width, y += width) {
    const float *const gate = x, *const up = x + width;
#pragma omp simd
    for (size_t j = 0; j < width; ++j) y[j] = gate[j] * sigmoid(gate[j]) * up[j];
  }
}

LOWTIDE_CLONES
void swiglu_backward(const float* gradient, const float* x, float* x_gradient, size_t num_rows,
                     size_t width) {
  for (size_t i = 0; i < num_rows;
       ++i, gradient += width, x += 2 * width, x_gradient += 2 * width) {
    const float *const gate = x, *const up = x + width;
    float *const gate_gradient = x_gradient, *const up_gradient = x_gradient + width;
#pragma omp simd
    for (size_t j = 0; j < width; ++j) {
      const float part = sigmoid(gate[j]), silu = gate[j] * part;
      gate_gradient[j] = gradient[j] * up[j] * (part + silu * (1.0f - part));
      up_gradient[j] = gradient[j] * silu;
    }
  }
}

LOWTIDE_CLONES
void gelu(const float* x, float* y, size_t size) {
#pragma omp simd
  for (size_t j = 0; j < size; ++j) {
    y[j] = x[j] * sigmoid(x[j] * (kGeluLinear + kGeluCubic * x[j] * x[j]));
  }
}

LOWTIDE_CLONES
void gelu_backward(const float* gradient, const float* x, float* x_gradient, size_t size) {
#pragma omp simd
  for (size_t j = 0; j < size; ++j) {
    const float square = x[j] * x[j];
    const float part = sigmoid(x[j] * (kGeluLinear + kGeluCubic * square));
    const float slope = x[j] * (kGeluLinear + 3.0f * kGeluCubic * square);
    x_gradient[j] = gradient[j] * part * (1.0f + slope * (1.0f - part));
  }
}

LOWTIDE_CLONES
double cross_entropy(float* logits, const int64_t* targets, size_t num_rows, size_t width) {
  double total = 0.0;
  for (size_t i = 0; i < num_rows; ++i, logits += width) {
    float largest = logits[0];
#pragma omp simd reduction(max : largest)
    for (size_t j = 0; j < width; ++j) largest = logits[j] > largest ? logits[j] : largest;
    const float wanted = logits[targets[i]];
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < width; ++j) {
      const float share = exponential(logits[j] - largest);
      logits[j] = share;
      sum += share;
    }
    total += static_cast<double>(largest - wanted) + std::log(static_cast<double>(sum));
    const float scale = 1.0f / sum;
#pragma omp simd
    for (size_t j = 0; j < width; ++j) logits[j] *= scale;
    logits[targets[i]] -= 1.0f;
  }
  return total;
}

namespace {

// One head: y = rotated(x * scale * weight).
inline void turn(const float* x, const float* weight, const float* cos, const float* sin, float eps,
                 float* y, size_t head_dim) {
  const size_t half = head_dim / 2;
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (size_t j = 0; j < head_dim; ++j) sum += x[j] * x[j];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(head_dim) + eps);
#pragma omp simd
  for (size_t j = 0; j < half; ++j) {
    const float first = x[j] * scale * weight[j], second = x[half + j] * scale * weight[half + j];
    y[j] = first * cos[j] - second * sin[j];
    y[half + j] = second * cos[j] + first * sin[j];
  }
}

inline void turn_backward(const float* gradient, const float* x, const float* weight,
                          const float* cos, const float* sin, float eps, float* x_gradient,
                          float* weight_gradient, size_t head_dim) {
  const size_t half = head_dim / 2;
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (size_t j = 0; j < head_dim; ++j) sum += x[j] * x[j];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(head_dim) + eps);
  float along = 0.0f;
#pragma omp simd reduction(+ : along)
  for (size_t j = 0; j < half; ++j) {
    // Rotated back; x_gradient temporarily holds the gradient of the normalized head.
    const float first = gradient[j] * cos[j] + gradient[half + j] * sin[j];
    const float second = gradient[half + j] * cos[j] - gradient[j] * sin[j];
    weight_gradient[j] += first * (x[j] * scale);
    weight_gradient[half + j] += second * (x[half + j] * scale);
    x_gradient[j] = first * weight[j];
    x_gradient[half + j] = second * weight[half + j];
    along += x_gradient[j] * x[j] + x_gradient[half + j] * x[half + j];
  }
  along *= scale * scale / static_cast<float>(head_dim);
#pragma omp simd
  for (size_t j = 0; j < head_dim; ++j) x_gradient[j] = scale * (x_gradient[j] - x[j] * along);
}

}  // namespace

LOWTIDE_CLONES
void turn_heads(const float* x, const HeadTables& tables, const HeadShape& shape, float* query,
                float* key, float* value, size_t first, size_t end) {
  const size_t head_dim = shape.head_dim, half = head_dim / 2;
  for (size_t i = first; i < end; ++i) {
    const float* row = x + i * shape.width();
    const float *const cos = tables.cos + i % shape.tokens * half, *const sin =
                                                                       tables.sin +
                                                                       i % shape.tokens * half;
    float* out = query + i * shape.num_heads * head_dim;
    for (size_t head = 0; head < shape.num_heads; ++head, row += head_dim, out += head_dim) {
      turn(row, tables.query_weight, cos, sin, tables.eps, out, head_dim);
    }
    out = key + i * shape.num_kv_heads * head_dim;
    for (size_t head = 0; head < shape.num_kv_heads; ++head, row += head_dim, out += head_dim) {
      turn(row, tables.key_weight, cos, sin, tables.eps, out, head_dim);
    }
    const size_t num_values = shape.num_kv_heads * head_dim;
    std::memcpy(value + i * num_values, row, num_values * sizeof(float));
  }
}

LOWTIDE_CLONES
void turn_heads_backward(const HeadGradients& gradients, const float* x, const HeadTables& tables,
                         const HeadShape& shape, float* x_gradient, float* query_weight_gradient,
                         float* key_weight_gradient, size_t first, size_t end) {
  const size_t head_dim = shape.head_dim, half = head_dim / 2;
  const auto place = [&](const HeadStrides& strides, size_t i) {
    return static_cast<int64_t>(i / shape.tokens) * strides.row +
           static_cast<int64_t>(i % shape.tokens) * strides.token;
  };
  for (size_t i = first; i < end; ++i) {
    const float* row = x + i * shape.width();
    float* out = x_gradient + i * shape.width();
    const float *const cos = tables.cos + i % shape.tokens * half, *const sin =
                                                                       tables.sin +
                                                                       i % shape.tokens * half;
    const float* given = gradients.query + place(gradients.query_strides, i);
    for (size_t head = 0; head < shape.num_heads; ++head, row += head_dim, out += head_dim) {
      turn_backward(given, row, tables.query_weight, cos, sin, tables.eps, out,
                    query_weight_gradient, head_dim);
      given += gradients.query_strides.head;
    }
    given = gradients.key + place(gradients.key_strides, i);
    for (size_t head = 0; head < shape.num_kv_heads; ++head, row += head_dim, out += head_dim) {
      turn_backward(given, row, tables.key_weight, cos, sin, tables.eps, out, key_weight_gradient,
                    head_dim);
      given += gradients.key_strides.head;
    }
    given = gradients.value + place(gradients.value_strides, i);
    for (size_t head = 0; head < shape.num_kv_heads; ++head, out += head_dim) {
      std::memcpy(out, given, head_dim * sizeof(float));
      given += gradients.value_strides.head;
    }
  }
}

}  // namespace lowtide
