#include "model/thread_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace lowtide {
namespace {

using Work = std::function<void(size_t, size_t)>;

using Clock = std::chrono::steady_clock;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Busy-waits until `is_there()`, for at most so many microseconds.
template <typename Found>
bool look_out(size_t microseconds, const Found& is_there) {
  if (is_there()) return true;
  if (microseconds == 0) return false;
  const auto until = Clock::now() + std::chrono::microseconds(microseconds);
  do {
    for (int i = 0; i < 32; ++i) {
      if (is_there()) return true;
      pause();
    }
  } while (Clock::now() < until);
  return is_there();
}

// A thread joins a job by incrementing a count before it checks whether the job is still open, and
// the caller closes the job before it checks the count, so one of the two sees the other. Sleeping
// threads, and a sleeping caller, are known by counts that are changed before a last check.
class Pool {
 public:
  const pid_t owner = getpid();

  bool try_run(size_t count, size_t block, size_t num_threads, const Work& work, size_t patience) {
    const std::unique_lock<std::mutex> job(job_mutex_, std::try_to_lock);
    if (!job.owns_lock()) return false;
    const size_t helpers = hire(num_threads - 1);
    count_ = count;
    block_ = block;
    work_ = &work;
    next_.store(0, std::memory_order_relaxed);
    wanted_ = helpers;
    patience_ = patience;
    is_open_ = true;
    ++turn_;
    if (num_sleeping_ > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = 0; i < helpers; ++i) wakes_[i].notify_one();
    }
    take_blocks();
    // Do not wait for helpers that have not woken up by now.
    is_open_ = false;
    const auto all_left = [this] { return active_ == 0; };
    if (!look_out(patience, all_left)) {
      std::unique_lock<std::mutex> lock(mutex_);
      is_waiting_ = true;
      done_.wait(lock, all_left);
      is_waiting_ = false;
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return true;
  }

 private:
  // How many of so many helpers there are; if the system allows no more threads, fewer.
  size_t hire(size_t wanted) {
    while (wakes_.size() < std::min(wanted, most_)) {
      const size_t index = wakes_.size();
      std::condition_variable& wake = wakes_.emplace_back();
      try {
        std::thread([this, index, &wake] { serve(index, wake); }).detach();
      } catch (const std::exception&) {
        wakes_.pop_back();
        most_ = index;
      }
    }
    return std::min(wanted, most_);
  }

  // Helpers that a job does not want sleep on: there may be many more than it has blocks.
  void serve(size_t index, std::condition_variable& wake) {
    size_t seen = 0;
    for (;;) {
      const auto has_come = [&] { return turn_ != seen && index < wanted_; };
      if (!look_out(patience_, has_come)) {
        std::unique_lock<std::mutex> lock(mutex_);
        ++num_sleeping_;
        wake.wait(lock, has_come);
        --num_sleeping_;
      }
      seen = turn_;
      ++active_;
      if (is_open_ && index < wanted_) take_blocks();
      if (--active_ == 0 && is_waiting_) {
        const std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
    }
  }

  // The first exception is kept for the caller, and no more blocks are begun.
  void take_blocks() {
    try {
      for (;;) {
        const size_t first = next_.fetch_add(block_, std::memory_order_relaxed);
        if (first >= count_) return;
        (*work_)(first, std::min(first + block_, count_));
      }
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  std::mutex job_mutex_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<std::condition_variable> wakes_;  // of each helper
  std::atomic<size_t> next_{0}, turn_{0}, active_{0}, num_sleeping_{0}, wanted_{0}, patience_{0};
  std::atomic<bool> is_open_{false}, is_waiting_{false};
  size_t count_ = 0, block_ = 1, most_ = SIZE_MAX;
  const Work* work_ = nullptr;
  std::exception_ptr failure_;
};

// Never destroyed: its threads wait in it until the process ends. A child made by fork has none of
// them, so it gets a pool of its own. Without a lock: another thread could hold it during a fork, and
// the child would wait for it forever.
Pool& pool() {
  static std::atomic<Pool*> instance{nullptr};
  Pool* found = instance;
  if (found != nullptr && found->owner == getpid()) return *found;
  auto made = std::make_unique<Pool>();
  if (instance.compare_exchange_strong(found, made.get())) found = made.release();
  return *found;  // or what another thread made meanwhile
}

}  // namespace

void run_blocks(size_t count, size_t block, size_t num_threads, const Work& work, size_t patience) {
  num_threads = std::min(num_threads, (count + block - 1) / block);
  if (num_threads > 1 && pool().try_run(count, block, num_threads, work, patience)) {
    return;
  }
  for (size_t first = 0; first < count; first += block) {
    work(first, std::min(first + block, count));
  }
}

}  // namespace lowtide
