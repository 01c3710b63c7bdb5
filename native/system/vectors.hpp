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

}  // namespace lowtide
