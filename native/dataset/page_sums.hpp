// Checksums of the pages of a file: what a task wrote is compared with them when it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lowtide {

// 64 bits for each page of `page_bytes`, which must not be 0; the last page may be shorter.
std::vector<uint64_t> sum_pages(std::string_view data, size_t page_bytes);

// The first of the pages [page, end) of an open file that does not fit its checksum, or `end`. The
// file has `num_bytes` in pages, and their checksums behind them; what is cut off does not fit. One
// that cannot be read is a std::system_error.
uint64_t find_damaged_page(int file, uint64_t page, uint64_t end, uint64_t num_bytes,
                           size_t page_bytes);

}  // namespace lowtide
