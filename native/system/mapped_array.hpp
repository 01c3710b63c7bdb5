// A growing array of plain values in anonymous memory. On Linux growing moves page tables, not bytes
// (mremap), so it never needs twice the memory; reserved pages that were not written use none.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "system/memory.hpp"

namespace lowtide {

template <typename T>
class MappedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  MappedArray() = default;
  ~MappedArray() {
    if (data_ != nullptr) ::munmap(data_, capacity_ * sizeof(T));
  }
  MappedArray(const MappedArray&) = delete;
  MappedArray& operator=(const MappedArray&) = delete;

  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return size_; }
  size_t bytes() const { return capacity_ * sizeof(T); }

  void push_back(const T& value) {
    if (size_ == capacity_) reserve(capacity_ + capacity_ / 2 + kStep);
    data_[size_++] = value;
  }
  void resize(size_t size) {  // new values are zero
    if (size > capacity_) reserve(size);
    size_ = size;
  }
  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    capacity = (capacity + kStep - 1) / kStep * kStep;
    const size_t bytes = capacity * sizeof(T);
    void* moved =
        data_ == nullptr ? map_memory(bytes) : resize_mapping(data_, capacity_ * sizeof(T), bytes);
    if (moved == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
    if (bytes >= kManyBytes) ask_for_huge_pages(data_, bytes);
  }
  // Returns the memory after the last value to the system.
  void shrink_to_fit() {
    const size_t capacity = (size_ + kStep - 1) / kStep * kStep;
    if (capacity == 0 || capacity >= capacity_) return;
    void* moved = resize_mapping(data_, capacity_ * sizeof(T), capacity * sizeof(T));
    if (moved == MAP_FAILED) return;
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
  }
  void swap(MappedArray& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

 private:
  static constexpr size_t kStep = 1 << 14, kManyBytes = size_t{16} << 20;
  T* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace lowtide
