// A zeroed array of fixed size on huge pages where available: tables with random access have far
// fewer TLB misses there.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "system/memory.hpp"

namespace lowtide {

template <typename T>
class HugeArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  HugeArray() = default;
  explicit HugeArray(size_t size) : size_(size), mapped_bytes_(size * sizeof(T)) {
    // Huge pages begin at multiples of 2 MiB; the extra bytes allow this alignment.
    if (mapped_bytes_ >= kHugePage) mapped_bytes_ += kHugePage;
    mapped_ = map_memory(mapped_bytes_);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    size_t address = reinterpret_cast<size_t>(mapped_);
    if (mapped_bytes_ >= kHugePage) {
      address = (address + kHugePage - 1) / kHugePage * kHugePage;
      ask_for_huge_pages(reinterpret_cast<void*>(address), size * sizeof(T));
    }
    data_ = reinterpret_cast<T*>(address);
  }
  ~HugeArray() {
    if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  }
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;
  HugeArray(HugeArray&& other) noexcept { swap(other); }
  HugeArray& operator=(HugeArray&& other) noexcept {
    swap(other);
    return *this;
  }

  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  void swap(HugeArray& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }
  void* mapped_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0, mapped_bytes_ = 0;
};

}  // namespace lowtide
