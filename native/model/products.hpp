// Products of float32 matrices on a CPU, on several threads.
//
// Matrices may be transposed: rows and columns have any distance. Columns of b are copied into
// panels of two vectors, and rows of a, if their numbers are not contiguous, into panels of as many
// rows as a tile has (multiply_tile), so that tiles read both from the cache in order. A sum runs
// over the depth in the same order for every number, so a row is the same whatever the other rows
// are, and on any number of threads.
//
// Why not a library: torch's (MKL) has vectors of 256 bits on AMD's processors only, and takes 2.2
// to 2.4 times as long on those that have 512. oneDNN, also in torch, is as quick for two of the
// three products of a layer, but keeps half a megabyte of code for each shape
// (docs/decisions/0066-products-on-a-cpu.md).
#pragma once

#include <cstddef>

#include "model/tiles.hpp"

namespace lowtide {

struct ProductShape {
  size_t rows, depth, columns;
};

// Products of one shape: how many, and the distances from one's a, b and c to those of the next.
struct ProductStack {
  size_t count, a, b, c;
};

// c (+)= a b; lines of c are `c_row` apart. Temporary memory: 0.8 MB, and 0.1 MB a thread; of a
// stack of small products that for each thread.
void multiply_all(const Strided& a, const Strided& b, const ProductShape& shape, float* c,
                  size_t c_row, bool adds, const ProductStack& stack, size_t num_threads,
                  VectorBits vectors = widest_vectors());

// True if torch's own library leaves vectors of this processor unused.
bool has_quick_products();

}  // namespace lowtide
