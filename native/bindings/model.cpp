// Bindings for the network's row kernels. Tensors are passed as addresses, because torch's DLPack
// takes longer than the kernels. lowtide.model.rowkernels checks types and shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include <array>
#include <cstdint>

#include "bindings/bindings.hpp"
#include "model/attention.hpp"
#include "model/products.hpp"
#include "model/threaded_kernels.hpp"
#include "model/twister.hpp"

namespace lowtide {
namespace {

using namespace nb::literals;

using Address = uintptr_t;

// The size of a tensor cannot be checked here; that its address is not null can.
template <typename... Addresses>
void require_tensors(size_t num_rows, size_t width, size_t num_threads, Addresses... addresses) {
  require_threads(num_threads);
  const size_t numbers = checked_product(num_rows, width, size_t{2}, sizeof(float));
  require(numbers == 0 || ((addresses != 0) && ...), "a tensor has no address");
}

const float* numbers(Address address) { return reinterpret_cast<const float*>(address); }
float* room(Address address) { return reinterpret_cast<float*>(address); }

void bind_norm(nb::module_& m) {
  m.def("rms_norm", [](Address x, Address weight, float eps, Address y, Address scales,
                       size_t num_rows, size_t width, size_t num_threads) {
    require_tensors(num_rows, width, num_threads, x, weight, y, scales);
    const nb::gil_scoped_release unlocked;
    rms_norm_all(numbers(x), numbers(weight), eps, room(y), room(scales), num_rows, width,
                 num_threads);
  });
  m.def("rms_norm_backward", [](Address gradient, Address x, Address weight, Address scales,
                                Address x_gradient, Address weight_gradient, size_t num_rows,
                                size_t width, size_t num_threads) {
    require_tensors(num_rows, width, num_threads, gradient, x, weight, scales, x_gradient,
                    weight_gradient);
    const nb::gil_scoped_release unlocked;
    rms_norm_backward_all(numbers(gradient), numbers(x), numbers(weight), numbers(scales),
                          room(x_gradient), room(weight_gradient), num_rows, width, num_threads);
  });
}

void bind_activations(nb::module_& m) {
  m.def("swiglu", [](Address x, Address y, size_t num_rows, size_t width, size_t num_threads) {
    require_tensors(num_rows, width, num_threads, x, y);
    const nb::gil_scoped_release unlocked;
    swiglu_all(numbers(x), room(y), num_rows, width, num_threads);
  });
  m.def("swiglu_backward", [](Address gradient, Address x, Address x_gradient, size_t num_rows,
                              size_t width, size_t num_threads) {
    require_tensors(num_rows, width, num_threads, gradient, x, x_gradient);
    const nb::gil_scoped_release unlocked;
    swiglu_backward_all(numbers(gradient), numbers(x), room(x_gradient), num_rows, width,
                        num_threads);
  });
  m.def("gelu", [](Address x, Address y, size_t size, size_t num_threads) {
    require_tensors(size, 1, num_threads, x, y);
    const nb::gil_scoped_release unlocked;
    gelu_all(numbers(x), room(y), size, num_threads);
  });
  m.def("gelu_backward",
        [](Address gradient, Address x, Address x_gradient, size_t size, size_t num_threads) {
          require_tensors(size, 1, num_threads, gradient, x, x_gradient);
          const nb::gil_scoped_release unlocked;
          gelu_backward_all(numbers(gradient), numbers(x), room(x_gradient), size, num_threads);
        });
}

void bind_loss(nb::module_& m) {
  m.def("cross_entropy",
        [](Address logits, Address targets, size_t num_rows, size_t width, size_t num_threads) {
          require_tensors(num_rows, width, num_threads, logits, targets);
          const auto* const wanted = reinterpret_cast<const int64_t*>(targets);
          for (size_t i = 0; i < num_rows; ++i) {
            if (wanted[i] < 0 || static_cast<uint64_t>(wanted[i]) >= width) {
              throw nb::index_error("a target lies outside the vocabulary");
            }
          }
          const nb::gil_scoped_release unlocked;
          return cross_entropy_all(room(logits), wanted, num_rows, width, num_threads);
        });
}

using Shape = std::array<size_t, 5>;     // rows, tokens, heads, key/value heads, head_dim
using Tables = std::array<Address, 4>;   // query weight, key weight, cos, sin
using Outputs = std::array<Address, 3>;  // query, key, value
using Strides = std::array<int64_t, 9>;  // row, token, head of each of them

HeadTables head_tables(const Tables& tables, float eps) {
  return {numbers(tables[0]), numbers(tables[1]), numbers(tables[2]), numbers(tables[3]), eps};
}

void require_heads(const Shape& sizes, size_t num_threads, Address x, const Tables& tables,
                   const Outputs& tensors) {
  const size_t num_rows = checked_product(sizes[0], sizes[1]);
  require(sizes[2] <= UINT32_MAX && sizes[3] <= UINT32_MAX / 2, "so many heads no network has");
  const size_t width = checked_product(sizes[2] + 2 * sizes[3], sizes[4]);
  require(sizes[4] % 2 == 0, "a head turns by pairs of numbers");
  require_tensors(num_rows, width, num_threads, x, tables[0], tables[1], tables[2], tables[3],
                  tensors[0], tensors[1], tensors[2]);
}

void bind_heads(nb::module_& m) {
  m.def("turn_heads", [](Address x, const Tables& tables, float eps, const Shape& sizes,
                         const Outputs& outputs, size_t num_threads) {
    require_heads(sizes, num_threads, x, tables, outputs);
    const nb::gil_scoped_release unlocked;
    const HeadShape shape{sizes[1], sizes[2], sizes[3], sizes[4]};
    turn_heads_all(numbers(x), head_tables(tables, eps), shape, room(outputs[0]), room(outputs[1]),
                   room(outputs[2]), sizes[0], num_threads);
  });
  m.def("turn_heads_backward",
        [](const Outputs& gradients, const Strides& strides, Address x, const Tables& tables,
           float eps, const Shape& sizes, Address x_gradient, Address query_weight_gradient,
           Address key_weight_gradient, size_t num_threads) {
          require_heads(sizes, num_threads, x, tables, gradients);
          require_tensors(checked_product(sizes[0], sizes[1]), sizes[4], num_threads, x_gradient);
          require_tensors(1, sizes[4], num_threads, query_weight_gradient, key_weight_gradient);
          const nb::gil_scoped_release unlocked;
          const HeadShape shape{sizes[1], sizes[2], sizes[3], sizes[4]};
          const HeadGradients given{numbers(gradients[0]),
                                    numbers(gradients[1]),
                                    numbers(gradients[2]),
                                    {strides[0], strides[1], strides[2]},
                                    {strides[3], strides[4], strides[5]},
                                    {strides[6], strides[7], strides[8]}};
          turn_heads_backward_all(given, numbers(x), head_tables(tables, eps), shape,
                                  room(x_gradient), room(query_weight_gradient),
                                  room(key_weight_gradient), sizes[0], num_threads);
        });
}

VectorBits require_vectors(size_t bits) {
  require(bits == 128 || bits == 256 || bits == 512, "vectors have 128, 256 or 512 bits");
  require(bits <= static_cast<size_t>(widest_vectors()), "this processor has no such vectors");
  return static_cast<VectorBits>(bits);
}

using Distances = std::array<size_t, 9>;       // of a, b and c: between matrices, rows, columns
using ProductSizes = std::array<size_t, 4>;    // matrices, rows, depth, columns
using AttentionSizes = std::array<size_t, 7>;  // the fields of AttentionShape

void bind_products(nb::module_& m) {
  m.def("vector_bits", [] { return static_cast<size_t>(widest_vectors()); });
  m.def("has_quick_products", &has_quick_products);
  m.def("multiply", [](Address a, Address b, Address c, const Distances& distances,
                       const ProductSizes& sizes, bool adds, size_t num_threads, size_t bits) {
    const ProductShape shape = {sizes[1], sizes[2], sizes[3]};
    require_tensors(checked_product(sizes[0], shape.rows), shape.columns, num_threads, c);
    require_tensors(checked_product(sizes[0], shape.rows), shape.depth, num_threads, a);
    require_tensors(checked_product(sizes[0], shape.depth), shape.columns, num_threads, b);
    checked_product(shape.rows, shape.depth, shape.columns);
    require(distances[8] == 1 || shape.columns <= 1, "lines of a product are contiguous");
    const VectorBits vectors = require_vectors(bits);
    const nb::gil_scoped_release unlocked;
    multiply_all({numbers(a), distances[1], distances[2]}, {numbers(b), distances[4], distances[5]},
                 shape, room(c), distances[7], adds,
                 {sizes[0], distances[0], distances[3], distances[6]}, num_threads, vectors);
  });
}

AttentionShape attention_shape(const AttentionSizes& sizes) {
  const AttentionShape shape = {sizes[0], sizes[1], sizes[2], sizes[3],
                                sizes[4], sizes[5], sizes[6]};
  require(shape.num_heads <= UINT32_MAX && shape.head_dim <= UINT32_MAX && shape.num_kv_heads > 0,
          "so many heads no network has");
  require(shape.num_heads % shape.num_kv_heads == 0, "heads share keys in groups of one size");
  require(shape.num_queries <= shape.num_keys, "each query has a key of its own");
  checked_product(shape.num_keys, shape.num_heads, shape.head_dim, size_t{64}, sizeof(float));
  return shape;
}

AttentionHeads attention_heads(const Outputs& tensors, const Strides& strides) {
  return {numbers(tensors[0]),
          numbers(tensors[1]),
          numbers(tensors[2]),
          {strides[0], strides[1], strides[2]},
          {strides[3], strides[4], strides[5]},
          {strides[6], strides[7], strides[8]}};
}

void bind_attention(nb::module_& m) {
  m.def("attention_room_bytes", [](const AttentionSizes& sizes, bool is_backward) {
    return attention_room_bytes(attention_shape(sizes), is_backward);
  });
  m.def("attend", [](const Outputs& tensors, const Strides& strides, const AttentionSizes& sizes,
                     Address out, Address log_sums, size_t num_threads, size_t bits) {
    const AttentionShape shape = attention_shape(sizes);
    require_tensors(checked_product(shape.num_rows, shape.num_queries),
                    checked_product(shape.num_heads, shape.head_dim), num_threads, tensors[0],
                    tensors[1], tensors[2], out, log_sums);
    const VectorBits vectors = require_vectors(bits);
    const nb::gil_scoped_release unlocked;
    attend_all(attention_heads(tensors, strides), shape, room(out), room(log_sums), num_threads,
               vectors);
  });
  m.def("attend_backward",
        [](Address given, const std::array<int64_t, 3>& given_strides, const Outputs& tensors,
           const Strides& strides, const AttentionSizes& sizes, Address out, Address log_sums,
           const Outputs& gradients, size_t num_threads, size_t bits) {
          const AttentionShape shape = attention_shape(sizes);
          require_tensors(checked_product(shape.num_rows, shape.num_queries),
                          checked_product(shape.num_heads, shape.head_dim), num_threads, given,
                          tensors[0], tensors[1], tensors[2], out, log_sums, gradients[0],
                          gradients[1], gradients[2]);
          const VectorBits vectors = require_vectors(bits);
          const nb::gil_scoped_release unlocked;
          const AttentionGradients all = {numbers(given),
                                          {given_strides[0], given_strides[1], given_strides[2]},
                                          room(gradients[0]),
                                          room(gradients[1]),
                                          room(gradients[2])};
          attend_backward_all(all, attention_heads(tensors, strides), shape, numbers(out),
                              numbers(log_sums), num_threads, vectors);
        });
}

using States = std::array<Address, 6>;     // weights, low bits, codes and scales of both moments
using StepNumbers = std::array<float, 9>;  // the fields of PackedStep, up to its seed

void bind_packed(nb::module_& m) {
  m.def("adamw_packed", [](const States& states, Address gradients, const StepNumbers& numbers,
                           uint32_t seed, uint32_t position, size_t size, size_t num_threads) {
    require_threads(num_threads);
    require(checked_product(size, sizeof(double)) > 0 && size % kPackedBlock == 0,
            "packed states come in whole blocks");
    for (const Address address : states) require(address != 0, "a tensor has no address");
    require(gradients != 0, "a tensor has no address");
    const nb::gil_scoped_release unlocked;
    const PackedStep step{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
                          numbers[5], numbers[6], numbers[7], numbers[8], seed};
    const PackedStates packed{reinterpret_cast<uint16_t*>(states[0]),
                              reinterpret_cast<int8_t*>(states[1]),
                              reinterpret_cast<int8_t*>(states[2]),
                              reinterpret_cast<uint8_t*>(states[3]),
                              room(states[4]),
                              room(states[5])};
    adamw_packed_all(packed, reinterpret_cast<const uint16_t*>(gradients), step, position, size,
                     num_threads);
  });
  m.def("momentum_packed",
        [](Address codes, Address scales, Address gradients, const std::array<float, 3>& numbers,
           size_t size, size_t num_threads) {
          require_threads(num_threads);
          require(checked_product(size, sizeof(double)) > 0 && size % kPackedBlock == 0,
                  "packed states come in whole blocks");
          require(codes != 0 && scales != 0 && gradients != 0, "a tensor has no address");
          const nb::gil_scoped_release unlocked;
          momentum_packed_all(reinterpret_cast<int8_t*>(codes), room(scales),
                              reinterpret_cast<uint16_t*>(gradients), numbers[0], numbers[1],
                              numbers[2], size, num_threads);
        });
  m.def("move_packed", [](Address weights, Address low_bits, Address steps,
                          const std::array<float, 2>& numbers, bool cautious, uint32_t seed,
                          uint32_t position, size_t size, size_t num_threads) {
    require_threads(num_threads);
    require(
        checked_product(size, sizeof(float)) == 0 || (weights != 0 && low_bits != 0 && steps != 0),
        "a tensor has no address");
    const nb::gil_scoped_release unlocked;
    const PackedMove move{numbers[0], numbers[1], cautious, seed};
    move_packed_all(reinterpret_cast<uint16_t*>(weights), reinterpret_cast<int8_t*>(low_bits),
                    reinterpret_cast<const uint16_t*>(steps), move, position, size, num_threads);
  });
  m.def("pack_weights",
        [](Address values, Address weights, Address low_bits, size_t size, size_t num_threads) {
          require_threads(num_threads);
          require(checked_product(size, sizeof(float)) == 0 ||
                      (values != 0 && weights != 0 && low_bits != 0),
                  "a tensor has no address");
          const nb::gil_scoped_release unlocked;
          pack_weights_all(numbers(values), reinterpret_cast<uint16_t*>(weights),
                           reinterpret_cast<int8_t*>(low_bits), size, num_threads);
        });
  m.def("unpack_weights", [](Address weights, Address low_bits, Address out, size_t size,
                             size_t num_threads) {
    require_threads(num_threads);
    require(
        checked_product(size, sizeof(float)) == 0 || (weights != 0 && low_bits != 0 && out != 0),
        "a tensor has no address");
    const nb::gil_scoped_release unlocked;
    unpack_weights_all(reinterpret_cast<const uint16_t*>(weights),
                       reinterpret_cast<const int8_t*>(low_bits), room(out), size, num_threads);
  });
}

// More than any parameter has; takes a minute or two.
constexpr uint64_t kMostSkipped = uint64_t{1} << 40;

using Room = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_twister(nb::module_& m) {
  nb::class_<Twister>(m, "Twister")
      .def(nb::init<uint32_t>(), "seed"_a)
      .def("copy", [](const Twister& self) { return self; })
      .def("next", &Twister::next)
      .def(
          "skip",
          [](Twister& self, uint64_t count) {
            require(count <= kMostSkipped, "count must be at most 2^40");
            const nb::gil_scoped_release unlocked;
            self.skip(count);
          },
          "count"_a)
      .def(
          "fill",
          [](Twister& self, Room out) {
            const nb::gil_scoped_release unlocked;
            self.fill(out.data(), out.shape(0));
          },
          "out"_a)
      .def_prop_ro("num_used", &Twister::num_used)
      .def_prop_ro("words", [](const Twister& self) {
        return nb::bytes(reinterpret_cast<const char*>(self.words().data()),
                         Twister::kWords * sizeof(uint32_t));
      });
}

}  // namespace

void bind_model(nb::module_& m) {
  bind_twister(m);
  bind_packed(m);
  bind_norm(m);
  bind_activations(m);
  bind_loss(m);
  bind_heads(m);
  bind_products(m);
  bind_attention(m);
}

}  // namespace lowtide
