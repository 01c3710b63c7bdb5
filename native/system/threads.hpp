// Run the same work on several threads; the first error is thrown when all are done.
#pragma once

#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace lowtide {

template <typename Work>
void run_threads(size_t num_threads, const Work& work) {
  std::vector<std::exception_ptr> errors(num_threads);
  const auto guarded = [&](size_t i) {
    try {
      work(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(guarded, i);
  } catch (const std::system_error&) {
    // The system allows no more threads: the existing ones do all the work.
  }
  guarded(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lowtide
