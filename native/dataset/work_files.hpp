// Write a work file in one native call: from Python, each of a dozen system calls would release the
// interpreter lock and wait for it again, which is slow with sixteen workers.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lowtide {

// Writes a head and sections, each padded with zeros to a multiple of `alignment`, into a new file
// `partial`, and renames it to `path`. A leftover `partial` of a killed command is removed.
// Failures are std::system_error.
void write_work_file(const std::string& partial, const std::string& path, std::string_view head,
                     std::span<const std::string_view> sections, size_t alignment);

}  // namespace lowtide
