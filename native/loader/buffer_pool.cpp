#include "loader/buffer_pool.hpp"

#include <cstdlib>
#include <new>

namespace lowtide {
namespace {

constexpr size_t kAlignment = 64;

size_t rounded(size_t bytes) {
  return bytes == 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

BufferPool& BufferPool::instance() {
  static BufferPool* const pool = new BufferPool;
  return *pool;
}

// Does not wait for a taken lock, because its owner may be a thread that was lost in a fork.
void* BufferPool::acquire(size_t bytes) {
  bytes = rounded(bytes);
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
    for (size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].bytes != bytes) continue;
      void* const data = kept_[i].data;
      kept_[i] = kept_.back();
      kept_.pop_back();
      kept_bytes_ -= bytes;
      return data;
    }
  }
  void* const data = std::aligned_alloc(kAlignment, bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void BufferPool::release(void* data, size_t bytes) noexcept {
  bytes = rounded(bytes);
  if (bytes <= kKeptBytes) {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      while (!kept_.empty() && kept_bytes_ + bytes > kKeptBytes) {  // oldest first: sizes change
        std::free(kept_.front().data);
        kept_bytes_ -= kept_.front().bytes;
        kept_.erase(kept_.begin());
      }
      try {
        kept_.push_back({data, bytes});
        kept_bytes_ += bytes;
        return;
      } catch (const std::bad_alloc&) {
      }
    }
  }
  std::free(data);
}

}  // namespace lowtide
