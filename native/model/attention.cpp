#include "model/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "model/exponential.hpp"
#include "model/thread_pool.hpp"
#include "model/tiles.hpp"

namespace lowtide {
namespace {

constexpr size_t kBlockQueries = 24;  // of the backward pass: keys sum over so many, whole tiles
constexpr size_t kTasksPerThread = 4;

struct Range {
  size_t begin, end;
};

// Memory of one thread. Lines of a head's numbers and of keys are whole vectors and tiles.
class Room {
 public:
  Room(const AttentionShape& shape, bool is_backward, size_t lanes)
      : width(round_up(shape.head_dim, lanes)),
        // One tile more than needed, so that lines are seldom a power of two apart.
        keys(round_up(shape.num_keys, 2 * lanes) + 2 * lanes),
        numbers_(std::make_unique_for_overwrite<float[]>(size(shape, width, keys, is_backward))) {
    float* at = numbers_.get();
    const auto take = [&at](size_t count) { return std::exchange(at, at + count); };
    queries = take(kBlockQueries * width);
    outputs = take(kBlockQueries * width);
    scores = take(kBlockQueries * keys);
    lines = take(keys * width);
    keys_across = take(shape.head_dim * keys);
    if (!is_backward) return;
    given = take(kBlockQueries * width);
    steps = take(kBlockQueries * keys);
    values_across = take(shape.head_dim * keys);
    key_gradients = take(keys * width);
    value_gradients = take(keys * width);
  }

  static size_t size(const AttentionShape& shape, size_t width, size_t keys, bool is_backward) {
    const size_t forward = kBlockQueries * (2 * width + keys) + keys * (width + shape.head_dim);
    const size_t more = kBlockQueries * (width + keys) + keys * (2 * width + shape.head_dim);
    return is_backward ? forward + more : forward;
  }

  size_t width, keys;
  float *queries, *outputs, *scores, *lines, *keys_across;
  float *given, *steps, *values_across, *key_gradients, *value_gradients;

 private:
  std::unique_ptr<float[]> numbers_;
};

// c (+)= a b for a tile of rows of a, and any number of whole vectors of columns of b.
template <size_t LANES>
[[gnu::always_inline]] inline void multiply(const Strided& a, const float* b, size_t b_row,
                                            size_t depth, float* c, size_t c_row, size_t columns,
                                            bool adds = false) {
  size_t j = 0;
  for (; j + 2 * LANES <= columns; j += 2 * LANES) {
    multiply_tile<LANES, 2>(a, b + j, b_row, depth, c + j, c_row, adds);
  }
  if (j < columns) multiply_tile<LANES, 1>(a, b + j, b_row, depth, c + j, c_row, adds);
}

// The keys that a query sees.
[[gnu::always_inline]] inline Range seen_by(const AttentionShape& shape, size_t query) {
  const size_t end = query + 1 + (shape.num_keys - shape.num_queries);
  return {shape.window != 0 && end > shape.window ? end - shape.window : 0, end};
}

// Those that some of the queries see, from a whole tile on.
template <size_t LANES>
[[gnu::always_inline]] inline Range seen_by_some(const AttentionShape& shape, size_t first,
                                                 size_t count) {
  constexpr size_t kWide = 2 * LANES;
  return {seen_by(shape, first).begin / kWide * kWide, seen_by(shape, first + count - 1).end};
}

[[gnu::always_inline]] inline const float* head_of(const float* numbers, const HeadStrides& strides,
                                                   size_t row, size_t head) {
  return numbers + static_cast<int64_t>(row) * strides.row +
         static_cast<int64_t>(head) * strides.head;
}

// Copies tokens of a head as lines of `width` numbers, and 0 beyond head_dim.
[[gnu::always_inline]] inline void copy_lines(const float* from, int64_t stride, size_t count,
                                              size_t head_dim, float scale, float* to,
                                              size_t width) {
  for (size_t i = 0; i < count; ++i, from += stride, to += width) {
    for (size_t d = 0; d < head_dim; ++d) to[d] = scale * from[d];
    std::fill(to + head_dim, to + width, 0.0f);
  }
}

// The same as columns: a line of `width` tokens for each of a head's numbers.
[[gnu::always_inline]] inline void copy_across(const float* from, int64_t stride, size_t count,
                                               size_t head_dim, float* to, size_t width) {
  for (size_t i = 0; i < count; ++i, from += stride) {
    for (size_t d = 0; d < head_dim; ++d) to[d * width + i] = from[d];
  }
  for (size_t d = 0; d < head_dim; ++d) {
    std::fill(to + d * width + count, to + (d + 1) * width, 0.0f);
  }
}

// Scores become e to the score less `base`, and 0 where the query sees nothing; returns their sum.
[[gnu::always_inline]] inline float raise(float* scores, const Range& all, const Range& seen,
                                          float base) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (size_t j = seen.begin; j < seen.end; ++j) {
    scores[j] = exponential(scores[j] - base);
    sum += scores[j];
  }
  std::fill(scores + all.begin, scores + seen.begin, 0.0f);
  std::fill(scores + seen.end, scores + all.end, 0.0f);
  return sum;
}

// The largest score; NaN is left out, and comes back with the sum. By vectors: clang does not
// vectorize a loop over single comparisons, because NaN could be lost in another order.
template <size_t LANES>
[[gnu::always_inline]] inline float largest(const float* scores, const Range& seen) {
  using Vector = typename FloatVector<LANES>::Type;
  Vector lanes = Vector{} - std::numeric_limits<float>::infinity();
  size_t j = seen.begin;
  for (; j + LANES <= seen.end; j += LANES) {
    const Vector next = *reinterpret_cast<const Vector*>(scores + j);
    lanes = next > lanes ? next : lanes;
  }
  float most = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < LANES; ++i) most = lanes[i] > most ? lanes[i] : most;
  for (; j < seen.end; ++j) most = scores[j] > most ? scores[j] : most;
  return most;
}

[[gnu::always_inline]] inline float scale_of(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

struct ForwardJob {
  const AttentionHeads& heads;
  const AttentionShape& shape;
  float *out, *log_sums;
};

// One head of one row.
template <size_t LANES>
[[gnu::always_inline]] inline void attend(const ForwardJob& job, size_t row, size_t head,
                                          Room& room) {
  constexpr size_t kRows = kTileRows<LANES>;
  const AttentionHeads& heads = job.heads;
  const AttentionShape& shape = job.shape;
  const size_t head_dim = shape.head_dim, width = room.width, keys = room.keys;
  const size_t kv_head = head / shape.group(), out_stride = shape.num_heads * head_dim;
  const float* const query = head_of(heads.query, heads.query_strides, row, head);
  float* const out = job.out + (row * shape.num_queries * shape.num_heads + head) * head_dim;
  float* const log_sums = job.log_sums + (row * shape.num_heads + head) * shape.num_queries;
  copy_across(head_of(heads.key, heads.key_strides, row, kv_head), heads.key_strides.token,
              shape.num_keys, head_dim, room.keys_across, keys);
  copy_lines(head_of(heads.value, heads.value_strides, row, kv_head), heads.value_strides.token,
             shape.num_keys, head_dim, 1.0f, room.lines, width);
  for (size_t first = 0; first < shape.num_queries; first += kRows) {
    const size_t count = std::min(kRows, shape.num_queries - first);
    const Range all = seen_by_some<LANES>(shape, first, count);
    copy_lines(query + static_cast<int64_t>(first) * heads.query_strides.token,
               heads.query_strides.token, count, head_dim, scale_of(shape), room.queries, width);
    multiply<LANES>({room.queries, width, 1}, room.keys_across + all.begin, keys, head_dim,
                    room.scores + all.begin, keys, round_up(all.end - all.begin, LANES));
    float sums[kRows];
    for (size_t i = 0; i < count; ++i) {
      float* const scores = room.scores + i * keys;
      const Range seen = seen_by(shape, first + i);
      const float base = largest<LANES>(scores, seen);
      sums[i] = raise(scores, all, seen, base);
      log_sums[first + i] = base + std::log(sums[i]);
    }
    multiply<LANES>({room.scores + all.begin, keys, 1}, room.lines + all.begin * width, width,
                    all.end - all.begin, room.outputs, width, width);
    for (size_t i = 0; i < count; ++i) {
      const float* const found = room.outputs + i * width;
      float* const to = out + (first + i) * out_stride;
      for (size_t d = 0; d < head_dim; ++d) to[d] = found[d] / sums[i];
    }
  }
}

struct BackwardJob {
  const AttentionGradients& gradients;
  const AttentionHeads& heads;
  const AttentionShape& shape;
  const float *out, *log_sums;
};

// Queries [first, first + count) of one head: their gradients, and what they add to those of keys
// and values.
template <size_t LANES>
[[gnu::always_inline]] inline void attend_backward_block(const BackwardJob& job, size_t row,
                                                         size_t head, size_t first, Room& room) {
  constexpr size_t kRows = kTileRows<LANES>;
  const AttentionHeads& heads = job.heads;
  const AttentionShape& shape = job.shape;
  const AttentionGradients& gradients = job.gradients;
  const size_t head_dim = shape.head_dim, width = room.width, keys = room.keys;
  const size_t count = std::min(kBlockQueries, shape.num_queries - first);
  const size_t tiled = round_up(count, kRows);
  const Range some = seen_by_some<LANES>(shape, first, count);
  // As many keys as tiles of columns write, and as tiles of rows read.
  const size_t columns = round_up(some.end - some.begin, LANES);
  const Range all = {some.begin,
                     some.begin + std::max(columns, round_up(some.end - some.begin, kRows))};
  const float scale = scale_of(shape);
  const float* const query = head_of(heads.query, heads.query_strides, row, head);
  copy_lines(query + static_cast<int64_t>(first) * heads.query_strides.token,
             heads.query_strides.token, count, head_dim, scale, room.queries, width);
  const float* const given = head_of(gradients.given, gradients.given_strides, row, head);
  copy_lines(given + static_cast<int64_t>(first) * gradients.given_strides.token,
             gradients.given_strides.token, count, head_dim, 1.0f, room.given, width);
  for (size_t i = 0; i < tiled; i += kRows) {
    multiply<LANES>({room.queries + i * width, width, 1}, room.keys_across + all.begin, keys,
                    head_dim, room.scores + i * keys + all.begin, keys, columns);
    multiply<LANES>({room.given + i * width, width, 1}, room.values_across + all.begin, keys,
                    head_dim, room.steps + i * keys + all.begin, keys, columns);
  }
  // Scores become weights, and gradients of weights those of scores.
  const float* const log_sums =
      job.log_sums + (row * shape.num_heads + head) * shape.num_queries + first;
  const size_t place = ((row * shape.num_queries + first) * shape.num_heads + head) * head_dim;
  const size_t stride = shape.num_heads * head_dim;
  for (size_t i = 0; i < count; ++i) {
    float *const weights = room.scores + i * keys, *const steps = room.steps + i * keys;
    const float* const line = room.given + i * width;
    const float* const found = job.out + place + i * stride;
    const Range seen = seen_by(shape, first + i);
    raise(weights, all, seen, log_sums[i]);
    float along = 0.0f;
#pragma omp simd reduction(+ : along)
    for (size_t d = 0; d < head_dim; ++d) along += line[d] * found[d];
#pragma omp simd
    for (size_t j = seen.begin; j < seen.end; ++j) steps[j] = weights[j] * (steps[j] - along);
    std::fill(steps + all.begin, steps + seen.begin, 0.0f);
    std::fill(steps + seen.end, steps + all.end, 0.0f);
  }
  for (size_t i = 0; i < tiled; i += kRows) {
    multiply<LANES>({room.steps + i * keys + all.begin, keys, 1}, room.lines + all.begin * width,
                    width, some.end - some.begin, room.outputs + i * width, width, width);
  }
  for (size_t i = 0; i < count; ++i) {
    float* const to = gradients.query + place + i * stride;
    for (size_t d = 0; d < head_dim; ++d) to[d] = scale * room.outputs[i * width + d];
  }
  for (size_t j = all.begin; j < some.end; j += kRows) {
    multiply<LANES>({room.scores + j, 1, keys}, room.given, width, count,
                    room.value_gradients + j * width, width, width, true);
    multiply<LANES>({room.steps + j, 1, keys}, room.queries, width, count,
                    room.key_gradients + j * width, width, width, true);
  }
}

// All heads of queries of one head of keys in one row.
template <size_t LANES>
[[gnu::always_inline]] inline void attend_backward(const BackwardJob& job, size_t row,
                                                   size_t kv_head, Room& room) {
  const AttentionHeads& heads = job.heads;
  const AttentionShape& shape = job.shape;
  const size_t head_dim = shape.head_dim, width = room.width, keys = room.keys;
  const float* const key = head_of(heads.key, heads.key_strides, row, kv_head);
  const float* const value = head_of(heads.value, heads.value_strides, row, kv_head);
  copy_across(key, heads.key_strides.token, shape.num_keys, head_dim, room.keys_across, keys);
  copy_across(value, heads.value_strides.token, shape.num_keys, head_dim, room.values_across, keys);
  copy_lines(key, heads.key_strides.token, shape.num_keys, head_dim, 1.0f, room.lines, width);
  std::fill_n(room.key_gradients, keys * width, 0.0f);
  std::fill_n(room.value_gradients, keys * width, 0.0f);
  for (size_t member = 0; member < shape.group(); ++member) {
    const size_t head = kv_head * shape.group() + member;
    for (size_t first = 0; first < shape.num_queries; first += kBlockQueries) {
      attend_backward_block<LANES>(job, row, head, first, room);
    }
  }
  for (size_t i = 0; i < shape.num_keys; ++i) {
    const size_t to = ((row * shape.num_keys + i) * shape.num_kv_heads + kv_head) * head_dim;
    for (size_t d = 0; d < head_dim; ++d) {
      job.gradients.key[to + d] = room.key_gradients[i * width + d];
      job.gradients.value[to + d] = room.value_gradients[i * width + d];
    }
  }
}

struct Kernels {
  void (*forward)(const ForwardJob& job, size_t row, size_t head, Room& room);
  void (*backward)(const BackwardJob& job, size_t row, size_t kv_head, Room& room);
};

#define LOWTIDE_ATTENTION_KERNELS(BITS, TARGET)                                           \
  TARGET void attend_##BITS(const ForwardJob& job, size_t row, size_t head, Room& room) { \
    attend<BITS / 32>(job, row, head, room);                                              \
  }                                                                                       \
  TARGET void attend_backward_##BITS(const BackwardJob& job, size_t row, size_t head,     \
                                     Room& room) {                                        \
    attend_backward<BITS / 32>(job, row, head, room);                                     \
  }                                                                                       \
  constexpr Kernels kKernels##BITS = {attend_##BITS, attend_backward_##BITS};
LOWTIDE_ATTENTION_KERNELS(128, )
LOWTIDE_ATTENTION_KERNELS(256, LOWTIDE_VECTORS_256)
LOWTIDE_ATTENTION_KERNELS(512, LOWTIDE_VECTORS_512)
#undef LOWTIDE_ATTENTION_KERNELS

const Kernels& kernels_of(VectorBits vectors) {
  return of_width(vectors, kKernels128, kKernels256, kKernels512);
}

size_t lanes_of(VectorBits vectors) { return static_cast<size_t>(vectors) / 32; }

// Calls work(row, head, room) for all heads of all rows, a few of them one after the other.
template <typename Work>
void for_heads(const AttentionShape& shape, size_t num_heads, bool is_backward, VectorBits vectors,
               size_t num_threads, const Work& work) {
  const size_t count = shape.num_rows * num_heads;
  const size_t block = num_threads == 1 ? count : count / (num_threads * kTasksPerThread);
  run_blocks(count, std::max(block, size_t{1}), num_threads, [&](size_t first, size_t end) {
    Room room(shape, is_backward, lanes_of(vectors));
    for (size_t i = first; i < end; ++i) work(i / num_heads, i % num_heads, room);
  });
}

}  // namespace

void attend_all(const AttentionHeads& heads, const AttentionShape& shape, float* out,
                float* log_sums, size_t num_threads, VectorBits vectors) {
  const ForwardJob job = {heads, shape, out, log_sums};
  const Kernels& kernels = kernels_of(vectors);
  for_heads(shape, shape.num_heads, false, vectors, num_threads,
            [&](size_t row, size_t head, Room& room) { kernels.forward(job, row, head, room); });
}

void attend_backward_all(const AttentionGradients& gradients, const AttentionHeads& heads,
                         const AttentionShape& shape, const float* out, const float* log_sums,
                         size_t num_threads, VectorBits vectors) {
  const BackwardJob job = {gradients, heads, shape, out, log_sums};
  const Kernels& kernels = kernels_of(vectors);
  for_heads(shape, shape.num_kv_heads, true, vectors, num_threads,
            [&](size_t row, size_t head, Room& room) { kernels.backward(job, row, head, room); });
}

size_t attention_room_bytes(const AttentionShape& shape, bool is_backward) {
  constexpr size_t kMostLanes = 16;
  const size_t keys = round_up(shape.num_keys, 2 * kMostLanes) + 2 * kMostLanes;
  return sizeof(float) * Room::size(shape, round_up(shape.head_dim, kMostLanes), keys, is_backward);
}

}  // namespace lowtide
