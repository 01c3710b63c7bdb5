// What every part's bindings share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

namespace lowtide {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// A one-dimensional array from Python, contiguous and of the right type.
template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Gives a vector to NumPy without copying it.
template <typename T>
Array<T> to_array(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = owned->data();
  const size_t size = owned->size();
  nb::capsule owner(owned.release(),
                    [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T>(data, {size}, owner);
}

void bind_corpus(nb::module_& m);
void bind_loader(nb::module_& m);
void bind_model(nb::module_& m);
void bind_tokenizer(nb::module_& m);
void bind_vocabulary_files(nb::module_& m);

}  // namespace lowtide
