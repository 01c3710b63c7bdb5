#include "dataset/work_index.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace lowtide {
namespace {

constexpr char kMagic[] = "LTWORK01";
constexpr uint64_t kPrefixBytes = 32;  // magic, bytes of the header, checksum
constexpr uint64_t kMostHeaderBytes = uint64_t{1} << 30;

[[noreturn]] void refuse(const std::string& path) {
  throw std::invalid_argument("no work file of ids: " + path);
}

}  // namespace

WorkIndex::WorkIndex(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), path);
  try {
    char prefix[kPrefixBytes];
    read_at(prefix, sizeof prefix, 0);
    uint64_t header_bytes;
    std::memcpy(&header_bytes, prefix + 8, sizeof header_bytes);
    struct stat status;
    if (::fstat(descriptor_, &status) != 0) {
      throw std::system_error(errno, std::generic_category(), path);
    }
    const auto file_bytes = static_cast<uint64_t>(status.st_size);
    if (std::memcmp(prefix, kMagic, 8) != 0 || header_bytes > kMostHeaderBytes ||
        kPrefixBytes + header_bytes > file_bytes) {
      refuse(path);
    }
    std::string header(header_bytes, '\0');
    read_at(header.data(), header.size(), kPrefixBytes);
    base_ = kPrefixBytes + header_bytes;
    index_ = find(header, "index");
    ids_ = find(header, "ids");
    if (index_.size % sizeof(EncodedRow) != 0 || index_.at + index_.size > file_bytes) {
      refuse(path);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

WorkIndex::~WorkIndex() { ::close(descriptor_); }

std::vector<EncodedRow> WorkIndex::read() const {
  std::vector<EncodedRow> rows(num_documents());
  read_at(rows.data(), index_.size, index_.at);
  return rows;
}

// The header is JSON, and ends with the offsets of sections: {"sections": {"index": [0, 320]}}. A
// quotation mark within a string is escaped as \", so the key cannot occur elsewhere.
WorkIndex::Section WorkIndex::find(const std::string& header, const std::string& name) const {
  const size_t sections = header.rfind("\"sections\": {");
  const std::string key = '"' + name + "\": [";
  const size_t found = sections == std::string::npos ? sections : header.find(key, sections);
  if (found == std::string::npos) refuse(path_);
  Section section{};
  const char* const end = header.data() + header.size();
  const auto at = std::from_chars(header.data() + found + key.size(), end, section.at);
  if (at.ec != std::errc() || end - at.ptr < 3 || std::memcmp(at.ptr, ", ", 2) != 0) refuse(path_);
  const auto size = std::from_chars(at.ptr + 2, end, section.size);
  if (size.ec != std::errc() || size.ptr == end || *size.ptr != ']' ||
      section.at > uint64_t{1} << 60 || section.size > uint64_t{1} << 60) {
    refuse(path_);
  }
  section.at += base_;
  return section;
}

void WorkIndex::read_at(void* into, uint64_t size, uint64_t at) const {
  auto* to = static_cast<char*>(into);
  while (size > 0) {
    const ssize_t got = ::pread(descriptor_, to, size, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), path_);
    if (got == 0) refuse(path_);
    to += got;
    at += static_cast<uint64_t>(got);
    size -= static_cast<uint64_t>(got);
  }
}

}  // namespace lowtide
