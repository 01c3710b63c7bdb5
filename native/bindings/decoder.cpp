// Bindings for the decoder. Weights are passed as addresses, 0 if a network has no such part;
// lowtide.model.rowcaches checks their types and shapes, and keeps them alive.
#include "model/decoder.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "bindings/bindings.hpp"

namespace lowtide {
namespace {

using Address = uintptr_t;
using Addresses = std::vector<Address>;
using Numbers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// vocabulary, width, heads, key/value heads, head_dim, inner width, inputs of gates, kind of norm
// of heads, whether norms are layer norms, come after (post-norm), whether the MLP is gated, and
// whether the part along their own token's value is removed from the result of heads
using Sizes = std::array<size_t, 12>;
using Kinds = std::vector<uint8_t>;
constexpr size_t kLayerParts = 20, kLargest = size_t{1} << 22;

const float* weights(Address address) { return reinterpret_cast<const float*>(address); }

Matrix matrix(Address address, uint8_t kind) {
  require(kind <= static_cast<uint8_t>(NumberKind::float16), "no such kind of numbers");
  return {reinterpret_cast<const void*>(address), static_cast<NumberKind>(kind)};
}

// Norms, biases and gates, which are float32, and matrices of any type.
DecoderLayer make_layer(const Addresses& parts, const Kinds& kinds, size_t window) {
  require(parts.size() == kLayerParts && kinds.size() == kLayerParts, "a layer has 20 parts");
  const auto vector = [&](size_t index) {
    require(kinds[index] == 0, "norms, biases and gates are float32");
    return weights(parts[index]);
  };
  const auto table = [&](size_t index) { return matrix(parts[index], kinds[index]); };
  return {vector(0),  vector(1),  vector(2),  vector(3),  vector(5),  vector(7),  vector(9),
          vector(11), vector(12), vector(13), vector(14), vector(15), vector(16), vector(18),
          vector(19), table(4),   table(6),   table(8),   table(10),  table(17),  window};
}

Decoder make_decoder(const Sizes& sizes, float eps, float cap, const std::vector<Addresses>& layers,
                     const std::vector<Kinds>& kinds, const std::vector<size_t>& windows) {
  for (const size_t size : sizes) require(size <= kLargest, "a size is no network's");
  require(std::all_of(sizes.begin(), sizes.begin() + 6, [](size_t size) { return size > 0; }),
          "a network has no size of 0");
  require(sizes[2] % sizes[3] == 0, "heads must share keys evenly");
  require(sizes[6] <= sizes[1] && sizes[7] <= 2, "no such heads");
  require(checked_product(sizes[2] + 2 * sizes[3], sizes[4]) <= kLargest, "heads are too many");
  require(windows.size() == layers.size(), "each layer has a window, or 0");
  require(kinds.size() == layers.size(), "each layer has kinds of numbers");
  const DecoderShape shape{sizes[0],
                           sizes[1],
                           sizes[2],
                           sizes[3],
                           sizes[4],
                           sizes[5],
                           sizes[6],
                           eps,
                           cap,
                           static_cast<HeadNorm>(sizes[7]),
                           sizes[8] != 0,
                           sizes[9] != 0,
                           sizes[10] != 0,
                           sizes[11] != 0};
  std::vector<DecoderLayer> made;
  for (const Addresses& parts : layers) {
    const DecoderLayer layer = make_layer(parts, kinds[made.size()], windows[made.size()]);
    require(layer.attention_norm && layer.mlp_norm && layer.query_key_value.numbers &&
                layer.output.numbers && layer.up.numbers && layer.down.numbers,
            "a matrix or a norm of a layer has no address");
    require(!shape.has_layer_norm || (layer.attention_norm_bias && layer.mlp_norm_bias),
            "a layer norm has a bias");
    require(shape.head_norm == HeadNorm::none || (layer.query_norm && layer.key_norm),
            "norms of heads have no address");
    require(!layer.start_values.numbers || (layer.value_gate && layer.mix),
            "added values need a gate");
    require(made.empty() || !layer.mix == !made[0].mix, "all layers mix, or none");
    made.push_back(layer);
  }
  return Decoder(shape, std::move(made));
}

// embedding, output matrix, positions, final norm, its bias, cosines, sines
using Tables = std::array<Address, 7>;
using TableKinds = std::array<uint8_t, 2>;  // of the first two; the others are float32

void step(Decoder& decoder, const Tables& tables, const TableKinds& kinds, size_t num_positions,
          const Addresses& keys, const Addresses& values, size_t num_rows, size_t capacity,
          const Numbers& ids, const Numbers& positions, const Numbers& slots, Address logits,
          size_t num_logits, bool is_prompt, size_t num_threads,
          const std::optional<nb::callable>& before_layer) {
  require_threads(num_threads);
  const DecoderShape& shape = decoder.shape();
  require(tables[0] && tables[1] && tables[3] && logits, "a table has no address");
  require(!shape.has_layer_norm || tables[4], "a layer norm has a bias");
  require(!tables[5] == !tables[6], "cosines come with sines");
  require(!tables[5] || shape.head_dim % 2 == 0, "a head turns by pairs of numbers");
  require(keys.size() == decoder.num_layers() && values.size() == decoder.num_layers(),
          "each layer has keys and values");
  for (size_t i = 0; i < keys.size(); ++i) require(keys[i] && values[i], "a cache has no address");
  checked_product(num_rows, capacity, shape.num_kv_heads, shape.head_dim, sizeof(float));
  const size_t count = ids.shape(0);
  require(positions.shape(0) == count && slots.shape(0) == count, "each id has a position and row");
  require(num_logits <= count, "logits follow ids");
  checked_product(count, std::max({shape.vocab_size, shape.width, 2 * shape.mlp_width}),
                  sizeof(float));
  const auto inside = [](int64_t value, size_t end) {
    return value >= 0 && static_cast<uint64_t>(value) < end;
  };
  for (size_t i = 0; i < count; ++i) {
    require(inside(ids(i), shape.vocab_size), "an id lies outside the vocabulary");
    require(inside(positions(i), std::min(capacity, num_positions)), "a position has no room");
    require(inside(slots(i), num_rows), "a row is not in the cache");
  }
  std::function<void(size_t)> before;  // has a plain pointer to the caller's object
  if (before_layer) {
    before = [call = nb::handle(*before_layer)](size_t layer) {
      const nb::gil_scoped_acquire hold;
      call(layer);
    };
  }
  const nb::gil_scoped_release unlocked;
  std::vector<float*> key_rooms, value_rooms;
  for (const Address address : keys) key_rooms.push_back(reinterpret_cast<float*>(address));
  for (const Address address : values) value_rooms.push_back(reinterpret_cast<float*>(address));
  const DecoderTables found{matrix(tables[0], kinds[0]), matrix(tables[1], kinds[1]),
                            weights(tables[2]),          weights(tables[3]),
                            weights(tables[4]),          weights(tables[5]),
                            weights(tables[6])};
  const DecoderCache cache{key_rooms.data(), value_rooms.data(), capacity};
  decoder.step(found, cache, ids.data(), positions.data(), slots.data(), count,
               reinterpret_cast<float*>(logits), num_logits, is_prompt, num_threads, before);
}

}  // namespace

void bind_decoder(nb::module_& m) {
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__",
           [](Decoder* self, const Sizes& sizes, float eps, float cap,
              const std::vector<Addresses>& layers, const std::vector<Kinds>& kinds,
              const std::vector<size_t>& windows) {
             new (self) Decoder(make_decoder(sizes, eps, cap, layers, kinds, windows));
           })
      .def("step", &step);
}

}  // namespace lowtide
