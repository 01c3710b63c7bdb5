#include "model/thread_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace lowtide {
namespace {

using Work = std::function<void(size_t, size_t)>;

class Pool {
 public:
  bool try_run(size_t count, size_t block, size_t num_threads, const Work& work) {
    const std::unique_lock<std::mutex> job(job_mutex_, std::try_to_lock);
    if (!job.owns_lock()) return false;
    const size_t helpers = num_threads - 1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (; num_workers_ < helpers; ++num_workers_) {
        std::thread([this, index = num_workers_] { serve(index); }).detach();
      }
      count_ = count;
      block_ = block;
      work_ = &work;
      next_.store(0, std::memory_order_relaxed);
      wanted_ = helpers;
      is_open_ = true;
      ++turn_;
    }
    wake_.notify_all();
    take_blocks();
    // Helpers that have not woken up by now are not waited for.
    std::unique_lock<std::mutex> lock(mutex_);
    is_open_ = false;
    done_.wait(lock, [this] { return active_ == 0; });
    return true;
  }

 private:
  void serve(size_t index) {
    size_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return turn_ != seen; });
      seen = turn_;
      if (index >= wanted_ || !is_open_) continue;
      ++active_;
      lock.unlock();
      take_blocks();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  void take_blocks() {
    for (;;) {
      const size_t first = next_.fetch_add(block_, std::memory_order_relaxed);
      if (first >= count_) return;
      (*work_)(first, std::min(first + block_, count_));
    }
  }

  std::mutex job_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<size_t> next_{0};
  size_t count_ = 0, block_ = 1, wanted_ = 0, active_ = 0, turn_ = 0, num_workers_ = 0;
  bool is_open_ = false;
  const Work* work_ = nullptr;
};

// Never destroyed: its threads wait in it until the process ends. A child made by fork has none of
// them, so it gets a pool of its own.
Pool& pool() {
  static std::mutex mutex;
  static Pool* instance = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (instance == nullptr || owner != getpid()) {
    instance = new Pool;
    owner = getpid();
  }
  return *instance;
}

}  // namespace

void run_blocks(size_t count, size_t block, size_t num_threads, const Work& work) {
  num_threads = std::min(num_threads, (count + block - 1) / block);
  if (num_threads > 1 && pool().try_run(count, block, num_threads, work)) return;
  for (size_t first = 0; first < count; first += block) {
    work(first, std::min(first + block, count));
  }
}

}  // namespace lowtide
