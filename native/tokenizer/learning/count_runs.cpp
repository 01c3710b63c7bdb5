#include "tokenizer/learning/count_runs.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <queue>
#include <system_error>

namespace lowtide {

namespace {

constexpr size_t kRunBufferBytes = 1 << 16;

File open_file(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode));
  if (!file) throw std::system_error(errno, std::generic_category(), path);
  std::setvbuf(file.get(), nullptr, _IOFBF, kRunBufferBytes);
  return file;
}

void write_all(std::FILE* file, const void* data, size_t size, const std::string& path) {
  if (std::fwrite(data, 1, size, file) != size) {
    throw std::system_error(errno, std::generic_category(), path);
  }
}

// Reads one run in order.
class RunReader {
 public:
  explicit RunReader(const CountRun& run) : path_(run.path), file_(open_file(run.path, "rb")) {
    struct stat status{};
    if (::fstat(::fileno(file_.get()), &status) != 0) {
      throw std::system_error(errno, std::generic_category(), path_);
    }
    const uint64_t end = std::min(run.end, static_cast<uint64_t>(status.st_size));
    if (run.begin > end || (run.end != UINT64_MAX && run.end != end)) throw_damaged();
    if (::fseeko(file_.get(), static_cast<off_t>(run.begin), SEEK_SET) != 0) {
      throw std::system_error(errno, std::generic_category(), path_);
    }
    left_ = end - run.begin;
    advance();
  }
  bool done() const { return done_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  uint64_t count() const { return count_; }
  void advance() {
    if (left_ == 0) {
      done_ = true;
      return;
    }
    uint32_t length;
    constexpr uint64_t kHead = sizeof(length) + sizeof(count_);
    if (left_ < kHead) throw_damaged();
    read(&length, sizeof(length));
    read(&count_, sizeof(count_));
    if (length > left_ - kHead) throw_damaged();  // before memory is allocated
    bytes_.resize(length);
    read(bytes_.data(), length);
    left_ -= kHead + length;
  }

 private:
  void read(void* data, size_t size) {
    if (std::fread(data, 1, size, file_.get()) == size) return;
    if (std::ferror(file_.get())) throw std::system_error(errno, std::generic_category(), path_);
    throw_damaged();
  }
  [[noreturn]] void throw_damaged() const {
    throw std::system_error(EBADMSG, std::generic_category(), path_);
  }

  std::string path_;
  File file_;
  uint64_t left_ = 0;  // bytes of the run that are not read yet
  std::vector<uint8_t> bytes_;
  uint64_t count_ = 0;
  bool done_ = false;
};

}  // namespace

int compare_bytes(const uint8_t* a, size_t a_length, const uint8_t* b, size_t b_length) {
  const size_t shared = std::min(a_length, b_length);
  // An empty piece may have a null address, which is not allowed for memcmp.
  const int order = shared == 0 ? 0 : std::memcmp(a, b, shared);
  if (order != 0) return order;
  return a_length < b_length ? -1 : a_length > b_length;
}

RunWriter::RunWriter(const std::string& path) : path_(path), file_(open_file(path, "wb")) {}

void RunWriter::add(const uint8_t* bytes, size_t size, uint64_t count) {
  const uint32_t length = static_cast<uint32_t>(size);
  write_all(file_.get(), &length, sizeof(length), path_);
  write_all(file_.get(), &count, sizeof(count), path_);
  write_all(file_.get(), bytes, size, path_);
  written_ += sizeof(length) + sizeof(count) + size;
}

void RunWriter::finish() {
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) {
    throw std::system_error(errno, std::generic_category(), path_);
  }
}

void merge_runs(const std::vector<CountRun>& runs, const CountSink& sink) {
  std::vector<std::unique_ptr<RunReader>> readers;
  for (const CountRun& run : runs) readers.push_back(std::make_unique<RunReader>(run));
  const auto later = [](const RunReader* a, const RunReader* b) {
    return compare_bytes(a->bytes().data(), a->bytes().size(), b->bytes().data(),
                         b->bytes().size()) > 0;
  };
  std::priority_queue<RunReader*, std::vector<RunReader*>, decltype(later)> queue(later);
  for (const auto& reader : readers) {
    if (!reader->done()) queue.push(reader.get());
  }
  std::vector<uint8_t> bytes;
  while (!queue.empty()) {
    RunReader* reader = queue.top();
    bytes = reader->bytes();
    uint64_t count = 0;
    while (!queue.empty() && queue.top()->bytes() == bytes) {
      reader = queue.top();
      queue.pop();
      count += reader->count();
      reader->advance();
      if (!reader->done()) queue.push(reader);
    }
    sink(bytes.data(), bytes.size(), count);
  }
}

}  // namespace lowtide
