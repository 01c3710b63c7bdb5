#include "model/products.hpp"

#include <algorithm>
#include <memory>

#include "model/thread_pool.hpp"

namespace lowtide {
namespace {

constexpr size_t kDepth = 256;     // of panels: one of b fits into a core's first cache
constexpr size_t kColumns = 768;   // of b at once, for all threads
constexpr size_t kBlockRows = 96;  // of a at once, for a thread
constexpr size_t kTasksPerThread = 4;
// Products and sums that take less time than waking a thread (thread_pool.hpp): on one thread.
constexpr size_t kSmallProduct = size_t{1} << 22;

// Some columns of the product, of a part of the depth.
struct Part {
  Strided a, b;
  ProductShape shape;
  float* panels;  // of b
  float* c;
  size_t c_row;
  bool adds;
};

// Tasks over a part of the product: blocks of rows by groups of columns.
struct Division {
  size_t block_rows, group_columns, num_groups;
};

struct Kernels {
  size_t tile_rows, tile_columns;
  void (*pack_columns)(const Part& part, size_t first, size_t end);
  void (*multiply_block)(const Part& part, const Division& division, size_t task);
};

// Copies `count` lines, at most SIZE, to [depth][SIZE]; the rest becomes 0.
template <size_t SIZE>
[[gnu::always_inline]] inline void pack_lines(const float* from, size_t line, size_t step,
                                              size_t count, size_t depth, float* to) {
  if (line == 1 && count == SIZE) {
    for (size_t k = 0; k < depth; ++k, to += SIZE) {
      for (size_t i = 0; i < SIZE; ++i) to[i] = from[k * step + i];
    }
    return;
  }
  if (count < SIZE) std::fill(to, to + SIZE * depth, 0.0f);
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < depth; ++k) to[k * SIZE + i] = from[i * line + k * step];
  }
}

// Panels [first, end) of b.
template <size_t LANES>
[[gnu::always_inline]] inline void pack_panels(const Part& part, size_t first, size_t end) {
  constexpr size_t kWide = 2 * LANES;
  for (size_t panel = first; panel < end; ++panel) {
    const size_t column = panel * kWide, count = std::min(kWide, part.shape.columns - column);
    const float* const from = part.b.numbers + column * part.b.column;
    float* const to = part.panels + column * part.shape.depth;
    if (count > LANES) {
      pack_lines<kWide>(from, part.b.column, part.b.row, count, part.shape.depth, to);
    } else {
      pack_lines<LANES>(from, part.b.column, part.b.row, count, part.shape.depth, to);
    }
  }
}

// A tile of which only `rows` x `columns` numbers are part of c.
template <size_t LANES, size_t VECTORS>
[[gnu::always_inline]] inline void multiply_border(const Strided& a, const float* b, size_t depth,
                                                   float* c, size_t c_row, size_t rows,
                                                   size_t columns, bool adds) {
  constexpr size_t kWide = VECTORS * LANES;
  float found[kTileRows<LANES> * kWide];
  multiply_tile<LANES, VECTORS>(a, b, kWide, depth, found, kWide, false);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      const float sum = found[i * kWide + j];
      c[i * c_row + j] = adds ? c[i * c_row + j] + sum : sum;
    }
  }
}

template <size_t LANES>
[[gnu::always_inline]] inline void multiply_panels(const Part& part, const Division& division,
                                                   size_t task) {
  constexpr size_t kRows = kTileRows<LANES>, kWide = 2 * LANES;
  const ProductShape& shape = part.shape;
  const size_t first_row = task / division.num_groups * division.block_rows;
  const size_t num_rows = std::min(division.block_rows, shape.rows - first_row);
  const size_t first_column = task % division.num_groups * division.group_columns;
  const size_t end_column = std::min(first_column + division.group_columns, shape.columns);
  // Rows whose numbers are contiguous are read where they are; those of the last tile, if it is not
  // full, and of a transposed matrix are copied.
  const size_t num_direct = part.a.column == 1 ? num_rows / kRows * kRows : 0;
  const auto copies =
      std::make_unique_for_overwrite<float[]>(round_up(num_rows - num_direct, kRows) * shape.depth);
  for (size_t i = num_direct; i < num_rows; i += kRows) {
    pack_lines<kRows>(part.a.numbers + (first_row + i) * part.a.row, part.a.row, part.a.column,
                      std::min(kRows, num_rows - i), shape.depth,
                      copies.get() + (i - num_direct) * shape.depth);
  }
  for (size_t j = first_column; j < end_column; j += kWide) {
    const float* const panel = part.panels + j * shape.depth;
    const size_t columns = std::min(kWide, shape.columns - j);
    for (size_t i = 0; i < num_rows; i += kRows) {
      const Strided a = i < num_direct
                            ? Strided{part.a.numbers + (first_row + i) * part.a.row, part.a.row, 1}
                            : Strided{copies.get() + (i - num_direct) * shape.depth, 1, kRows};
      float* const c = part.c + (first_row + i) * part.c_row + j;
      const size_t rows = std::min(kRows, num_rows - i);
      if (rows == kRows && columns == kWide) {
        multiply_tile<LANES, 2>(a, panel, kWide, shape.depth, c, part.c_row, part.adds);
      } else if (columns > LANES) {
        multiply_border<LANES, 2>(a, panel, shape.depth, c, part.c_row, rows, columns, part.adds);
      } else if (rows == kRows && columns == LANES) {
        multiply_tile<LANES, 1>(a, panel, LANES, shape.depth, c, part.c_row, part.adds);
      } else {
        multiply_border<LANES, 1>(a, panel, shape.depth, c, part.c_row, rows, columns, part.adds);
      }
    }
  }
}

#define LOWTIDE_PRODUCT_KERNELS(BITS, TARGET)                                                  \
  TARGET void pack_columns_##BITS(const Part& part, size_t first, size_t end) {                \
    pack_panels<BITS / 32>(part, first, end);                                                  \
  }                                                                                            \
  TARGET void multiply_block_##BITS(const Part& part, const Division& division, size_t task) { \
    multiply_panels<BITS / 32>(part, division, task);                                          \
  }                                                                                            \
  constexpr Kernels kKernels##BITS = {kTileRows<BITS / 32>, BITS / 16, pack_columns_##BITS,    \
                                      multiply_block_##BITS};
LOWTIDE_PRODUCT_KERNELS(128, )
LOWTIDE_PRODUCT_KERNELS(256, LOWTIDE_VECTORS_256)
LOWTIDE_PRODUCT_KERNELS(512, LOWTIDE_VECTORS_512)
#undef LOWTIDE_PRODUCT_KERNELS

const Kernels& kernels_of(VectorBits vectors) {
  return of_width(vectors, kKernels128, kKernels256, kKernels512);
}

// Enough tasks for all threads, of as many rows as fit; columns are divided where rows are few.
Division divide(const ProductShape& shape, const Kernels& kernels, size_t num_threads) {
  const size_t tasks = num_threads == 1 ? 1 : num_threads * kTasksPerThread;
  const size_t block_rows = std::clamp(
      round_up((shape.rows + tasks - 1) / tasks, kernels.tile_rows), kernels.tile_rows, kBlockRows);
  const size_t num_blocks = (shape.rows + block_rows - 1) / block_rows;
  const size_t num_panels = (shape.columns + kernels.tile_columns - 1) / kernels.tile_columns;
  const size_t groups = std::clamp(tasks / num_blocks, size_t{1}, num_panels);
  const size_t group_panels = (num_panels + groups - 1) / groups;
  return {block_rows, group_panels * kernels.tile_columns,
          (num_panels + group_panels - 1) / group_panels};
}

void multiply_part(const Part& part, const Kernels& kernels, size_t num_threads) {
  const size_t num_panels = (part.shape.columns + kernels.tile_columns - 1) / kernels.tile_columns;
  run_blocks(num_panels, (num_panels + num_threads - 1) / num_threads, num_threads,
             [&](size_t first, size_t end) { kernels.pack_columns(part, first, end); });
  const Division division = divide(part.shape, kernels, num_threads);
  const size_t num_blocks = (part.shape.rows + division.block_rows - 1) / division.block_rows;
  run_blocks(num_blocks * division.num_groups, 1, num_threads, [&](size_t first, size_t end) {
    for (size_t task = first; task < end; ++task) kernels.multiply_block(part, division, task);
  });
}

void multiply_one(const Strided& a, const Strided& b, const ProductShape& shape, float* c,
                  size_t c_row, bool adds, size_t num_threads, VectorBits vectors) {
  if (shape.depth == 0 && !adds) {
    for (size_t i = 0; i < shape.rows; ++i) std::fill_n(c + i * c_row, shape.columns, 0.0f);
  }
  if (shape.rows == 0 || shape.depth == 0) return;
  const Kernels& kernels = kernels_of(vectors);
  const size_t widest = round_up(std::min(shape.columns, kColumns), kernels.tile_columns);
  const auto panels =
      std::make_unique_for_overwrite<float[]>(widest * std::min(shape.depth, kDepth));
  for (size_t column = 0; column < shape.columns; column += kColumns) {
    for (size_t depth = 0; depth < shape.depth; depth += kDepth) {
      const Part part = {{a.numbers + depth * a.column, a.row, a.column},
                         {b.numbers + depth * b.row + column * b.column, b.row, b.column},
                         {shape.rows, std::min(kDepth, shape.depth - depth),
                          std::min(kColumns, shape.columns - column)},
                         panels.get(),
                         c + column,
                         c_row,
                         adds || depth > 0};
      multiply_part(part, kernels, num_threads);
    }
  }
}

}  // namespace

void multiply_all(const Strided& a, const Strided& b, const ProductShape& shape, float* c,
                  size_t c_row, bool adds, const ProductStack& stack, size_t num_threads,
                  VectorBits vectors) {
  const size_t work = shape.rows * shape.depth * shape.columns;
  const bool is_small = work < kSmallProduct;
  const auto multiply = [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      multiply_one({a.numbers + i * stack.a, a.row, a.column},
                   {b.numbers + i * stack.b, b.row, b.column}, shape, c + i * stack.c, c_row, adds,
                   is_small ? 1 : num_threads, vectors);
    }
  };
  if (is_small) {
    run_blocks(stack.count, kSmallProduct / std::max(work, size_t{1}), num_threads, multiply);
  } else {
    multiply(0, stack.count);
  }
}

bool has_quick_products() {
#if defined(__x86_64__) && !defined(__APPLE__)
  static const bool is_intel = __builtin_cpu_is("intel");
  return !is_intel && widest_vectors() != VectorBits::k128;
#else
  return false;
#endif
}

}  // namespace lowtide
