// An allocator for vectors aligned to a cache line, so that a row of 64 bytes is in one line, not two.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace lowtide {

template <typename T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <typename Other>
  LineAllocator(const LineAllocator<Other>&) {}

  T* allocate(size_t count) {
    if (count > static_cast<size_t>(-1) / 2 / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(::operator new(count * sizeof(T), kLine));
  }
  void deallocate(T* there, size_t) { ::operator delete(there, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
};

template <typename T>
using LineVector = std::vector<T, LineAllocator<T>>;

}  // namespace lowtide
