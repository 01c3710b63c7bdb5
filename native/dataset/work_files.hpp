// Write a work file in one native call: from Python, each of a dozen system calls would release the
// interpreter lock and wait for it again, which is slow with sixteen workers.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace lowtide {

// Writes a head and sections, each padded with zeros to a multiple of `alignment`, into a new file
// `partial`, and renames it to `path`. A leftover `partial` of a killed command is removed.
// Failures are std::system_error.
void write_work_file(const std::string& partial, const std::string& path, std::string_view head,
                     std::span<const std::string_view> sections, size_t alignment);

// Flushes closed files to the disk, `num_threads` at a time: a flush is waiting, mostly, and those
// that wait together share a commit of the disk's journal. Returns the first file that failed and
// its errno; then some files are not flushed.
std::optional<std::pair<size_t, int>> flush_files(std::span<const std::string> paths,
                                                  size_t num_threads);

}  // namespace lowtide
