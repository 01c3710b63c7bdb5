// Products of a few rows and a few vectors of columns, whose sums stay in registers: what products of
// matrices (products.hpp) and attention (attention.hpp) are made of.
#pragma once

#include <cstddef>

#include "system/vectors.hpp"

namespace lowtide {

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
