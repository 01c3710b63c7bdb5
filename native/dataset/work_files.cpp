#include "dataset/work_files.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <vector>

#include "system/threads.hpp"

namespace lowtide {
namespace {

constexpr size_t kMostBuffers = 64;  // of one call; systems allow 1,024, POSIX guarantees 16

[[noreturn]] void fail(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path);
}

class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), descriptor_(create(path)) {
    if (descriptor_ < 0 && errno == EEXIST) {
      if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail(path);
      descriptor_ = create(path);
    }
    if (descriptor_ < 0) fail(path);
  }
  ~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::vector<iovec>& buffers) {
    size_t first = 0;
    while (first < buffers.size()) {
      const size_t count = std::min(buffers.size() - first, kMostBuffers);
      const ssize_t written = ::writev(descriptor_, &buffers[first], static_cast<int>(count));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(path_);
      size_t left = static_cast<size_t>(written);  // a partial write, as on a full disk
      while (first < buffers.size() && left >= buffers[first].iov_len) {
        left -= buffers[first++].iov_len;
      }
      if (left > 0) {
        buffers[first].iov_base = static_cast<char*>(buffers[first].iov_base) + left;
        buffers[first].iov_len -= left;
      }
    }
  }
  void close() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0 && errno != EINTR) fail(path_);
  }

 private:
  static int create(const std::string& path) {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  }
  const std::string& path_;
  int descriptor_;
};

// Zero, or the errno of what failed.
int flush_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno;
  int result = ::fsync(file);
  while (result != 0 && errno == EINTR) result = ::fsync(file);
  const int number = result == 0 ? 0 : errno;
  ::close(file);
  return number;
}

iovec buffer(std::string_view data) { return {const_cast<char*>(data.data()), data.size()}; }

}  // namespace

void write_work_file(const std::string& partial, const std::string& path, std::string_view head,
                     std::span<const std::string_view> sections, size_t alignment) {
  const std::string zeros(alignment, '\0');
  std::vector<iovec> buffers{buffer(head)};
  for (const std::string_view section : sections) {
    const size_t pad = (alignment - section.size() % alignment) % alignment;
    if (!section.empty()) buffers.push_back(buffer(section));
    if (pad > 0) buffers.push_back(buffer(std::string_view(zeros).substr(0, pad)));
  }
  NewFile file(partial);
  file.write(buffers);
  file.close();
  if (std::rename(partial.c_str(), path.c_str()) != 0) fail(path);
}

std::optional<std::pair<size_t, int>> flush_files(std::span<const std::string> paths,
                                                  size_t num_threads) {
  std::vector<int> failed(paths.size(), 0);
  std::atomic<size_t> next{0};
  std::atomic<bool> has_failed{false};
  run_threads(std::clamp<size_t>(paths.size(), 1, num_threads), [&](size_t) {
    for (size_t i = next++; i < paths.size() && !has_failed; i = next++) {
      failed[i] = flush_file(paths[i]);
      if (failed[i] != 0) has_failed = true;
    }
  });
  for (size_t i = 0; i < failed.size(); ++i) {
    if (failed[i] != 0) return std::pair{i, failed[i]};
  }
  return std::nullopt;
}

}  // namespace lowtide
