// Scan the bytes of lines, many at a time with vector instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lowtide {

struct LineScan {
  const char* end;  // the newline, or the end of the text
  bool has_newline;
  bool plain;  // printable ASCII, single blanks except in indentation: cleaning would not change it
  size_t repeated;  // bytes that are the same as the one before
};

// Scan the line that begins at `at`. `vectors` false: as on a processor without wide vectors.
LineScan scan_line(const char* at, const char* end, bool vectors = true);

// Copy plain bytes from `begin` to `out` up to the first other one, at most 64 at a time, and
// return their number; out[-1] is the byte before them. There must be room for `end - begin` bytes.
size_t copy_plain(const unsigned char* begin, const unsigned char* end, char* out,
                  bool vectors = true);

size_t count_repeated_bytes(const char* bytes, size_t size);

// The first occurrence of `wanted`; nullptr if there is none, or it is empty.
const char* find_bytes(const char* at, const char* end, std::string_view wanted,
                       bool vectors = true);

// True if the processor has vectors of 64 bytes.
bool has_byte_vectors();

}  // namespace lowtide
