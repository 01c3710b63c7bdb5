// System calls for memory and files that are not POSIX, each with a fallback for other systems;
// only this file has such calls. Results are the same everywhere; speed and peaks may differ.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lowtide {

// Anonymous zeroed memory, or MAP_FAILED.
inline void* map_memory(size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Resize a mapping, maybe moving it; MAP_FAILED on failure. Linux moves page tables, others copy:
// twice the memory for a moment.
inline void* resize_mapping(void* old, size_t old_bytes, size_t bytes) {
#if defined(__linux__)
  return ::mremap(old, old_bytes, bytes, MREMAP_MAYMOVE);
#else
  void* moved = map_memory(bytes);
  if (moved == MAP_FAILED) return moved;
  std::memcpy(moved, old, std::min(old_bytes, bytes));
  ::munmap(old, old_bytes);
  return moved;
#endif
}

inline void ask_for_huge_pages([[maybe_unused]] void* address, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
  ::madvise(address, bytes, MADV_HUGEPAGE);
#endif
}

// Return free memory to the system now.
inline void give_memory_back() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
}

// Keep freed blocks up to this many bytes in the process; returns memory that is free now.
inline void keep_freed_blocks([[maybe_unused]] int bytes, [[maybe_unused]] int at_the_end) {
#if defined(__GLIBC__)
  ::mallopt(M_MMAP_THRESHOLD, bytes);
  ::mallopt(M_TRIM_THRESHOLD, at_the_end);
#endif
  give_memory_back();
}

// Start writeback of dirty pages of a range of a file, where supported.
inline void start_writeback([[maybe_unused]] int file, [[maybe_unused]] uint64_t offset,
                            [[maybe_unused]] uint64_t size) {
#if defined(SYNC_FILE_RANGE_WRITE)
  ::sync_file_range(file, static_cast<off_t>(offset), static_cast<off_t>(size),
                    SYNC_FILE_RANGE_WRITE);
#endif
}

// Like pread, but into several buffers; where each would need a call, only the first is filled.
inline ssize_t read_buffers(int file, const iovec* buffers, size_t count, uint64_t offset) {
#if defined(__linux__)
  return ::preadv(file, buffers, static_cast<int>(count), static_cast<off_t>(offset));
#else
  (void)count;
  return ::pread(file, buffers[0].iov_base, buffers[0].iov_len, static_cast<off_t>(offset));
#endif
}

inline void announce_reading_in_order([[maybe_unused]] int file) {
#if defined(POSIX_FADV_SEQUENTIAL)
  ::posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
}

}  // namespace lowtide
