// One more token for each of several texts, the whole network in one call: while text is written a
// row at a time, a network spends more time between its operations than in those that are small,
// and reads all its weights for each token.
//
// What a row computes does not depend on the rows beside it nor on the number of threads, to the
// bit: every sum is one chain over the same numbers in the same order.
//
// Memory:  of each row a few numbers as wide as the network; weights and cache are the caller's
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

enum class HeadNorm { none, head, whole };

struct DecoderShape {
  size_t vocab_size, width, num_heads, num_kv_heads, head_dim, mlp_width, gate_inputs;
  float eps, cap;
  HeadNorm head_norm;
  bool has_layer_norm, norms_after, is_gated;
};

// Null where a network has no such part. Matrices are [out, in].
struct DecoderLayer {
  const float *attention_norm, *attention_norm_bias, *mlp_norm, *mlp_norm_bias;
  const float *query_key_value, *query_key_value_bias, *output, *output_bias;
  const float *up, *up_bias, *down, *down_bias;  // up: gate and up, where the MLP is gated
  const float *query_norm, *key_norm;
  const float *mix, *head_gate, *head_gate_bias, *start_values, *value_gate, *value_gate_bias;
  size_t window;  // tokens that it looks at; 0: all
};

struct DecoderTables {
  const float *embedding, *positions, *final_norm, *final_norm_bias, *head;
  const float *cos, *sin;  // [positions, head_dim / 2], where heads are turned
};

// Keys and values [rows, kv heads, capacity, head_dim], layer by layer.
struct DecoderCache {
  float *const *keys, *const *values;
  size_t capacity;
};

class Decoder {
 public:
  Decoder(const DecoderShape& shape, std::vector<DecoderLayer> layers);

  // Reads ids [count] at their positions, into rows `slots` of the cache; the logits of the tokens
  // after them go to [count, vocab_size].
  void step(const DecoderTables& tables, const DecoderCache& cache, const int64_t* ids,
            const int64_t* positions, const int64_t* slots, size_t count, float* logits,
            size_t num_threads);

  size_t num_layers() const { return layers_.size(); }
  const DecoderShape& shape() const { return shape_; }

 private:
  void attend(const DecoderLayer& layer, const DecoderTables& tables, float* keys, float* values,
              const DecoderCache& cache);
  void run_mlp(const DecoderLayer& layer, const float* x, float* y);
  void norm(const float* x, const float* weight, const float* bias, float* y, size_t width) const;
  void turn(const DecoderLayer& layer, const DecoderTables& tables);
  void open_gates(const float* gate, const float* bias, const float* x, size_t heads);
  void linear(const float* x, const float* weight, const float* bias, float* y, size_t in,
              size_t out) const;

  DecoderShape shape_;
  std::vector<DecoderLayer> layers_;
  // Of the step under way.
  const int64_t *positions_ = nullptr, *slots_ = nullptr;
  size_t count_ = 0, num_threads_ = 1;
  std::vector<float> x_, start_, normed_, normed_start_, heads_, found_, added_, inner_, gates_;
};

}  // namespace lowtide
