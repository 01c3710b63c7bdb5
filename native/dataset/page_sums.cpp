#include "dataset/page_sums.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>

#include "corpus/text_hash.hpp"

namespace lowtide {
namespace {

constexpr size_t kAtOnce = 4;  // a single page waits for its own multiplications

// Pages of equal size, in parallel.
void sum_some(const char* data, size_t page_bytes, uint64_t* sums) {
  std::array<HashState, kAtOnce> states{HashState(0), HashState(0), HashState(0), HashState(0)};
  const size_t whole = page_bytes / 16 * 16;
  for (size_t at = 0; at < whole; at += 16) {
    for (size_t page = 0; page < kAtOnce; ++page) states[page].add(data + page * page_bytes + at);
  }
  for (size_t page = 0; page < kAtOnce; ++page) {
    const char* rest = data + page * page_bytes + whole;
    sums[page] = states[page].finish(rest, page_bytes - whole, page_bytes).high;
  }
}

}  // namespace

std::vector<uint64_t> sum_pages(std::string_view data, size_t page_bytes) {
  const size_t whole = data.size() / page_bytes;  // products and sums of page_bytes may overflow
  std::vector<uint64_t> sums(whole + (data.size() % page_bytes != 0));
  size_t page = 0;
  for (; page + kAtOnce <= whole; page += kAtOnce) {
    sum_some(data.data() + page * page_bytes, page_bytes, sums.data() + page);
  }
  for (; page < sums.size(); ++page) {
    const size_t begin = page * page_bytes;
    const size_t size = std::min(page_bytes, data.size() - begin);
    sums[page] = hash128(data.data() + begin, size, 0).high;
  }
  return sums;
}

namespace {

// Reads up to the end of the file.
size_t read_at(int file, char* into, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(file, into + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category());
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

}  // namespace

uint64_t find_damaged_page(int file, uint64_t page, uint64_t end, uint64_t num_bytes,
                           size_t page_bytes) {
  if (page >= end) return end;
  const size_t most = std::max<size_t>((size_t{1} << 18) / page_bytes, 1);  // they stay in cache
  const size_t at_once = static_cast<size_t>(std::min<uint64_t>(most, end - page));
  const std::unique_ptr<char[]> data(new char[at_once * page_bytes]);  // not cleared
  std::vector<uint64_t> expected(at_once);
  while (page < end) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(at_once, end - page));
    const uint64_t begin = page * page_bytes;
    const size_t size =
        begin < num_bytes ? std::min<uint64_t>(count * page_bytes, num_bytes - begin) : 0;
    const size_t got = read_at(file, data.get(), size, begin);
    const std::vector<uint64_t> sums = sum_pages({data.get(), got}, page_bytes);
    std::fill(expected.begin(), expected.end(), 0);
    const size_t sums_got = read_at(file, reinterpret_cast<char*>(expected.data()), 8 * count,
                                    num_bytes + page * sizeof(uint64_t));
    const size_t known = std::min(sums.size(), sums_got / sizeof(uint64_t));
    for (size_t i = 0; i < count; ++i) {
      if (i >= known || sums[i] != expected[i]) return page + i;
    }
    page += count;
  }
  return end;
}

PagedFile::PagedFile(const std::string& path, uint64_t num_bytes, size_t page_bytes)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)),
      num_bytes_(num_bytes),
      page_bytes_(page_bytes) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), path);
}

PagedFile::~PagedFile() { ::close(descriptor_); }

void PagedFile::check(uint64_t begin, uint64_t end) const {
  if (begin >= end) return;
  const uint64_t first = begin / page_bytes_, last = (end - 1) / page_bytes_ + 1;
  const uint64_t wrong = find_damaged_page(descriptor_, first, last, num_bytes_, page_bytes_);
  if (wrong < last) throw DamagedPage{wrong};
}

void PagedFile::read_into(char* into, size_t size, uint64_t offset) const {
  if (read_at(descriptor_, into, size, offset) != size) throw DamagedPage{offset / page_bytes_};
}

}  // namespace lowtide
