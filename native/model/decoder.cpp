#include "model/decoder.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/attention.hpp"
#include "model/products.hpp"
#include "model/row_kernels.hpp"
#include "model/thread_pool.hpp"

namespace lowtide {
namespace {

constexpr size_t kBlockNumbers = 65536;    // of a matrix, that a thread processes at once
constexpr size_t kThreadNumbers = 200000;  // below this, waking a second thread takes longer
constexpr size_t kOutputs = 4;             // rows of a matrix that the kernel reads in parallel
constexpr size_t kManyRows = 12;           // from so many on, a matrix is widened once for all
constexpr size_t kProductOutputs = 32;     // rows of a matrix in a panel of a product
constexpr size_t kMostRoomBytes = size_t{4} << 20;  // of a thread, for attention over prompts

}  // namespace

Decoder::Decoder(const DecoderShape& shape, std::vector<DecoderLayer> layers)
    : shape_(shape), layers_(std::move(layers)) {}

void Decoder::linear(const float* x, const Matrix& weight, const float* bias, float* y, size_t in,
                     size_t out) const {
  if (is_prompt_) {
    linear_of_prompts(x, weight, bias, y, in, out);
    return;
  }
  const size_t block =
      std::max(kOutputs, kBlockNumbers / std::max<size_t>(in, 1) / kOutputs * kOutputs);
  const size_t threads = in * out * count_ < kThreadNumbers ? 1 : num_threads_;
  const bool is_widened = weight.kind != NumberKind::float32 && count_ >= kManyRows;
  run_blocks(out, block, threads, [&](size_t first, size_t end) {
    if (!is_widened) {
      multiply_rows(x, weight, bias, y, count_, in, out, first, end);
      return;
    }
    std::vector<float> wide((end - first) * in);
    widen(weight, first * in, wide.data(), wide.size());
    multiply_rows(x, {wide.data()}, bias == nullptr ? nullptr : bias + first, y + first, count_, in,
                  out, 0, end - first);
  });
}

void Decoder::linear_of_prompts(const float* x, const Matrix& weight, const float* bias, float* y,
                                size_t in, size_t out) const {
  const size_t block = std::max(
      kProductOutputs, kBlockNumbers / std::max<size_t>(in, 1) / kProductOutputs * kProductOutputs);
  run_blocks(out, block, num_threads_, [&](size_t first, size_t end) {
    std::vector<float> wide;
    const float* numbers = static_cast<const float*>(weight.numbers) + first * in;
    if (weight.kind != NumberKind::float32) {
      wide.resize((end - first) * in);
      widen(weight, first * in, wide.data(), wide.size());
      numbers = wide.data();
    }
    for (size_t i = 0; bias != nullptr && i < count_; ++i) {
      std::copy(bias + first, bias + end, y + i * out + first);
    }
    multiply_all({x, in, 1}, {numbers, 1, in}, {count_, in, end - first}, y + first, out,
                 bias != nullptr, {1, 0, 0, 0}, 1);
  });
}

void Decoder::norm(const float* x, const float* weight, const float* bias, float* y,
                   size_t width) const {
  for (size_t i = 0; i < count_; ++i, x += width, y += width) {
    if (shape_.has_layer_norm) {
      layer_norm_row(x, weight, bias, shape_.eps, y, width);
    } else {
      norm_row(x, weight, shape_.eps, y, width);
    }
  }
}

// Normalizes and rotates the queries and keys of all rows, in place.
void Decoder::turn(const DecoderLayer& layer, const DecoderTables& tables) {
  const size_t head_dim = shape_.head_dim, half = head_dim / 2;
  const size_t turned = shape_.num_heads + shape_.num_kv_heads;
  const size_t queries = shape_.num_heads * head_dim, keys = shape_.num_kv_heads * head_dim;
  for (size_t i = 0; i < count_; ++i) {
    float* const row = heads_.data() + i * (queries + 2 * keys);
    if (shape_.head_norm == HeadNorm::whole) {
      norm_row(row, layer.query_norm, shape_.eps, row, queries);
      norm_row(row + queries, layer.key_norm, shape_.eps, row + queries, keys);
    }
    const size_t place = static_cast<size_t>(positions_[i]) * half;
    for (size_t head = 0; head < turned; ++head) {
      float* const x = row + head * head_dim;
      if (shape_.head_norm == HeadNorm::head) {
        const float* const weight = head < shape_.num_heads ? layer.query_norm : layer.key_norm;
        norm_row(x, weight, shape_.eps, x, head_dim);
      }
      if (tables.cos != nullptr) turn_head(x, tables.cos + place, tables.sin + place, head_dim);
    }
  }
}

// The gate of each head, [count, heads], from the first numbers of a row.
void Decoder::open_gates(const float* gate, const float* bias, const float* x, size_t heads) {
  for (size_t i = 0; i < count_; ++i) {
    float* const row = gates_.data() + i * heads;
    multiply_rows(x + i * shape_.width, {gate}, bias, row, 1, shape_.gate_inputs, heads, 0, heads);
    open_row(row, heads);
  }
}

// From normed_ to found_: attention of each row over its own keys and values.
void Decoder::attend(const DecoderLayer& layer, const DecoderTables& tables, float* keys,
                     float* values, const DecoderCache& cache) {
  const size_t head_dim = shape_.head_dim, num_heads = shape_.num_heads;
  const size_t kv = shape_.num_kv_heads, queries = num_heads * head_dim;
  const size_t joint = queries + 2 * kv * head_dim, lane = cache.capacity * head_dim;
  linear(normed_.data(), layer.query_key_value, layer.query_key_value_bias, heads_.data(),
         shape_.width, joint);
  turn(layer, tables);
  if (layer.start_values.numbers != nullptr) {
    linear(normed_start_.data(), layer.start_values, nullptr, added_.data(), shape_.width,
           kv * head_dim);
    open_gates(layer.value_gate, layer.value_gate_bias, normed_.data(), kv);
    for (size_t i = 0; i < count_ * kv; ++i) {
      float* const value =
          heads_.data() + i / kv * joint + queries + kv * head_dim + i % kv * head_dim;
      const float mix[2] = {1.0f, gates_[i]};
      mix_row(mix, added_.data() + i * head_dim, value, head_dim);
    }
  }
  if (layer.head_gate != nullptr) {
    open_gates(layer.head_gate, layer.head_gate_bias, normed_.data(), num_heads);
  }
  size_t looked_at = 0;
  for (size_t i = 0; i < count_; ++i) {
    const size_t position = static_cast<size_t>(positions_[i]);
    const float* const row = heads_.data() + i * joint + queries;
    for (size_t head = 0; head < kv; ++head) {
      const size_t place =
          (static_cast<size_t>(slots_[i]) * kv + head) * lane + position * head_dim;
      std::memcpy(keys + place, row + head * head_dim, head_dim * sizeof(float));
      std::memcpy(values + place, row + (kv + head) * head_dim, head_dim * sizeof(float));
    }
    looked_at += (position + 1) * queries;
  }
  const size_t threads = looked_at < kThreadNumbers ? 1 : num_threads_;
  if (is_prompt_) {
    attend_prompts(layer, keys, values, cache.capacity);
  } else {
    run_blocks(count_ * num_heads, 1, threads, [&](size_t first, size_t end) {
      look_up_rows(first, end, layer, keys, values, cache.capacity);
    });
  }
  for (size_t i = 0; i < count_ * num_heads; ++i) {
    float* const found = found_.data() + i * head_dim;
    if (shape_.without_own_values) {
      const size_t row = i / num_heads, group = i % num_heads / (num_heads / kv);
      const size_t place = (static_cast<size_t>(slots_[row]) * kv + group) * lane;
      remove_part(values + place + static_cast<size_t>(positions_[row]) * head_dim, found,
                  head_dim);
    }
    if (layer.head_gate != nullptr) {
      for (size_t j = 0; j < head_dim; ++j) found[j] *= gates_[i];
    }
  }
}

// Heads [first, end) of all rows, one after the other.
void Decoder::look_up_rows(size_t first, size_t end, const DecoderLayer& layer, const float* keys,
                           const float* values, size_t capacity) {
  const size_t head_dim = shape_.head_dim, num_heads = shape_.num_heads;
  const size_t kv = shape_.num_kv_heads, joint = (num_heads + 2 * kv) * head_dim;
  for (size_t i = first; i < end; ++i) {
    const size_t row = i / num_heads, head = i % num_heads;
    const size_t length = static_cast<size_t>(positions_[row]) + 1;
    const size_t begin = layer.window != 0 && length > layer.window ? length - layer.window : 0;
    const size_t group = head / (num_heads / kv);
    const size_t place =
        ((static_cast<size_t>(slots_[row]) * kv + group) * capacity + begin) * head_dim;
    look_up(heads_.data() + row * joint + head * head_dim, keys + place, values + place,
            length - begin, head_dim, found_.data() + i * head_dim);
  }
}

// Consecutive tokens of a row together. Those at late positions, for which a thread would need too
// much memory, are looked up one by one, whatever tokens come with them.
void Decoder::attend_prompts(const DecoderLayer& layer, const float* keys, const float* values,
                             size_t capacity) {
  const size_t head_dim = shape_.head_dim, num_heads = shape_.num_heads;
  const size_t kv = shape_.num_kv_heads, joint = (num_heads + 2 * kv) * head_dim;
  AttentionShape shape = {1, 1, 1, num_heads, kv, head_dim, layer.window};
  const size_t room = attention_room_bytes(shape, false);
  shape.num_keys += 64;
  const size_t most_keys = kMostRoomBytes * 64 / (attention_room_bytes(shape, false) - room);
  log_sums_.resize(count_ * num_heads);
  for (size_t first = 0, end; first < count_; first = end) {
    const size_t position = static_cast<size_t>(positions_[first]);
    end = first + 1;
    if (position >= most_keys) {
      run_blocks(num_heads, 1, num_threads_, [&](size_t head, size_t last) {
        look_up_rows(first * num_heads + head, first * num_heads + last, layer, keys, values,
                     capacity);
      });
      continue;
    }
    while (end < count_ && slots_[end] == slots_[first] &&
           positions_[end] == positions_[end - 1] + 1 &&
           static_cast<size_t>(positions_[end]) < most_keys) {
      ++end;
    }
    shape.num_queries = end - first;
    shape.num_keys = position + shape.num_queries;
    const size_t place = static_cast<size_t>(slots_[first]) * kv * capacity * head_dim;
    const auto token = static_cast<int64_t>(head_dim);
    const HeadStrides of_keys = {0, token, static_cast<int64_t>(capacity * head_dim)};
    attend_all({heads_.data() + first * joint,
                keys + place,
                values + place,
                {0, static_cast<int64_t>(joint), token},
                of_keys,
                of_keys},
               shape, found_.data() + first * num_heads * head_dim, log_sums_.data(), num_threads_);
  }
}

void Decoder::run_mlp(const DecoderLayer& layer, const float* x, float* y) {
  const size_t inner = shape_.mlp_width, both = shape_.is_gated ? 2 * inner : inner;
  linear(x, layer.up, layer.up_bias, inner_.data(), shape_.width, both);
  for (size_t i = 0; i < count_; ++i) {
    float* const row = inner_.data() + i * inner;
    if (shape_.is_gated) {  // rows move to the front, never over one that is still needed
      swiglu(inner_.data() + i * both, row, 1, inner);
    } else {
      gelu(row, row, inner);
    }
  }
  linear(inner_.data(), layer.down, layer.down_bias, y, inner, shape_.width);
}

void Decoder::step(const DecoderTables& tables, const DecoderCache& cache, const int64_t* ids,
                   const int64_t* positions, const int64_t* slots, size_t count, float* logits,
                   size_t num_logits, bool is_prompt, size_t num_threads,
                   const std::function<void(size_t)>& before_layer) {
  is_prompt_ = is_prompt && widest_vectors() != VectorBits::k128;
  positions_ = positions;
  slots_ = slots;
  count_ = count;
  num_threads_ = num_threads;
  const size_t width = shape_.width, queries = shape_.num_heads * shape_.head_dim;
  const size_t values = shape_.num_kv_heads * shape_.head_dim;
  for (auto* const room : {&x_, &normed_, &start_, &normed_start_}) room->resize(count * width);
  heads_.resize(count * (queries + 2 * values));
  found_.resize(count * std::max(queries, width));
  added_.resize(count * std::max(values, width));
  inner_.resize(count * 2 * shape_.mlp_width);
  gates_.resize(count * shape_.num_heads);
  for (size_t i = 0; i < count; ++i) {
    float* const row = x_.data() + i * width;
    widen(tables.embedding, static_cast<size_t>(ids[i]) * width, row, width);
    if (tables.positions != nullptr) {
      add_row(tables.positions + static_cast<size_t>(positions[i]) * width, row, width);
    }
  }
  const bool is_mixed = !layers_.empty() && layers_[0].mix != nullptr;
  if (is_mixed) {
    start_ = x_;
    norm(start_.data(), nullptr, nullptr, normed_start_.data(), width);
  }
  for (size_t index = 0; index < layers_.size(); ++index) {
    const DecoderLayer& layer = layers_[index];
    if (before_layer) before_layer(index);
    for (size_t i = 0; is_mixed && i < count; ++i) {
      mix_row(layer.mix, start_.data() + i * width, x_.data() + i * width, width);
    }
    if (shape_.norms_after) {
      normed_ = x_;
    } else {
      norm(x_.data(), layer.attention_norm, layer.attention_norm_bias, normed_.data(), width);
    }
    attend(layer, tables, cache.keys[index], cache.values[index], cache);
    linear(found_.data(), layer.output, layer.output_bias, added_.data(), queries, width);
    if (shape_.norms_after) {
      norm(added_.data(), layer.attention_norm, layer.attention_norm_bias, added_.data(), width);
    }
    add_row(added_.data(), x_.data(), count * width);
    if (shape_.norms_after) {
      run_mlp(layer, x_.data(), added_.data());
      norm(added_.data(), layer.mlp_norm, layer.mlp_norm_bias, added_.data(), width);
    } else {
      norm(x_.data(), layer.mlp_norm, layer.mlp_norm_bias, normed_.data(), width);
      run_mlp(layer, normed_.data(), added_.data());
    }
    add_row(added_.data(), x_.data(), count * width);
  }
  count_ = num_logits;
  is_prompt_ = false;  // these are few
  norm(x_.data() + (count - num_logits) * width, tables.final_norm, tables.final_norm_bias,
       normed_.data(), width);
  linear(normed_.data(), tables.head, nullptr, logits, width, shape_.vocab_size);
  for (size_t i = 0; shape_.cap > 0.0f && i < num_logits; ++i) {
    cap_row(shape_.cap, logits + i * shape_.vocab_size, shape_.vocab_size);
  }
}

}  // namespace lowtide
