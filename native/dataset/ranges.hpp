// Documents of many encoded blocks in their global order, and their ids from the blocks' files.
//
// In:      the index of every work file of ids
// Out:     tokens by range of keys; any part of a range's ids
// Memory:  32 bytes for each document of a range, twice while they are sorted, and the files' names
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dataset/encoding.hpp"
#include "dataset/shared_files.hpp"

namespace lowtide {

// Counts tokens and documents by range of keys and by split (0: train, 1: val).
class RangeCounter {
 public:
  // `bounds` are the first keys of all ranges, in order (checked); hashes below `val_limit` are in
  // val.
  RangeCounter(std::vector<uint64_t> bounds, uint64_t val_limit);
  void add(std::span<const EncodedRow> index);  // sorted by key
  void add_files(const std::vector<std::string>& names, size_t num_threads);
  // The end of the rows of each range, and of its tokens of both splits.
  std::vector<int64_t> row_ends() const;
  std::vector<int64_t> token_ends() const;

  std::array<std::vector<int64_t>, 2> tokens;
  std::vector<int64_t> rows;  // of both splits
  std::array<uint64_t, 2> documents{};

 private:
  std::vector<uint64_t> bounds_;
  uint64_t val_limit_;
};

enum class Chosen { kTrain, kVal, kAll };

// The output of a task for a part of the corpus: ids and rows of documents by key, and for each
// bucket of keys the end of its rows and its tokens.
struct EncodedOutput {
  std::string path;
  uint64_t num_bytes;  // in pages, followed by their checksums
  uint64_t ids_at, index_at, row_ends_at, token_ends_at;
};

class RangeRows {
 public:
  // Add the documents of one work file whose keys are in [low, high]; its ids begin at `ids_at`.
  void add(const std::string& path, std::span<const EncodedRow> index, uint64_t ids_at,
           uint64_t id_bytes, uint64_t low, uint64_t high, Chosen chosen, uint64_t val_limit);
  // The same for a block whose ids are in memory, which must outlive this and its readers.
  void add_held(const char* ids, std::span<const EncodedRow> index, uint64_t id_bytes, uint64_t low,
                uint64_t high, Chosen chosen, uint64_t val_limit);
  // The same for buckets `first` to `last` of a task's output; pages that are read, here and by
  // readers, are verified by their checksums (DamagedPage).
  void add_output(const EncodedOutput& output, size_t page_bytes, uint64_t first, uint64_t last,
                  uint64_t id_bytes, uint64_t low, uint64_t high, Chosen chosen,
                  uint64_t val_limit);
  // Sort them; equal keys stay in the order of the files. An index with more tokens than any disk
  // holds is damaged: std::invalid_argument.
  void finish(size_t num_threads = 1);
  // The documents of many work files, read by this many threads.
  void add_files(const std::vector<std::string>& names, uint64_t id_bytes, uint64_t low,
                 uint64_t high, Chosen chosen, uint64_t val_limit, size_t num_threads);

  static constexpr uint32_t kHeld = 0xFFFFFFFF;  // instead of a file: `at` is an address
  struct Row {
    uint64_t key;
    uint64_t at;         // in bytes, in its file
    uint64_t token_end;  // in the range; its own tokens until `finish`
    uint32_t file;
    uint32_t ends;
  };
  std::vector<Row> rows;
  std::vector<std::string> paths;
  struct Pages {
    uint64_t num_bytes = 0;
    size_t page_bytes = 0;
  };
  // The files whose pages are followed by checksums; other files have no page_bytes.
  Pages find_pages(uint32_t file) const { return file < pages_.size() ? pages_[file] : Pages{}; }
  // The page that a reader found damaged, and its file.
  mutable std::optional<std::pair<std::string, uint64_t>> damaged;

  // The files, for all readers of this range; called once all paths are added.
  SharedFiles& files() const;

 private:
  mutable std::once_flag files_made_;
  mutable std::unique_ptr<SharedFiles> files_;
  std::vector<Pages> pages_;

  bool add_rows(uint32_t file, std::span<const EncodedRow> index, uint64_t at, uint64_t id_bytes,
                uint64_t low, uint64_t high, Chosen chosen, uint64_t val_limit);
};

// Reads stretches of a range. Each file is visited once per stretch, in the order of its bytes,
// because all threads of a process share one table of descriptors, which is locked for every opened
// file.
class RangeReader {
 public:
  // Files stay open for the next stretch as long as the process keeps fewer than `max_open_files`
  // open, and fewer than half of its limit.
  RangeReader(const RangeRows& range, uint64_t id_bytes, size_t max_open_files);
  RangeReader(const RangeReader&) = delete;
  RangeReader& operator=(const RangeReader&) = delete;

  // Fill `ids` with tokens `first` to `last`; returns the ends of documents, counted from `first`.
  // Throws std::system_error for a file that cannot be read, std::invalid_argument for a page that
  // does not match its checksum, which is then `damaged` in the range.
  std::vector<uint64_t> read(uint64_t first, uint64_t last, char* ids);
  uint64_t id_bytes() const { return id_bytes_; }
  uint64_t num_tokens() const { return range_.rows.empty() ? 0 : range_.rows.back().token_end; }

 private:
  struct Piece {  // of a file, and its destination
    uint32_t file;
    uint64_t at, size;
    char* to;
  };
  void read_file(std::span<const Piece> pieces);
  void read_paged(std::span<const Piece> pieces, const RangeRows::Pages& pages);

  const RangeRows& range_;
  uint64_t id_bytes_;
  size_t max_open_files_;
  std::vector<Piece> pieces_;       // kept for the next stretch
  std::unique_ptr<char[]> window_;  // of pages that are verified
};

// Rows with keys in [low, high], by key; equal keys stay in the order they have.
std::vector<EncodedRow> sort_rows(std::span<const EncodedRow> rows, uint64_t low, uint64_t high);

// The lowest and the highest id; {0, 0} if there is none.
template <typename Id>
std::pair<uint64_t, uint64_t> measure_ids(std::span<const Id> ids) {
  if (ids.empty()) return {0, 0};
  Id low = ids[0], high = ids[0];
  for (const Id id : ids) {
    low = id < low ? id : low;
    high = id > high ? id : high;
  }
  return {low, high};
}

}  // namespace lowtide
