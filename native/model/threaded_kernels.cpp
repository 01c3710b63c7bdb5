#include "model/threaded_kernels.hpp"

#include <algorithm>
#include <vector>

#include "model/thread_pool.hpp"

namespace lowtide {

namespace {

// Blocks depend only on the shape, so that sums over them are equal for any number of threads.
constexpr size_t kBlockNumbers = 16384, kMostBlocks = 64;
constexpr size_t kPackedAtOnce = 128;  // blocks of packed states

size_t block_rows(size_t num_rows, size_t width) {
  return std::max({size_t{1}, kBlockNumbers / std::max<size_t>(width, 1),
                   (num_rows + kMostBlocks - 1) / kMostBlocks});
}

// Separate sums of blocks, added in the order of the blocks.
template <typename T>
class BlockSums {
 public:
  BlockSums(size_t num_rows, size_t block, size_t width)
      : block_(block), width_(width), sums_((num_rows + block - 1) / block * width) {}

  T* of(size_t first) { return sums_.data() + first / block_ * width_; }

  void add_to(T* out) const {
    for (size_t i = 0; i < sums_.size(); ++i) out[i % width_] += sums_[i];
  }

 private:
  size_t block_, width_;
  std::vector<T> sums_;
};

}  // namespace

void rms_norm_all(const float* x, const float* weight, float eps, float* y, float* scales,
                  size_t num_rows, size_t width, size_t num_threads) {
  run_blocks(num_rows, block_rows(num_rows, width), num_threads, [&](size_t first, size_t end) {
    rms_norm(x + first * width, weight, eps, y + first * width, scales + first, end - first, width);
  });
}

void rms_norm_backward_all(const float* gradient, const float* x, const float* weight,
                           const float* scales, float* x_gradient, float* weight_gradient,
                           size_t num_rows, size_t width, size_t num_threads) {
  const size_t block = block_rows(num_rows, width);
  BlockSums<float> sums(num_rows, block, width);
  run_blocks(num_rows, block, num_threads, [&](size_t first, size_t end) {
    const size_t start = first * width;
    rms_norm_backward(gradient + start, x + start, weight, scales + first, x_gradient + start,
                      sums.of(first), end - first, width);
  });
  sums.add_to(weight_gradient);
}

void swiglu_all(const float* x, float* y, size_t num_rows, size_t width, size_t num_threads) {
  run_blocks(num_rows, block_rows(num_rows, width), num_threads, [&](size_t first, size_t end) {
    swiglu(x + 2 * first * width, y + first * width, end - first, width);
  });
}

void swiglu_backward_all(const float* gradient, const float* x, float* x_gradient, size_t num_rows,
                         size_t width, size_t num_threads) {
  run_blocks(num_rows, block_rows(num_rows, width), num_threads, [&](size_t first, size_t end) {
    swiglu_backward(gradient + first * width, x + 2 * first * width, x_gradient + 2 * first * width,
                    end - first, width);
  });
}

void gelu_all(const float* x, float* y, size_t size, size_t num_threads) {
  run_blocks(size, kBlockNumbers, num_threads,
             [&](size_t first, size_t end) { gelu(x + first, y + first, end - first); });
}

void gelu_backward_all(const float* gradient, const float* x, float* x_gradient, size_t size,
                       size_t num_threads) {
  run_blocks(size, kBlockNumbers, num_threads, [&](size_t first, size_t end) {
    gelu_backward(gradient + first, x + first, x_gradient + first, end - first);
  });
}

double cross_entropy_all(float* logits, const int64_t* targets, size_t num_rows, size_t width,
                         size_t num_threads) {
  const size_t block = block_rows(num_rows, width);
  BlockSums<double> sums(num_rows, block, 1);
  run_blocks(num_rows, block, num_threads, [&](size_t first, size_t end) {
    *sums.of(first) = cross_entropy(logits + first * width, targets + first, end - first, width);
  });
  double total = 0.0;
  sums.add_to(&total);
  return total;
}

void turn_heads_all(const float* x, const HeadTables& tables, const HeadShape& shape, float* query,
                    float* key, float* value, size_t num_rows, size_t num_threads) {
  const size_t tokens = num_rows * shape.tokens;
  run_blocks(tokens, block_rows(tokens, shape.width()), num_threads, [&](size_t first, size_t end) {
    turn_heads(x, tables, shape, query, key, value, first, end);
  });
}

void turn_heads_backward_all(const HeadGradients& gradients, const float* x,
                             const HeadTables& tables, const HeadShape& shape, float* x_gradient,
                             float* query_weight_gradient, float* key_weight_gradient,
                             size_t num_rows, size_t num_threads) {
  const size_t tokens = num_rows * shape.tokens, block = block_rows(tokens, shape.width());
  BlockSums<float> query(tokens, block, shape.head_dim);
  BlockSums<float> key(tokens, block, shape.head_dim);
  run_blocks(tokens, block, num_threads, [&](size_t first, size_t end) {
    turn_heads_backward(gradients, x, tables, shape, x_gradient, query.of(first), key.of(first),
                        first, end);
  });
  query.add_to(query_weight_gradient);
  key.add_to(key_weight_gradient);
}

void adamw_packed_all(const PackedStates& states, const uint16_t* gradients, const PackedStep& step,
                      uint32_t position, size_t size, size_t num_threads) {
  run_blocks(size / kPackedBlock, kPackedAtOnce, num_threads, [&](size_t first, size_t end) {
    const size_t start = first * kPackedBlock;
    adamw_packed(states.from(first), gradients + start, step,
                 position + static_cast<uint32_t>(start), end - first);
  });
}

void momentum_packed_all(int8_t* codes, float* scales, uint16_t* gradients, float factor,
                         float momentum, float rest, size_t size, size_t num_threads) {
  run_blocks(size / kPackedBlock, kPackedAtOnce, num_threads, [&](size_t first, size_t end) {
    const size_t start = first * kPackedBlock;
    momentum_packed(codes + start, scales + first, gradients + start, factor, momentum, rest,
                    end - first);
  });
}

void move_packed_all(uint16_t* weights, int8_t* low_bits, const uint16_t* steps,
                     const PackedMove& move, uint32_t position, size_t size, size_t num_threads) {
  run_blocks(size, kBlockNumbers, num_threads, [&](size_t first, size_t end) {
    move_packed(weights + first, low_bits + first, steps + first, move,
                position + static_cast<uint32_t>(first), end - first);
  });
}

void pack_weights_all(const float* values, uint16_t* weights, int8_t* low_bits, size_t size,
                      size_t num_threads) {
  run_blocks(size, kBlockNumbers, num_threads, [&](size_t first, size_t end) {
    pack_weights(values + first, weights + first, low_bits + first, end - first);
  });
}

void unpack_weights_all(const uint16_t* weights, const int8_t* low_bits, float* out, size_t size,
                        size_t num_threads) {
  run_blocks(size, kBlockNumbers, num_threads, [&](size_t first, size_t end) {
    unpack_weights(weights + first, low_bits + first, out + first, end - first);
  });
}

}  // namespace lowtide
