// Weights and moments of AdamW in five bytes per number: a bfloat16 and eight more bits of the
// weight, eight bits of each moment, and a float32 scale of each moment for every 128 numbers. Muon
// has one moment, stored like AdamW's first, and updates weights by steps that are computed
// elsewhere.
//
// A step is bit-identical on any number of threads and in the GPU's kernel (lowtide/ladder/kernels.py):
// float32, no fused multiply-add, divisions and roots rounded according to IEEE 754. Nothing here
// allocates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lowtide {

constexpr size_t kPackedBlock = 128;  // numbers that share the scale of a moment

struct PackedStates {
  uint16_t* weights;  // bfloat16
  int8_t* low_bits;   // the next eight bits, signed
  int8_t* first;      // mean of gradients: 2x / (1 + |x|) of x = m / scale, in 127ths
  uint8_t* second;    // mean of squares: fourth root of v / scale, in 255ths
  float *first_scales, *second_scales;

  PackedStates from(size_t block) const {  // without the blocks before
    const size_t start = block * kPackedBlock;
    return {weights + start, low_bits + start,     first + start,
            second + start,  first_scales + block, second_scales + block};
  }
};

struct PackedStep {
  float factor;        // of gradients, from clipping
  float beta1, rest1;  // and one minus it
  float beta2, rest2;
  float step_size;    // learning rate over the first moment's correction
  float root_factor;  // one over the root of the second moment's correction
  float eps, kept;    // the factor of weight decay
  uint32_t seed;      // of the step, for unbiased stochastic rounding of weights
};

// One step of AdamW over `num_blocks` blocks; `position` is the first number's index in the model.
void adamw_packed(const PackedStates& states, const uint16_t* gradients, const PackedStep& step,
                  uint32_t position, size_t num_blocks);

// Muon's momentum over `num_blocks` blocks; gradients become Nesterov's updates, rounded to the
// nearest bfloat16.
void momentum_packed(int8_t* codes, float* scales, uint16_t* gradients, float factor,
                     float momentum, float rest, size_t num_blocks);

struct PackedMove {
  float rate, kept;  // of the steps, and the factor of weight decay
  bool cautious;     // decay only weights that the step makes smaller
  uint32_t seed;
};

// Subtract `rate` times the steps (bfloat16) from `size` weights, with stochastic rounding as
// above.
void move_packed(uint16_t* weights, int8_t* low_bits, const uint16_t* steps, const PackedMove& move,
                 uint32_t position, size_t size);

// Round float32 numbers to the nearest 24 bits.
void pack_weights(const float* values, uint16_t* weights, int8_t* low_bits, size_t size);

// The float32 numbers of pairs of weights and low bits.
void unpack_weights(const uint16_t* weights, const int8_t* low_bits, float* out, size_t size);

}  // namespace lowtide
