#include "dataset/shared_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "system/memory.hpp"

namespace lowtide {
namespace {

std::atomic<size_t> num_kept{0};  // by all of them

[[noreturn]] void fail(int error, const std::string& path) {
  throw std::system_error(error, std::generic_category(), path);
}

int open_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(errno, path);
  return descriptor;
}

}  // namespace

SharedFiles::SharedFiles(const std::vector<std::string>& paths)
    : paths_(paths), descriptors_(paths.size()) {
  for (std::atomic<int>& descriptor : descriptors_) descriptor = -1;
}

SharedFiles::~SharedFiles() {
  for (const std::atomic<int>& descriptor : descriptors_) {
    if (descriptor < 0) continue;
    ::close(descriptor);
    --num_kept;
  }
}

int SharedFiles::find(size_t file) const {
  return file < descriptors_.size() ? descriptors_[file].load() : -1;
}

// The descriptor to keep open, maybe another thread's; -1 to keep none.
int SharedFiles::keep(size_t file, int descriptor, size_t max_open_files) {
  if (file >= descriptors_.size()) return -1;  // added since
  if (num_kept++ >= max_open_files) {
    --num_kept;
    return -1;
  }
  int before = -1;
  if (descriptors_[file].compare_exchange_strong(before, descriptor)) return descriptor;
  --num_kept;
  return before;
}

SharedFiles::Use::Use(SharedFiles& files, size_t file, size_t max_open_files)
    : path_(files.paths_[file]), descriptor_(files.find(file)), is_kept_(true) {
  if (descriptor_ >= 0) return;
  descriptor_ = open_file(path_);
  const int kept = files.keep(file, descriptor_, max_open_files);
  is_kept_ = kept >= 0;
  if (is_kept_ && kept != descriptor_) {
    ::close(descriptor_);
    descriptor_ = kept;
  }
}

SharedFiles::Use::~Use() {
  if (!is_kept_) ::close(descriptor_);
}

void SharedFiles::Use::read(uint64_t offset, std::vector<iovec>& buffers) const {
  size_t first = 0;
  while (first < buffers.size()) {
    const ssize_t got = read_buffers(descriptor_, &buffers[first], buffers.size() - first, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(got < 0 ? errno : EIO, path_);
    offset += static_cast<uint64_t>(got);
    size_t left = static_cast<size_t>(got);
    while (first < buffers.size() && left >= buffers[first].iov_len) {
      left -= buffers[first++].iov_len;
    }
    if (left > 0) {
      buffers[first].iov_base = static_cast<char*>(buffers[first].iov_base) + left;
      buffers[first].iov_len -= left;
    }
  }
}

}  // namespace lowtide
