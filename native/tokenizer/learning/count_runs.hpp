// Runs: pieces with their counts, sorted by their bytes, in files written and read sequentially.
//
// A table of counts that exceeds its memory is spilled as a run; runs are merged while they are read,
// so a merge needs one buffer and one piece for each run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lowtide {

using CountSink = std::function<void(const uint8_t*, size_t, uint64_t)>;

// Pieces in order with their counts: a file, or a part of one.
struct CountRun {
  std::string path;
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
};

// The order of pieces in a run: by bytes, a prefix before longer pieces.
int compare_bytes(const uint8_t* a, size_t a_length, const uint8_t* b, size_t b_length);

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

// Writes one run: pieces in order, each as its length, its count and its bytes.
class RunWriter {
 public:
  explicit RunWriter(const std::string& path);
  void add(const uint8_t* bytes, size_t size, uint64_t count);
  void finish();  // everything is written to disk after it
  uint64_t written() const { return written_; }

 private:
  std::string path_;
  File file_;
  uint64_t written_ = 0;
};

// Calls `sink` for every piece of some runs once, in order, with the sum of its counts.
void merge_runs(const std::vector<CountRun>& runs, const CountSink& sink);

}  // namespace lowtide
