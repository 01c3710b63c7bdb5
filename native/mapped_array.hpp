// A growing array of plain values that lives in anonymous memory or in an unnamed file.
//
// Growing moves page tables, not bytes, so it never needs twice the memory. An array in a file can
// be let go of: `release` unmaps its pages from the process; they stay in the file and come back when
// touched. That is what keeps a job exact when its data does not fit the budget, only slower.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>

namespace lowtide {

template <typename T>
class MappedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // With a folder, the array lives in a file there that has no name and is gone with the process.
  explicit MappedArray(const std::string& file_dir = "") : dir_(file_dir) {
    if (file_dir.empty()) return;
    file_ = ::open(file_dir.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file_ < 0) {  // a file system without O_TMPFILE
      std::string name = file_dir + "/.array_XXXXXX";
      file_ = ::mkostemp(name.data(), O_CLOEXEC);
      if (file_ >= 0) ::unlink(name.c_str());
    }
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), file_dir);
  }
  ~MappedArray() {
    if (data_ != nullptr) ::munmap(data_, capacity_ * sizeof(T));
    if (file_ >= 0) ::close(file_);
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
    // posix_fallocate, not ftruncate: a full disk is an error here, not a signal at the first write.
    if (file_ >= 0) {
      const int error = ::posix_fallocate(file_, 0, static_cast<off_t>(bytes));
      if (error != 0) throw std::system_error(error, std::generic_category(), dir_);
    }
    void* moved = data_ == nullptr
                      ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                               file_ >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file_, 0)
                      : ::mremap(data_, capacity_ * sizeof(T), bytes, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
  }
  // Gives back what lies behind the last value.
  void shrink_to_fit() {
    const size_t capacity = (size_ + kStep - 1) / kStep * kStep;
    if (capacity == 0 || capacity >= capacity_) return;
    if (::mremap(data_, capacity_ * sizeof(T), capacity * sizeof(T), 0) == MAP_FAILED) return;
    if (file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(capacity * sizeof(T))) != 0) {
      throw std::system_error(errno, std::generic_category(), dir_);
    }
    capacity_ = capacity;
  }
  void release() {
    if (file_ >= 0 && data_ != nullptr) ::madvise(data_, bytes(), MADV_DONTNEED);
  }
  bool in_file() const { return file_ >= 0; }

 private:
  static constexpr size_t kStep = 1 << 14;
  std::string dir_;
  int file_ = -1;
  T* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

// The resident memory of this process in bytes.
inline size_t resident_bytes() {
  char text[128];
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* p = text;
  while (*p != 0 && *p != ' ') ++p;
  return static_cast<size_t>(std::strtoull(p, nullptr, 10)) *
         static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace lowtide
