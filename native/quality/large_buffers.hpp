// Buffers that are reused from one document to the next, unless a document made them large.
#pragma once

#include <cstddef>

namespace lowtide {

constexpr size_t kKeptBytes = 1 << 20;

// Free a buffer of more than a mebibyte, so that memory of a long document is not held in addition
// to what is needed next.
template <typename Buffer>
void give_back_large(Buffer& buffer) {
  if (buffer.capacity() * sizeof(typename Buffer::value_type) > kKeptBytes) Buffer().swap(buffer);
}

}  // namespace lowtide
