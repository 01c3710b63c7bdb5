#include "quality/place_rows.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace lowtide {

void OpenFiles::close_all() {
  for (const auto& [path, descriptor] : open_) ::close(descriptor);
  open_.clear();
}

void OpenFiles::read(const std::string& path, uint64_t offset, void* out, size_t size) {
  auto found = open_.find(path);
  if (found == open_.end()) {
    if (open_.size() >= most_) close_all();
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) throw std::system_error(errno, std::generic_category(), path);
    found = open_.emplace(path, descriptor).first;
  }
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t count = ::pread(found->second, bytes, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), path);
    if (count == 0) throw std::runtime_error(path + " ends before it should");
    bytes += count;
    offset += static_cast<uint64_t>(count);
    size -= static_cast<size_t>(count);
  }
}

}  // namespace lowtide
