// A pool of waiting threads, for work of a fraction of a millisecond: starting threads would take as
// long as the work. One job at a time; a second caller does its job on its own thread.
#pragma once

#include <cstddef>
#include <functional>

namespace lowtide {

// Calls work(first, end) over [0, count) in blocks of `block`, on at most `num_threads` threads, the
// caller's among them. What a block computes must not depend on the others: any thread may take it.
// Threads look out for the next job for `patience` microseconds before they sleep: waking one takes
// some 50, which is long for jobs of 100 that follow each other.
void run_blocks(size_t count, size_t block, size_t num_threads,
                const std::function<void(size_t, size_t)>& work, size_t patience = 0);

}  // namespace lowtide
