#include "dataset/page_sums.hpp"

#include <algorithm>
#include <array>

#include "corpus/text_hash.hpp"

namespace lowtide {
namespace {

constexpr size_t kAtOnce = 4;  // a page alone waits for its own multiplications

// Pages of equal size, side by side.
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
  const size_t whole = data.size() / page_bytes;  // products and sums of page_bytes may not fit
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

}  // namespace lowtide
