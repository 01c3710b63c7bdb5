// The rows of work files of ids, read without the interpreter: hundreds of files are gone through
// several times between encoding and the first shard, while all workers wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dataset/encoding.hpp"

namespace lowtide {

// A work file of ids: where its rows of documents and its ids lie.
class WorkIndex {
 public:
  // Reads the header. What is no work file of ids is a std::invalid_argument, and a file that
  // cannot be read a std::system_error.
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

}  // namespace lowtide
