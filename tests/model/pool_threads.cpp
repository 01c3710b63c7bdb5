// Several callers use the pool of the row kernels at once; built with the thread sanitizer, which
// ends the program at the first unguarded access. Says "ok" when every row was computed once, and
// every exception of a block came to its caller.
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

#include "model/row_kernels.hpp"
#include "model/thread_pool.hpp"

namespace {

constexpr size_t kCallers = 3, kJobs = 400, kWidth = 8;

// True if the exception of a block, on whichever thread, is the caller's.
bool fail(size_t job) {
  try {
    lowtide::run_blocks(20, 1, 1 + job % 6, [&](size_t first, size_t) {
      if (first == job % 20) throw std::length_error("as without memory");
    });
  } catch (const std::length_error&) {
    return true;
  }
  return false;
}

bool call(size_t seed) {
  for (size_t job = 0; job < kJobs; ++job) {
    const size_t count = (seed * 131 + job * 17) % 97, block = 1 + job % 5;
    std::vector<float> x(count * kWidth, 1.0F), y(x.size()), scales(count);
    const std::vector<float> weight(kWidth, 2.0F);
    std::vector<int> times(count);
    const auto work = [&](size_t first, size_t end) {
      lowtide::rms_norm(x.data() + first * kWidth, weight.data(), 0.0F, y.data() + first * kWidth,
                        scales.data() + first, end - first, kWidth);
      for (size_t row = first; row < end; ++row) ++times[row];
    };
    // Some threads sleep between jobs, and some look out for the next.
    lowtide::run_blocks(count, block, 1 + job % 6, work, job % 40 < 20 ? 0 : 100);
    for (const int time : times) {
      if (time != 1) return false;
    }
    for (const float value : y) {
      if (value < 1.999F || value > 2.001F) return false;
    }
    if (!fail(job)) return false;
  }
  return true;
}

}  // namespace

int main() {
  std::vector<int> good(kCallers);
  std::vector<std::thread> callers;
  for (size_t i = 0; i < kCallers; ++i) callers.emplace_back([&, i] { good[i] = call(i); });
  for (std::thread& caller : callers) caller.join();
  for (const int one : good) {
    if (!one) return 1;
  }
  std::puts("ok");
  return 0;
}
