// Causal attention over float32 heads of rows on a CPU, forward and backward.
//
// The matrix of scores exists for a few queries at a time. Keys and values of a head are copied
// once, so that every product is of one form (multiply_tile), whose sums stay in registers. Scores
// that no query of a tile sees are not computed. torch's kernel calls a library of matrix products
// for every block, which takes 1.4 to 4 times as long for both passes, and with a sliding window 7 to
// 11 times, as it computes all scores there (docs/decisions/0065-attention-on-a-cpu.md).
//
// Memory:  attention_room_bytes for each thread
//
// What a query gets depends on its own row alone, and neither on the length of the row after it nor
// on the number of threads.
#pragma once

#include <cstddef>

#include "model/row_kernels.hpp"
#include "system/vectors.hpp"

namespace lowtide {

// Queries are the last of the keys' tokens; each sees the keys up to its own, or, with a window, so
// many of them. Heads of queries come in groups that share a head of keys and values.
struct AttentionShape {
  size_t num_rows, num_queries, num_keys, num_heads, num_kv_heads, head_dim, window;
  size_t group() const { return num_heads / num_kv_heads; }
};

// A head's numbers are contiguous.
struct AttentionHeads {
  const float *query, *key, *value;
  HeadStrides query_strides, key_strides, value_strides;
};

// `out` is [rows, queries, heads, head_dim], `log_sums` [rows, heads, queries], for the backward
// pass.
void attend_all(const AttentionHeads& heads, const AttentionShape& shape, float* out,
                float* log_sums, size_t num_threads, VectorBits vectors = widest_vectors());

// `given` is the gradient of `out`; gradients are [rows, tokens, heads, head_dim].
struct AttentionGradients {
  const float* given;
  HeadStrides given_strides;
  float *query, *key, *value;
};
void attend_backward_all(const AttentionGradients& gradients, const AttentionHeads& heads,
                         const AttentionShape& shape, const float* out, const float* log_sums,
                         size_t num_threads, VectorBits vectors = widest_vectors());

// Temporary memory of a thread; it grows with the number of keys.
size_t attention_room_bytes(const AttentionShape& shape, bool is_backward);

}  // namespace lowtide
