// Sorted rows on disk: merging them as streams, and looking them up with a sparse index in memory.
//
// Memory:  merging: a buffer for each run; lookup: 8 bytes for each chunk of rows, and one chunk
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quality/near_copies.hpp"

namespace lowtide {

// A range of sorted rows in a file.
struct RowRun {
  std::string path;
  uint64_t offset = 0, rows = 0;
};

// Files with random reads; only a limited number is open at a time.
class OpenFiles {
 public:
  explicit OpenFiles(size_t most) : most_(most) {}
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;
  ~OpenFiles() { close_all(); }

  // Read all of `size` bytes; throws if the file has fewer, or cannot be read.
  void read(const std::string& path, uint64_t offset, void* out, size_t size);

 private:
  void close_all();

  size_t most_;
  std::unordered_map<std::string, int> open_;
};

// Merges runs of rows in order, without repeated rows.
template <typename Row>
class RowMerger {
 public:
  RowMerger(std::vector<RowRun> runs, size_t buffer_bytes)
      : buffer_rows_(std::max<size_t>(buffer_bytes / sizeof(Row) / std::max<size_t>(runs.size(), 1),
                                      kLeastRows)),
        files_(1) {
    sources_.reserve(runs.size());
    for (RowRun& run : runs) {
      sources_.push_back({std::move(run), {}, 0});
      if (refill(sources_.back())) heap_.push_back(sources_.size() - 1);
    }
    std::make_heap(heap_.begin(), heap_.end(), [this](size_t a, size_t b) { return order(a, b); });
  }

  // Up to `most` rows; none at the end.
  std::vector<Row> read(size_t most) {
    const auto compare = [this](size_t a, size_t b) { return order(a, b); };
    std::vector<Row> merged;
    while (!heap_.empty() && merged.size() < most) {
      std::pop_heap(heap_.begin(), heap_.end(), compare);
      Source& source = sources_[heap_.back()];
      const Row row = source.rows[source.next++];
      if (source.next < source.rows.size() || refill(source)) {
        std::push_heap(heap_.begin(), heap_.end(), compare);
      } else {
        heap_.pop_back();
      }
      if (has_last_ && row == last_) continue;
      last_ = row;
      has_last_ = true;
      merged.push_back(row);
    }
    return merged;
  }

 private:
  static constexpr size_t kLeastRows = 64;

  struct Source {
    RowRun run;
    std::vector<Row> rows;
    size_t next = 0;
  };

  bool order(size_t a, size_t b) const {  // the smallest is the first of the heap
    return sources_[b].rows[sources_[b].next] < sources_[a].rows[sources_[a].next];
  }

  bool refill(Source& source) {
    const size_t count = std::min<uint64_t>(buffer_rows_, source.run.rows);
    source.rows.resize(count);
    source.next = 0;
    if (count == 0) return false;
    files_.read(source.run.path, source.run.offset, source.rows.data(), count * sizeof(Row));
    source.run.offset += count * sizeof(Row);
    source.run.rows -= count;
    return true;
  }

  size_t buffer_rows_;
  std::vector<Source> sources_;
  std::vector<size_t> heap_;
  OpenFiles files_;
  Row last_{};
  bool has_last_ = false;
};

using PairMerger = RowMerger<PlacePair>;
using PlaceMerger = RowMerger<uint64_t>;
using BucketMerger = RowMerger<BucketRow>;

// Rows of a file, sorted by their first number: one number in memory for each chunk of them.
template <typename Row>
class RowIndex {
 public:
  static constexpr size_t kChunk = 256;

  RowIndex(RowRun run, OpenFiles& files) : run_(std::move(run)), files_(&files) {
    for (uint64_t row = 0; row < run_.rows; row += kChunk) {
      uint64_t key;
      files_->read(run_.path, run_.offset + row * sizeof(Row), &key, sizeof key);
      keys_.push_back(key);
    }
  }

  // False if there is none with this number. The chunk with it stays in `chunk`.
  bool find(uint64_t key, Row& found, std::vector<Row>& chunk, uint64_t& held) const {
    const auto after = std::upper_bound(keys_.begin(), keys_.end(), key);
    if (after == keys_.begin()) return false;
    const auto number = static_cast<uint64_t>(after - keys_.begin()) - 1;
    if (held != number) {
      held = ~uint64_t{0};
      chunk.resize(std::min<uint64_t>(kChunk, run_.rows - number * kChunk));
      files_->read(run_.path, run_.offset + number * kChunk * sizeof(Row), chunk.data(),
                   chunk.size() * sizeof(Row));
      held = number;
    }
    const auto place =
        std::lower_bound(chunk.begin(), chunk.end(), key,
                         [](const Row& row, uint64_t wanted) { return row.place < wanted; });
    if (place == chunk.end() || place->place != key) return false;
    found = *place;
    return true;
  }

 private:
  RowRun run_;
  OpenFiles* files_;
  std::vector<uint64_t> keys_;
};

}  // namespace lowtide
