// Read the rows of work files of ids without the Python interpreter: hundreds of files are read
// several times between encoding and the first shard, while all workers wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "dataset/encoding.hpp"
#include "system/threads.hpp"

namespace lowtide {

constexpr size_t kFilesOfThread = 32;  // at least: reading these takes as long as starting one

// A work file of ids: the offsets of its document rows and its ids.
class WorkIndex {
 public:
  // Reads the header. Throws std::invalid_argument for other files, std::system_error for a file
  // that cannot be read.
  explicit WorkIndex(const std::string& path);
  ~WorkIndex();
  WorkIndex(const WorkIndex&) = delete;
  WorkIndex& operator=(const WorkIndex&) = delete;

  uint64_t num_documents() const { return index_.size / sizeof(EncodedRow); }
  uint64_t ids_at() const { return ids_.at; }
  std::vector<EncodedRow> read() const;

 private:
  struct Section {
    uint64_t at, size;
  };
  Section find(const std::string& header, const std::string& name) const;
  void read_at(void* into, uint64_t size, uint64_t at) const;

  std::string path_;
  int descriptor_;
  uint64_t base_ = 0;  // where sections begin
  Section index_{}, ids_{};
};

// Calls visit(number, index) for each file, on this many threads and in any order.
template <typename Visit>
void visit_indexes(const std::vector<std::string>& names, size_t num_threads, const Visit& visit) {
  std::atomic<size_t> next{0};
  run_threads(std::min(num_threads, names.size() / kFilesOfThread + 1), [&](size_t) {
    for (size_t i; (i = next.fetch_add(1)) < names.size();) visit(i, WorkIndex(names[i]));
  });
}

}  // namespace lowtide
