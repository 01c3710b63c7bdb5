// Checks of arguments from Python, before they are used: file names and numbers.
//
// An invalid number is a ValueError that names it, never a crash, an endless loop, or a huge
// allocation: the bindings do these checks, so that the algorithms need none.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace lowtide {

// A file name in the system's form: any bytes but NUL. Python represents bytes that are not UTF-8
// as lone surrogates, which conversion to std::string refuses.
struct FileName {
  std::string bytes;
};

constexpr size_t kMostThreads = 4096;

inline void require(bool good, const char* expectation) {
  if (!good) throw std::invalid_argument(expectation);
}

inline void require_threads(size_t num_threads) {
  require(num_threads >= 1 && num_threads <= kMostThreads, "num_threads must be 1 to 4096");
}

inline void require_id_bytes(size_t id_bytes) {
  require(id_bytes == 2 || id_bytes == 4, "id_bytes must be 2 or 4");
}

// The product of sizes, which must fit the address space.
template <typename... Sizes>
size_t checked_product(Sizes... sizes) {
  size_t product = 1;
  for (const size_t size : {static_cast<size_t>(sizes)...}) {
    if (__builtin_mul_overflow(product, size, &product) || product > PTRDIFF_MAX) {
      throw std::invalid_argument("these sizes are too large together");
    }
  }
  return product;
}

}  // namespace lowtide

namespace nanobind::detail {

template <>
struct type_caster<lowtide::FileName> {
  NB_TYPE_CASTER(lowtide::FileName, const_name("str | bytes | os.PathLike"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    PyObject* name = nullptr;
    if (!PyUnicode_FSConverter(source.ptr(), &name)) {  // no name, or one with a NUL in it
      PyErr_Clear();
      return false;
    }
    const object owned = steal(name);
    value.bytes.assign(PyBytes_AsString(name), static_cast<size_t>(PyBytes_Size(name)));
    return true;
  }

  static handle from_cpp(const lowtide::FileName& name, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_DecodeFSDefaultAndSize(name.bytes.data(),
                                            static_cast<Py_ssize_t>(name.bytes.size()));
  }
};

}  // namespace nanobind::detail
