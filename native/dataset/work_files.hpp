// Work files are written in one call: each of a dozen system calls from Python gives up the lock of
// the interpreter and waits for it again, which sixteen workers notice.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lowtide {

// Writes a head and sections, each filled up with zeros to a multiple of `alignment`, into a new
// file `partial`, and gives it the name `path`. What was left under the first name by a killed
// command is removed. Failures are std::system_error.
void write_work_file(const std::string& partial, const std::string& path, std::string_view head,
                     std::span<const std::string_view> sections, size_t alignment);

}  // namespace lowtide
