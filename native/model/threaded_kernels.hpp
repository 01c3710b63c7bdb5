// The row kernels and the packed optimizer over whole tensors, on several threads.
//
// A tensor is divided into blocks of rows whose size depends on its shape alone. Sums over rows (the
// gradient of a gain, a loss) are computed block by block and added in the order of the blocks, so
// that they are bit-identical on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/packed_states.hpp"
#include "model/row_kernels.hpp"

namespace lowtide {

void rms_norm_all(const float* x, const float* weight, float eps, float* y, float* scales,
                  size_t num_rows, size_t width, size_t num_threads);
// weight_gradient is added to.
void rms_norm_backward_all(const float* gradient, const float* x, const float* weight,
                           const float* scales, float* x_gradient, float* weight_gradient,
                           size_t num_rows, size_t width, size_t num_threads);

void swiglu_all(const float* x, float* y, size_t num_rows, size_t width, size_t num_threads);
void swiglu_backward_all(const float* gradient, const float* x, float* x_gradient, size_t num_rows,
                         size_t width, size_t num_threads);
void gelu_all(const float* x, float* y, size_t size, size_t num_threads);
void gelu_backward_all(const float* gradient, const float* x, float* x_gradient, size_t size,
                       size_t num_threads);

// Logits become softmax minus one-hot; returns the sum of the losses.
double cross_entropy_all(float* logits, const int64_t* targets, size_t num_rows, size_t width,
                         size_t num_threads);

// Tokens of `num_rows` rows; `shape` has the number of each.
void turn_heads_all(const float* x, const HeadTables& tables, const HeadShape& shape, float* query,
                    float* key, float* value, size_t num_rows, size_t num_threads);
void turn_heads_backward_all(const HeadGradients& gradients, const float* x,
                             const HeadTables& tables, const HeadShape& shape, float* x_gradient,
                             float* query_weight_gradient, float* key_weight_gradient,
                             size_t num_rows, size_t num_threads);

// `size` numbers, whole blocks of kPackedBlock.
void adamw_packed_all(const PackedStates& states, const uint16_t* gradients, const PackedStep& step,
                      uint32_t position, size_t size, size_t num_threads);
void momentum_packed_all(int8_t* codes, float* scales, uint16_t* gradients, float factor,
                         float momentum, float rest, size_t size, size_t num_threads);
void move_packed_all(uint16_t* weights, int8_t* low_bits, const uint16_t* steps,
                     const PackedMove& move, uint32_t position, size_t size, size_t num_threads);
void pack_weights_all(const float* values, uint16_t* weights, int8_t* low_bits, size_t size,
                      size_t num_threads);
void unpack_weights_all(const uint16_t* weights, const int8_t* low_bits, float* out, size_t size,
                        size_t num_threads);

}  // namespace lowtide
