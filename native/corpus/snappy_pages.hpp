// Unpacking one compressed page of a file into another file.
#pragma once

#include <cstdint>

namespace lowtide {

// Decompress `size` bytes of raw snappy at `offset` of a file into another, from its beginning.
// Returns the bytes written, or -1 if the input is damaged. A reference may be to text before the
// held part; it is then read from the output file.
// Memory:  about 1.5 MiB, whatever the size of the page
int64_t unpack_snappy(int packed_file, int64_t offset, int64_t size, int text_file);

}  // namespace lowtide
