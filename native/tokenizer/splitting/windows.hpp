// Read a file in windows whose borders no piece and no special token crosses.
//
// In:      a file, or a part of one, given by offsets
// Out:     windows of about `window_bytes`, in order, for any number of threads
// Memory:  one window per thread. Windows are read, not mapped: resident memory is then exactly the
//          buffer, which stays in the cache, and nothing has to be unmapped again.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tokenizer/splitting/specials.hpp"

namespace lowtide {

class FileWindows {
 public:
  // Windows of the bytes from `begin` (a safe cut) to `end`; none begins at or after `stop`. If
  // there is no place to cut, a window grows; beyond `largest_window` that is an error. Throws
  // std::system_error with ESTALE if the file is or becomes shorter than `end`.
  FileWindows(std::string path, uint64_t begin, uint64_t stop, uint64_t end, size_t window_bytes,
              const SpecialFinder& specials, size_t largest_window = size_t{1} << 31);
  ~FileWindows();
  FileWindows(const FileWindows&) = delete;
  FileWindows& operator=(const FileWindows&) = delete;

  struct Window {
    uint64_t index, begin, end;
  };
  // Finds the next window and returns true, or false at the end. Thread-safe.
  bool next(Window& window);
  // Fills `buffer` with a window.
  void read(const Window& window, std::vector<uint8_t>& buffer) const;
  // True if no place to cut was near: only one such window may be held at a time.
  bool is_large(const Window& window) const {
    return window.end - window.begin > kLargeTimes * window_bytes_;
  }
  // The start of the next window.
  uint64_t position() const { return next_; }
  // The first position from `at` on where a window may begin or end.
  uint64_t cut_at_or_after(uint64_t at);

 private:
  static constexpr size_t kLargeTimes = 4;
  size_t read(uint64_t offset, uint8_t* data, size_t size) const;

  const std::string path_;
  const uint64_t stop_, end_;
  const size_t window_bytes_, largest_window_;
  const SpecialFinder& specials_;
  int file_ = -1;
  std::mutex mutex_;
  uint64_t next_ = 0, next_index_ = 0;
  std::vector<uint8_t> probe_;
};

// The position to cut in-memory text at or after `at`: a safe cut outside special tokens, or
// `length`.
size_t find_cut(const uint8_t* text, size_t length, size_t at, const SpecialFinder& specials);
// The last position where text can be cut, even if more text follows it; 0 if there is none.
size_t find_last_cut(const uint8_t* text, size_t length, const SpecialFinder& specials);

}  // namespace lowtide
