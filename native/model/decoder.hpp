// Decode one more token for each of several texts, the whole network in one call: when text is
// generated row by row, a framework spends more time between small operations than in them, and all
// weights are read for each token.
//
// Tokens of a prompt are computed by products and attention over many rows (products.hpp,
// attention.hpp), which take a third of the time, in another order of sums. In either way the
// result of a row is bit-identical for any other rows and any number of threads: every sum is
// computed sequentially over the same numbers in the same order.
//
// Memory:  of each row a few numbers as wide as the network, and of a prompt's rows kBlockNumbers
//          and kMostRoomBytes for each thread; weights and cache are the caller's
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/decoder_kernels.hpp"

namespace lowtide {

enum class HeadNorm { none, head, whole };

struct DecoderShape {
  size_t vocab_size, width, num_heads, num_kv_heads, head_dim, mlp_width, gate_inputs;
  float eps, cap;
  HeadNorm head_norm;
  bool has_layer_norm, norms_after, is_gated, without_own_values;
};

// Null if a network has no such part.
struct DecoderLayer {
  const float *attention_norm, *attention_norm_bias, *mlp_norm, *mlp_norm_bias;
  const float *query_key_value_bias, *output_bias, *up_bias, *down_bias;
  const float *query_norm, *key_norm;
  const float *mix, *head_gate, *head_gate_bias, *value_gate, *value_gate_bias;
  Matrix query_key_value, output, up, down, start_values;  // up: gate and up, if the MLP is gated
  size_t window;                                           // window of tokens it attends to; 0: all
};

struct DecoderTables {
  Matrix embedding, head;
  const float *positions, *final_norm, *final_norm_bias;
  const float *cos, *sin;  // [positions, head_dim / 2], if heads are rotated
};

// Keys and values [rows, kv heads, capacity, head_dim], layer by layer.
struct DecoderCache {
  float *const *keys, *const *values;
  size_t capacity;
};

class Decoder {
 public:
  Decoder(const DecoderShape& shape, std::vector<DecoderLayer> layers);

  // Processes ids [count] at their positions, into rows `slots` of the cache; several of one row
  // must be consecutive. The logits after the last `num_logits` of them are written to [num_logits,
  // vocab_size]. `is_prompt`: the tokens are those of prompts. `before_layer`, if given, is called
  // with the index of each layer before it is computed, to load layers that share their memory.
  void step(const DecoderTables& tables, const DecoderCache& cache, const int64_t* ids,
            const int64_t* positions, const int64_t* slots, size_t count, float* logits,
            size_t num_logits, bool is_prompt, size_t num_threads,
            const std::function<void(size_t)>& before_layer = nullptr);

  size_t num_layers() const { return layers_.size(); }
  const DecoderShape& shape() const { return shape_; }

 private:
  void attend(const DecoderLayer& layer, const DecoderTables& tables, float* keys, float* values,
              const DecoderCache& cache);
  void look_up_rows(size_t first, size_t end, const DecoderLayer& layer, const float* keys,
                    const float* values, size_t capacity);
  void attend_prompts(const DecoderLayer& layer, const float* keys, const float* values,
                      size_t capacity);
  void run_mlp(const DecoderLayer& layer, const float* x, float* y);
  void norm(const float* x, const float* weight, const float* bias, float* y, size_t width) const;
  void turn(const DecoderLayer& layer, const DecoderTables& tables);
  void open_gates(const float* gate, const float* bias, const float* x, size_t heads);
  void linear(const float* x, const Matrix& weight, const float* bias, float* y, size_t in,
              size_t out) const;
  void linear_of_prompts(const float* x, const Matrix& weight, const float* bias, float* y,
                         size_t in, size_t out) const;

  DecoderShape shape_;
  std::vector<DecoderLayer> layers_;
  // Of the current step.
  const int64_t *positions_ = nullptr, *slots_ = nullptr;
  size_t count_ = 0, num_threads_ = 1;
  bool is_prompt_ = false;
  std::vector<float> x_, start_, normed_, normed_start_, heads_, found_, added_, inner_, gates_;
  std::vector<float> log_sums_;
};

}  // namespace lowtide
