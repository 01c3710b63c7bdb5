// Declarations shared by the bindings of all stages.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "bindings/arguments.hpp"
#include "corpus/cleaner.hpp"

namespace lowtide {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// A one-dimensional array from Python, contiguous and of the right type.
template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A Python memoryview, because importing NumPy takes 0.15 s.
template <typename T>
using View = nb::ndarray<nb::memview, const T, nb::ndim<1>>;
using Bytes = View<uint8_t>;

template <typename T>
std::span<const T> as_span(const Input<T>& array) {
  return {array.data(), array.shape(0)};
}

// Rows of a plain struct, passed as raw bytes.
template <typename Row>
std::span<const Row> as_rows(const Input<uint8_t>& array) {
  if (array.shape(0) % sizeof(Row) != 0 ||
      reinterpret_cast<uintptr_t>(array.data()) % alignof(Row) != 0) {
    throw std::invalid_argument("rows are cut off or not aligned");
  }
  return {reinterpret_cast<const Row*>(array.data()), array.shape(0) / sizeof(Row)};
}

inline std::string_view as_text(const Input<uint8_t>& array) {
  return {reinterpret_cast<const char*>(array.data()), array.shape(0)};
}

template <typename T, typename Owner>
Bytes view_bytes(const T* data, size_t count, Owner& owner) {
  return Bytes(reinterpret_cast<const uint8_t*>(data), {count * sizeof(T)}, nb::find(owner));
}

inline nb::list list_counts(const std::array<RuleCount, kNumRules>& counts) {
  nb::list rows;
  for (const RuleCount& row : counts) rows.append(nb::make_tuple(row.count, row.bytes));
  return rows;
}

inline nb::list list_samples(const std::vector<Sample>& samples) {
  nb::list rows;
  for (const Sample& sample : samples) {
    rows.append(nb::make_tuple(sample.rule, nb::bytes(sample.text.data(), sample.text.size())));
  }
  return rows;
}

// Moves a vector to Python, as a view of values of another size, without copying it.
template <typename Item, typename T>
View<Item> to_view(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  const auto* const data = reinterpret_cast<const Item*>(owned->data());
  const size_t size = owned->size() * sizeof(T) / sizeof(Item);
  nb::capsule owner(owned.release(),
                    [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return View<Item>(data, {size}, owner);
}

// Moves a vector to NumPy without copying it.
template <typename T>
Array<T> to_array(std::vector<T>&& values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = owned->data();
  const size_t size = owned->size();
  nb::capsule owner(owned.release(),
                    [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T>(data, {size}, owner);
}

void bind_classifier(nb::module_& m);
void bind_corpus(nb::module_& m);
void bind_dataset(nb::module_& m);
void bind_learning(nb::module_& m);
void bind_loader(nb::module_& m);
void bind_decoder(nb::module_& m);
void bind_model(nb::module_& m);
void bind_near_copies(nb::module_& m);
void bind_testing(nb::module_& m);
void bind_tokenizer(nb::module_& m);
void bind_vocabulary_files(nb::module_& m);

}  // namespace lowtide
