// Checksums of the pages of a file: written with a task's result, verified when it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

// 64 bits for each page of `page_bytes`, which must not be 0; the last page may be shorter.
std::vector<uint64_t> sum_pages(std::string_view data, size_t page_bytes);

// The first of the pages [page, end) of an open file that does not match its checksum, or `end`.
// The file has `num_bytes` in pages, followed by their checksums; a truncated page does not match.
// Throws std::system_error if the file cannot be read.
uint64_t find_damaged_page(int file, uint64_t page, uint64_t end, uint64_t num_bytes,
                           size_t page_bytes);

// A page of a file does not match its checksum.
struct DamagedPage {
  uint64_t page;
};

// A file of pages followed by their checksums, opened to read ranges of it.
class PagedFile {
 public:
  // Throws std::system_error if the file cannot be opened or read, here and below.
  PagedFile(const std::string& path, uint64_t num_bytes, size_t page_bytes);
  ~PagedFile();
  PagedFile(const PagedFile&) = delete;
  PagedFile& operator=(const PagedFile&) = delete;

  // Verify the pages of bytes [begin, end); throws DamagedPage for the first that does not match.
  void check(uint64_t begin, uint64_t end) const;
  // The same, and read `count` rows from there.
  template <typename Row>
  std::vector<Row> read(uint64_t begin, uint64_t count) const {
    check(begin, begin + count * sizeof(Row));
    std::vector<Row> rows(count);
    read_into(reinterpret_cast<char*>(rows.data()), count * sizeof(Row), begin);
    return rows;
  }

 private:
  void read_into(char* into, size_t size, uint64_t offset) const;

  int descriptor_;
  uint64_t num_bytes_;
  size_t page_bytes_;
};

}  // namespace lowtide
