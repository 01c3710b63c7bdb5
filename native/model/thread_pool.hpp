// A pool of waiting threads, for work of a fraction of a millisecond: starting threads would take as
// long as the work. One job at a time; a second caller does its job on its own thread.
#pragma once

#include <cstddef>
#include <functional>

namespace lowtide {

// Calls work(first, end) over [0, count) in blocks of `block`, on at most `num_threads` threads,
// including the caller's. A block must not depend on the others: any thread may run it. What one of
// them throws is thrown to the caller, and blocks not yet begun are left out. If the system allows
// no more threads, there are fewer. Threads busy-wait for the next job for `patience` microseconds
// before they sleep: waking one takes some 50, which is long for consecutive jobs of 100. Without
// patience steps of training took 6 to 29 % longer on two threads, a token of 30 million weights 22
// % (docs/decisions/0066-products-on-a-cpu.md).
void run_blocks(size_t count, size_t block, size_t num_threads,
                const std::function<void(size_t, size_t)>& work, size_t patience = 100);

}  // namespace lowtide
