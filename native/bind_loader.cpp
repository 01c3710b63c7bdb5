// Python's view of the loader's native part; argument checks here, algorithms in loader_*.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "loader_buffers.hpp"
#include "loader_order.hpp"
#include "loader_stream.hpp"

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
  }
  return "unknown";
}

// Raises _native.ReadError(kind, path, position, value) in Python.
[[noreturn]] void raise_read_error(const ReadFailure& failure) {
  const nb::object error = nb::module_::import_("lowtide._native").attr("ReadError");
  const nb::tuple arguments =
      nb::make_tuple(kind_name(failure.kind), failure.path, failure.position, failure.value);
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

void check_rows(const Uint64Array& starts, const Uint64Array& rows, size_t num_rows) {
  if (starts.size() != rows.size()) {
    throw nb::value_error("starts and rows must have the same length");
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows.data()[i] >= num_rows) throw nb::value_error("a row lies outside the batch");
  }
}

template <typename Out>
void gather(TokenStream& stream, Uint64Array starts, Uint64Array rows, Rows<Out> inputs,
            Rows<Out> targets) {
  check_rows(starts, rows, inputs.shape(0));
  if (inputs.shape(0) != targets.shape(0) || inputs.shape(1) != targets.shape(1)) {
    throw nb::value_error("inputs and targets must have the same shape");
  }
  run_unlocked([&] {
    stream.gather(starts.data(), rows.data(), starts.size(), inputs.shape(1), inputs.data(),
                  targets.data());
  });
}

template <typename Out>
void read(TokenStream& stream, uint64_t first, Flat<Out> out) {
  run_unlocked([&] { stream.read(first, out.size(), out.data()); });
}

using ShardRow = std::tuple<std::string, uint64_t, uint64_t, std::string, uint64_t>;

std::vector<ShardFile> shard_files(const std::vector<ShardRow>& rows) {
  std::vector<ShardFile> shards;
  shards.reserve(rows.size());
  for (const auto& [path, byte_offset, num_tokens, documents_path, num_documents] : rows) {
    shards.push_back({path, byte_offset, num_tokens, documents_path, num_documents});
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
      .def_prop_ro("num_open_files", &TokenStream::num_open_files)
      .def("gather", &gather<int64_t>)
      .def("gather", &gather<int32_t>)
      .def("gather", &gather<uint16_t>)
      .def("read", &read<int64_t>)
      .def("read", &read<int32_t>)
      .def("read", &read<uint16_t>)
      .def("read", &read<uint32_t>)
      .def("align_to_documents",
           [](TokenStream& stream, MutableUint64 starts, uint64_t reach) {
             run_unlocked([&] { stream.align_to_documents(starts.data(), starts.size(), reach); });
           })
      .def("segments", [](TokenStream& stream, Uint64Array starts, Uint64Array rows,
                          Int32Rows segment_ids, Int32Rows positions) {
        check_rows(starts, rows, segment_ids.shape(0));
        if (segment_ids.shape(0) != positions.shape(0) ||
            segment_ids.shape(1) != positions.shape(1)) {
          throw nb::value_error("segment_ids and positions must have the same shape");
        }
        run_unlocked([&] {
          stream.segments(starts.data(), rows.data(), starts.size(), segment_ids.shape(1),
                          segment_ids.data(), positions.data());
        });
      });
}

struct PooledBuffer {
  void* data;
  size_t bytes;
};

// Uninitialised bytes in memory of the pool, which gets it back when the last view of it is gone.
nb::object empty_bytes(size_t bytes) {
  auto* const buffer = new PooledBuffer{BufferPool::instance().acquire(bytes), bytes};
  const nb::capsule owner(buffer, [](void* pointer) noexcept {
    auto* const mine = static_cast<PooledBuffer*>(pointer);
    BufferPool::instance().release(mine->data, mine->bytes);
    delete mine;
  });
  const nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> array(buffer->data, {bytes}, owner);
  return nb::cast(array, nb::rv_policy::reference);
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
  m.def("empty_bytes", &empty_bytes);
}

}  // namespace lowtide
