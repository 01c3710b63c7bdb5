// The operations of a network between its matrix products, each fused into one pass over float32
// rows. On a CPU torch runs a norm, a rotation (RoPE) or a gate as five to fifteen passes over
// memory, a third of a step of a small network; here a row is read once, stays in the cache while
// it is computed, and is written once. Loops are simple, and the compiler vectorizes them (one
// clone per generation of processors). Nothing here allocates more than a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

// y = x * rsqrt(mean(x^2) + eps) * weight; scales [num_rows] are kept for the backward pass.
void rms_norm(const float* x, const float* weight, float eps, float* y, float* scales,
              size_t num_rows, size_t width);
// weight_gradient is added to.
void rms_norm_backward(const float* gradient, const float* x, const float* weight,
                       const float* scales, float* x_gradient, float* weight_gradient,
                       size_t num_rows, size_t width);

// Rows of [gate, up]: y = gate * sigmoid(gate) * up.
void swiglu(const float* x, float* y, size_t num_rows, size_t width);
void swiglu_backward(const float* gradient, const float* x, float* x_gradient, size_t num_rows,
                     size_t width);

// The tanh form of GELU.
void gelu(const float* x, float* y, size_t size);
void gelu_backward(const float* gradient, const float* x, float* x_gradient, size_t size);

// Logits become softmax minus one-hot; returns the sum of the losses.
double cross_entropy(float* logits, const int64_t* targets, size_t num_rows, size_t width);

// Strides of a [rows, tokens, heads, head_dim] tensor; a head's numbers are contiguous.
struct HeadStrides {
  int64_t row, token, head;
};

struct HeadShape {
  size_t tokens, num_heads, num_kv_heads, head_dim;
  size_t width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

// Normalizes, weights and rotates each head of query and key by the angles of its token; copies
// values. Tokens are those of all rows, [first, end); cos and sin are [tokens, head_dim / 2].
struct HeadTables {
  const float *query_weight, *key_weight, *cos, *sin;
  float eps;
};
void turn_heads(const float* x, const HeadTables& tables, const HeadShape& shape, float* query,
                float* key, float* value, size_t first, size_t end);
struct HeadGradients {
  const float *query, *key, *value;
  HeadStrides query_strides, key_strides, value_strides;
};
// weight gradients [head_dim] are added to.
void turn_heads_backward(const HeadGradients& gradients, const float* x, const HeadTables& tables,
                         const HeadShape& shape, float* x_gradient, float* query_weight_gradient,
                         float* key_weight_gradient, size_t first, size_t end);

}  // namespace lowtide
