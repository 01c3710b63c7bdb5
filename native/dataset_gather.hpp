// Copying many stretches of many files into one buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lowtide {

// Fill `out` with `sizes[i]` bytes from file `descriptors[i]` at `offsets[i]`, one after the other.
// Returns 0, or errno; a file that ends too early is EIO.
int gather_bytes(std::span<const int32_t> descriptors, std::span<const uint64_t> offsets,
                 std::span<const uint64_t> sizes, std::span<char> out);

}  // namespace lowtide
