// Kernels over vectors of floats that are compiled once for each width, where a clone by the
// compiler (clones.hpp) would not do: tiles differ with the number and the width of registers.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#define LOWTIDE_VECTORS_256 __attribute__((target("avx2,fma")))
#define LOWTIDE_VECTORS_512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define LOWTIDE_VECTORS_256
#define LOWTIDE_VECTORS_512
#endif

namespace lowtide {

enum class VectorBits : uint16_t { k128 = 128, k256 = 256, k512 = 512 };

// The widest vectors of this processor whose products and sums are fused; 128 without.
inline VectorBits widest_vectors() {
#if defined(__x86_64__)
  static const bool has_256 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool has_512 =
      has_256 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_512) return VectorBits::k512;
  if (has_256) return VectorBits::k256;
#endif
  return VectorBits::k128;
}

// The one of three that is compiled for a width.
template <typename Kernels>
const Kernels& of_width(VectorBits vectors, const Kernels& narrow, const Kernels& wide,
                        const Kernels& widest) {
  if (vectors == VectorBits::k512) return widest;
  return vectors == VectorBits::k256 ? wide : narrow;
}

// A vector that may stand at any address of a float.
template <size_t LANES>
struct FloatVector {
  using Type __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias)) = float;
};

constexpr size_t round_up(size_t count, size_t to) { return (count + to - 1) / to * to; }

// A matrix by its first number and the distances between its rows and between its columns.
struct Strided {
  const float* numbers;
  size_t row, column;
};

// c (+)= a b for ROWS rows of a, and for VECTORS vectors of columns of b, whose sums stay in
// registers: 12 x 2 of 32 for vectors of 512 bits, 6 x 2 of 16 for others.
template <size_t LANES>
constexpr size_t kTileRows = LANES == 16 ? 12 : 6;

template <size_t LANES, size_t VECTORS>
[[gnu::always_inline]] inline void multiply_tile(const Strided& a, const float* b, size_t b_row,
                                                 size_t depth, float* c, size_t c_row, bool adds) {
  using Vector = typename FloatVector<LANES>::Type;
  constexpr size_t kRows = kTileRows<LANES>;
  Vector sums[kRows][VECTORS] = {};
  for (size_t k = 0; k < depth; ++k) {
    const Vector* const line = reinterpret_cast<const Vector*>(b + k * b_row);
#pragma GCC unroll 12
    for (size_t i = 0; i < kRows; ++i) {
      const float factor = a.numbers[i * a.row + k * a.column];
#pragma GCC unroll 2
      for (size_t j = 0; j < VECTORS; ++j) sums[i][j] += factor * line[j];
    }
  }
#pragma GCC unroll 12
  for (size_t i = 0; i < kRows; ++i) {
    Vector* const line = reinterpret_cast<Vector*>(c + i * c_row);
#pragma GCC unroll 2
    for (size_t j = 0; j < VECTORS; ++j) line[j] = adds ? line[j] + sums[i][j] : sums[i][j];
  }
}

}  // namespace lowtide
