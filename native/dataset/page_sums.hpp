// Checksums of the pages of a file: what a task wrote is compared with them when it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lowtide {

// 64 bits for each page of `page_bytes`, which must not be 0; the last page may be shorter.
std::vector<uint64_t> sum_pages(std::string_view data, size_t page_bytes);

}  // namespace lowtide
