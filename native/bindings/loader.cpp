// Bindings for the loader's native part; argument checks here, algorithms in native/loader.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arguments.hpp"
#include "loader/buffer_pool.hpp"
#include "loader/orders.hpp"
#include "loader/token_stream.hpp"

namespace nb = nanobind;

namespace lowtide {
namespace {

using Uint64Array = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableUint64 = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Uint32Out = nb::ndarray<uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32Rows = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const char* kind_name(ReadFailure::Kind kind) {
  switch (kind) {
    case ReadFailure::Kind::kOpen:
      return "open";
    case ReadFailure::Kind::kRead:
      return "read";
    case ReadFailure::Kind::kTooShort:
      return "too_short";
    case ReadFailure::Kind::kIdTooLarge:
      return "id_too_large";
    case ReadFailure::Kind::kDocuments:
      return "documents";
  }
  return "unknown";
}

// Raises _native.ReadError(kind, path, position, value) in Python.
[[noreturn]] void raise_read_error(const ReadFailure& failure) {
  const nb::object error = nb::module_::import_("lowtide._native").attr("ReadError");
  const nb::tuple arguments = nb::make_tuple(kind_name(failure.kind), FileName{failure.path},
                                             failure.position, failure.value);
  PyErr_SetObject(error.ptr(), arguments.ptr());
  throw nb::python_error();
}

template <typename Work>
void run_unlocked(Work work) {
  try {
    const nb::gil_scoped_release unlocked;
    work();
  } catch (const ReadFailure& failure) {
    raise_read_error(failure);
  }
}

// Which rows of a batch are filled; without a list the first ones, in order.
using RowNumbers = std::optional<Uint64Array>;

const uint64_t* checked_rows(const Uint64Array& starts, const RowNumbers& rows, size_t num_rows) {
  if (!rows) {
    if (starts.size() > num_rows) throw nb::value_error("more starts than rows");
    return nullptr;
  }
  if (starts.size() != rows->size()) {
    throw nb::value_error("starts and rows must have the same length");
  }
  for (size_t i = 0; i < rows->size(); ++i) {
    if (rows->data()[i] >= num_rows) throw nb::value_error("a row lies outside the batch");
  }
  return rows->data();
}

template <typename Out>
void gather(TokenStream& stream, Uint64Array starts, RowNumbers rows, Rows<Out> inputs,
            Rows<Out> targets) {
  const uint64_t* const numbers = checked_rows(starts, rows, inputs.shape(0));
  if (inputs.shape(0) != targets.shape(0) || inputs.shape(1) != targets.shape(1)) {
    throw nb::value_error("inputs and targets must have the same shape");
  }
  run_unlocked([&] {
    stream.gather(starts.data(), numbers, starts.size(), inputs.shape(1), inputs.data(),
                  targets.data());
  });
}

template <typename Out>
void read(TokenStream& stream, uint64_t first, Flat<Out> out) {
  run_unlocked([&] { stream.read(first, out.size(), out.data()); });
}

using ShardRow = std::tuple<FileName, uint64_t, uint64_t, FileName, uint64_t, bool>;

std::vector<ShardFile> shard_files(const std::vector<ShardRow>& rows) {
  std::vector<ShardFile> shards;
  shards.reserve(rows.size());
  for (const auto& [path, byte_offset, num_tokens, documents_path, num_documents, begins] : rows) {
    shards.push_back(
        {path.bytes, byte_offset, num_tokens, documents_path.bytes, num_documents, begins});
  }
  return shards;
}

void bind_stream(nb::module_& m) {
  m.attr("ReadError") =
      nb::steal(PyErr_NewException("lowtide._native.ReadError", nullptr, nullptr));
  nb::class_<TokenStream>(m, "TokenStream")
      .def(
          "__init__",
          [](TokenStream* self, const std::vector<ShardRow>& shards, int item_bytes,
             uint64_t id_limit, size_t max_open_files) {
            new (self) TokenStream(shard_files(shards), item_bytes, id_limit, max_open_files);
          },
          nb::arg("shards"), nb::kw_only(), nb::arg("item_bytes"), nb::arg("id_limit"),
          nb::arg("max_open_files"))
      .def_prop_ro("num_tokens", &TokenStream::num_tokens)
      .def("gather", &gather<int64_t>, nb::arg("starts"), nb::arg("rows").none(), nb::arg("inputs"),
           nb::arg("targets"))
      .def("gather", &gather<int32_t>, nb::arg("starts"), nb::arg("rows").none(), nb::arg("inputs"),
           nb::arg("targets"))
      .def("gather", &gather<uint16_t>, nb::arg("starts"), nb::arg("rows").none(),
           nb::arg("inputs"), nb::arg("targets"))
      .def("read", &read<int64_t>)
      .def("read", &read<int32_t>)
      .def("read", &read<uint16_t>)
      .def("read", &read<uint32_t>)
      .def("align_to_documents",
           [](TokenStream& stream, MutableUint64 starts, uint64_t reach) {
             run_unlocked([&] { stream.align_to_documents(starts.data(), starts.size(), reach); });
           })
      .def(
          "segments",
          [](TokenStream& stream, Uint64Array starts, RowNumbers rows, Int32Rows segment_ids,
             Int32Rows positions) {
            const uint64_t* const numbers = checked_rows(starts, rows, segment_ids.shape(0));
            if (segment_ids.shape(0) != positions.shape(0) ||
                segment_ids.shape(1) != positions.shape(1)) {
              throw nb::value_error("segment_ids and positions must have the same shape");
            }
            run_unlocked([&] {
              stream.segments(starts.data(), numbers, starts.size(), segment_ids.shape(1),
                              segment_ids.data(), positions.data());
            });
          },
          nb::arg("starts"), nb::arg("rows").none(), nb::arg("segment_ids"), nb::arg("positions"));
}

struct PooledBuffer {
  void* data;
  size_t bytes;
};

// An uninitialised array of integers in memory of the pool, to which it returns with the last view
// of it. Made in one call: as bytes that Python views and reshapes it took three.
nb::object empty_rows(size_t num_rows, size_t length, size_t item_bytes, bool is_signed) {
  require(item_bytes == 1 || item_bytes == 2 || item_bytes == 4 || item_bytes == 8,
          "item_bytes must be 1, 2, 4 or 8");
  const size_t bytes = checked_product(num_rows, length, item_bytes);
  auto* const buffer = new PooledBuffer{BufferPool::instance().acquire(bytes), bytes};
  const nb::capsule owner(buffer, [](void* pointer) noexcept {
    auto* const mine = static_cast<PooledBuffer*>(pointer);
    BufferPool::instance().release(mine->data, mine->bytes);
    delete mine;
  });
  const auto code = is_signed ? nb::dlpack::dtype_code::Int : nb::dlpack::dtype_code::UInt;
  const nb::dlpack::dtype type{static_cast<uint8_t>(code), static_cast<uint8_t>(8 * item_bytes), 1};
  const nb::ndarray<nb::numpy, nb::ndim<2>> array(buffer->data, {num_rows, length}, owner, {},
                                                  type);
  return nb::cast(array, nb::rv_policy::reference);
}

// The first token of each window: a multiple of the stride, except where the tokens end.
template <typename Index>
nb::object window_starts(Flat<const Index> indices, uint64_t num_windows, uint64_t stride,
                         uint64_t last_start) {
  const size_t count = indices.size();
  auto starts = std::make_unique<uint64_t[]>(count);
  for (size_t i = 0; i < count; ++i) {
    const Index index = indices.data()[i];
    if (static_cast<uint64_t>(index) >= num_windows) {  // a negative one is a very large one too
      throw nb::index_error(
          ("window " + std::to_string(index) + " of " + std::to_string(num_windows)).c_str());
    }
    starts[i] = std::min(static_cast<uint64_t>(index) * stride, last_start);
  }
  uint64_t* const data = starts.release();
  const nb::capsule owner(data,
                          [](void* pointer) noexcept { delete[] static_cast<uint64_t*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>>(data, {count}, owner),
                  nb::rv_policy::reference);
}

void bind_order(nb::module_& m) {
  m.def("shuffled_indices", [](uint64_t seed, uint64_t size, uint64_t first, MutableUint64 out) {
    shuffled_indices(seed, size, first, out.size(), out.data());
  });
  m.def("random_indices", [](uint64_t seed, uint64_t size, uint64_t first, MutableUint64 out) {
    random_indices(seed, size, first, out.size(), out.data());
  });
  nb::class_<MixtureSchedule>(m, "MixtureSchedule")
      .def(nb::init<std::vector<uint64_t>>())
      .def("slots", [](const MixtureSchedule& schedule, uint64_t first, Uint32Out sources,
                       MutableUint64 taken) {
        if (taken.size() != schedule.num_sources()) {
          throw nb::value_error("taken must have one place per source");
        }
        schedule.slots(first, sources.size(), sources.data(), taken.data());
      });
}

}  // namespace

void bind_loader(nb::module_& m) {
  bind_stream(m);
  bind_order(m);
  m.def("empty_rows", &empty_rows);
  m.def("window_starts", &window_starts<int64_t>);
  m.def("window_starts", &window_starts<uint64_t>);
}

}  // namespace lowtide
