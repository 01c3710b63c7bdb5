#include "tokenizer/splitting/windows.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "system/memory.hpp"
#include "tokenizer/splitting/splitter.hpp"

namespace lowtide {

namespace {
constexpr size_t kProbeBytes = 1 << 14;
}  // namespace

size_t find_cut(const uint8_t* text, size_t length, size_t at, const SpecialFinder& specials) {
  for (; at < length; ++at) {
    if (is_safe_cut(text, length, at) && specials.allows_cut(text, length, at)) return at;
  }
  return length;
}

FileWindows::FileWindows(std::string path, uint64_t begin, uint64_t stop, uint64_t end,
                         size_t window_bytes, const SpecialFinder& specials, size_t largest_window)
    : path_(std::move(path)),
      stop_(stop),
      end_(end),
      window_bytes_(window_bytes),
      largest_window_(std::max(largest_window, window_bytes)),
      specials_(specials),
      next_(begin) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), path_);
  struct stat status{};
  if (::fstat(file_, &status) != 0 || static_cast<uint64_t>(status.st_size) < end_) {
    ::close(file_);  // if a constructor throws, the destructor does not run
    throw std::system_error(ESTALE, std::generic_category(), path_);
  }
  announce_reading_in_order(file_);
}

FileWindows::~FileWindows() {
  if (file_ >= 0) ::close(file_);
}

size_t FileWindows::read(uint64_t offset, uint8_t* data, size_t size) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(file_, data + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw std::system_error(errno, std::generic_category(), path_);
    }
    // The file became shorter while it was read; ESTALE, as on network disks.
    if (got == 0) throw std::system_error(ESTALE, std::generic_category(), path_);
    done += static_cast<size_t>(got);
  }
  return done;
}

uint64_t FileWindows::cut_at_or_after(uint64_t at) {
  // After a candidate, a character and the rest of a special token must be in memory; before it, a
  // newline with the character before it and the start of a special token.
  const size_t margin = 16 + specials_.longest();
  uint64_t from = at;
  while (from < end_) {
    const uint64_t first = from > margin ? from - margin : 0;
    const uint64_t last = std::min<uint64_t>(end_, from + kProbeBytes + margin);
    probe_.resize(static_cast<size_t>(last - first));
    read(first, probe_.data(), probe_.size());
    const size_t stop = last == end_ ? probe_.size() : probe_.size() - margin;
    for (size_t i = static_cast<size_t>(from - first); i < stop; ++i) {
      if (is_safe_cut(probe_.data(), probe_.size(), i) &&
          specials_.allows_cut(probe_.data(), probe_.size(), i)) {
        return first + i;
      }
    }
    from = first + stop;
  }
  return end_;
}

bool FileWindows::next(Window& window) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t begin = next_;
    if (begin >= end_ || begin >= stop_) return false;
    const uint64_t end =
        end_ - begin <= window_bytes_ ? end_ : cut_at_or_after(begin + window_bytes_);
    next_ = end;
    window = {next_index_++, begin, end};
  }
  if (window.end - window.begin > largest_window_) {
    throw std::length_error(std::to_string(window.end - window.begin) +
                            " bytes without a place to cut from byte " +
                            std::to_string(window.begin) + " on");
  }
  return true;
}

void FileWindows::read(const Window& window, std::vector<uint8_t>& buffer) const {
  const size_t size = static_cast<size_t>(window.end - window.begin);
  if (buffer.capacity() < size) buffer = {};  // freed first: both would need twice the memory
  buffer.resize(size);
  read(window.begin, buffer.data(), size);
}

size_t find_last_cut(const uint8_t* text, size_t length, const SpecialFinder& specials) {
  // Following text could complete a special token that begins in the last bytes.
  const size_t margin = std::max<size_t>(4, specials.longest());
  for (size_t at = length > margin ? length - margin : 0; at > 0; --at) {
    if (is_safe_cut(text, length, at) && specials.allows_cut(text, length, at)) return at;
  }
  return 0;
}

}  // namespace lowtide
