#include "corpus/snappy_pages.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

namespace lowtide {
namespace {

[[noreturn]] void fail() { throw std::system_error(errno, std::generic_category()); }

// The compressed bytes, a buffer at a time.
class Input {
 public:
  Input(int file, int64_t offset, int64_t size)
      : file_(file), offset_(offset), left_(size), buffer_(kBytes) {}

  // The next contiguous bytes, at least one and at most `wanted`; none at the end.
  size_t take(size_t wanted, const uint8_t** bytes) {
    if (at_ == end_ && !refill()) return 0;
    const size_t count = std::min(wanted, end_ - at_);
    *bytes = buffer_.data() + at_;
    at_ += count;
    return count;
  }
  // A little-endian number of `count` bytes; false at the end.
  bool number(size_t count, uint64_t* value) {
    *value = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* byte = nullptr;
      if (take(1, &byte) == 0) return false;
      *value |= static_cast<uint64_t>(*byte) << (8 * i);
    }
    return true;
  }

 private:
  static constexpr size_t kBytes = 1 << 18;

  bool refill() {
    const auto wanted = static_cast<size_t>(std::min<int64_t>(left_, kBytes));
    const ssize_t got = wanted == 0 ? 0 : ::pread(file_, buffer_.data(), wanted, offset_);
    if (got < 0) fail();
    offset_ += got;
    left_ -= got;
    at_ = 0;
    end_ = static_cast<size_t>(got);
    return got > 0;
  }

  const int file_;
  int64_t offset_, left_;
  std::vector<uint8_t> buffer_;
  size_t at_ = 0, end_ = 0;
};

// The text: its last part is held for references to it, the rest is written.
class Output {
 public:
  explicit Output(int file) : file_(file), buffer_(kBytes) {}

  uint64_t size() const { return static_cast<uint64_t>(written_) + end_; }

  void append(const uint8_t* bytes, size_t count) {
    while (count > 0) {
      if (end_ == kBytes) flush(kBytes - kKeptBytes);
      const size_t part = std::min(count, kBytes - end_);
      std::memcpy(buffer_.data() + end_, bytes, part);
      end_ += part;
      bytes += part;
      count -= part;
    }
  }
  // Append bytes from `distance` bytes back, which is at least 1 and at most size().
  void repeat(uint64_t distance, size_t count) {
    if (end_ + count > kBytes) flush(end_ - std::min(end_, kKeptBytes));
    if (distance <= end_) {
      uint8_t* to = buffer_.data() + end_;
      const uint8_t* from = to - distance;
      for (size_t i = 0; i < count; ++i) to[i] = from[i];  // they may overlap, by design
      end_ += count;
      return;
    }
    for (size_t i = 0; i < count; ++i) {  // one by one: usual writers do not refer back this far
      uint8_t byte = 0;
      const auto place = static_cast<int64_t>(size() - distance);
      if (place >= written_) {
        byte = buffer_[static_cast<size_t>(place - written_)];
      } else if (::pread(file_, &byte, 1, place) != 1) {
        fail();
      }
      append(&byte, 1);
    }
  }
  void finish() { flush(end_); }

 private:
  static constexpr size_t kBytes = 1 << 20, kKeptBytes = 1 << 17;

  void flush(size_t count) {
    for (size_t done = 0; done < count;) {
      const ssize_t wrote = ::pwrite(file_, buffer_.data() + done, count - done, written_);
      if (wrote < 0) fail();
      done += static_cast<size_t>(wrote);
      written_ += wrote;
    }
    std::memmove(buffer_.data(), buffer_.data() + count, end_ - count);
    end_ -= count;
  }

  const int file_;
  int64_t written_ = 0;
  std::vector<uint8_t> buffer_;
  size_t end_ = 0;
};

bool read_size(Input& input, uint64_t* size) {
  *size = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    uint64_t byte = 0;
    if (!input.number(1, &byte)) return false;
    *size |= (byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

bool copy_literal(Input& input, Output& output, uint64_t count) {
  while (count > 0) {
    const uint8_t* bytes = nullptr;
    const size_t part = input.take(static_cast<size_t>(count), &bytes);
    if (part == 0) return false;
    output.append(bytes, part);
    count -= part;
  }
  return true;
}

}  // namespace

int64_t unpack_snappy(int packed_file, int64_t offset, int64_t size, int text_file) {
  Input input(packed_file, offset, size);
  Output output(text_file);
  uint64_t wanted = 0, tag = 0;
  if (!read_size(input, &wanted)) return -1;
  while (input.number(1, &tag)) {
    const uint64_t high = tag >> 2;
    if ((tag & 3) == 0) {
      uint64_t count = high;
      if (high >= 60 && !input.number(high - 59, &count)) return -1;
      if (++count > wanted - output.size()) return -1;
      if (!copy_literal(input, output, count)) return -1;
      continue;
    }
    uint64_t count = high + 1, distance = 0;
    if (!input.number((tag & 3) == 3 ? 4 : tag & 3, &distance)) return -1;
    if ((tag & 3) == 1) {
      count = (high & 7) + 4;
      distance |= (tag >> 5) << 8;
    }
    if (distance == 0 || distance > output.size() || count > wanted - output.size()) return -1;
    output.repeat(distance, static_cast<size_t>(count));
  }
  if (output.size() != wanted) return -1;
  output.finish();
  return static_cast<int64_t>(wanted);
}

}  // namespace lowtide
