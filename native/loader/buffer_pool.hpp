// A pool of buffers for batches: when Python releases a batch, its memory is reused for the next one.
//
// A fresh array of half a megabyte costs more in page faults than filling it (measured: 64 x 1024
// int64 twice, 53 us into old memory, 309 us into new), because malloc gives such blocks back to
// the system at once.
//
// Memory: at most `kKeptBytes` are kept; the rest is returned to the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace lowtide {

class BufferPool {
 public:
  static constexpr size_t kKeptBytes = size_t{32} << 20;

  // The one pool of the process. It is never destroyed: arrays may outlive everything else.
  static BufferPool& instance();

  // Returns at least `bytes`; throws std::bad_alloc. Return it with the same size.
  void* acquire(size_t bytes);
  void release(void* data, size_t bytes) noexcept;

 private:
  struct Block {
    void* data;
    size_t bytes;
  };

  std::mutex mutex_;
  std::vector<Block> kept_;
  size_t kept_bytes_ = 0;
};

}  // namespace lowtide
