#include "dataset_gather.hpp"

#include <unistd.h>

#include <cerrno>

namespace lowtide {

int gather_bytes(std::span<const int32_t> descriptors, std::span<const uint64_t> offsets,
                 std::span<const uint64_t> sizes, std::span<char> out) {
  size_t filled = 0;
  for (size_t row = 0; row < sizes.size(); ++row) {
    uint64_t left = sizes[row], offset = offsets[row];
    if (left > out.size() - filled) return EINVAL;
    while (left > 0) {
      const ssize_t got =
          pread(descriptors[row], out.data() + filled, left, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno;
      if (got == 0) return EIO;
      filled += static_cast<size_t>(got);
      offset += static_cast<uint64_t>(got);
      left -= static_cast<uint64_t>(got);
    }
  }
  return filled == out.size() ? 0 : EINVAL;
}

}  // namespace lowtide
