// Count the pieces of text of any size in a fixed amount of memory, on any number of threads.
//
// In:      files (through windows) or texts in memory
// Out:     every distinct piece with its 64-bit count; sorted if pieces were spilled, in unspecified
//          order otherwise
// Memory:  `table_bytes` for the tables, and about 4 MiB and one window per thread
//
// Each thread counts into a small table that fits in its core's cache and handles nine pieces out of
// ten; evicted entries go, in batches, to 64 shared tables chosen by hash. A shared table that would
// exceed its part of `table_bytes` is spilled as a sorted run and starts again empty; runs and
// remaining tables are merged at the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/learning/count_runs.hpp"
#include "tokenizer/learning/count_shard.hpp"
#include "tokenizer/splitting/pieces.hpp"
#include "tokenizer/splitting/specials.hpp"
#include "tokenizer/splitting/splitter.hpp"

namespace lowtide {

class PieceCounter {
 public:
  PieceCounter(Pattern pattern, std::vector<std::string> specials, size_t num_threads,
               size_t table_bytes, size_t window_bytes, std::string spill_dir);
  ~PieceCounter();

  // Counts a file of `end` bytes from `begin` (0, or the result of an earlier call) to the first
  // cut at or after `stop`, and returns its position.
  uint64_t count_file(const std::string& path, uint64_t begin, uint64_t stop, uint64_t end);
  struct Text {
    const uint8_t* data;
    size_t length;
  };
  void count_texts(const std::vector<Text>& texts);

  // The first position from `at` on where a file of `end` bytes may be cut: two counters that count
  // up to it and from it on have the same counts as one.
  uint64_t find_file_cut(const std::string& path, uint64_t at, uint64_t end) const;

  // Moves all counts so far into run files on disk; returns their names, oldest first.
  std::vector<std::string> checkpoint();
  // Starts from the run files of an earlier checkpoint.
  void adopt(std::vector<std::string> runs);
  // Writes all counts so far into one file that depends only on the text, and returns the ends of
  // its parts. Ends counting.
  std::vector<uint64_t> save(const std::string& path);
  // Adds the counts of a file written by `save`, or that contains it from `begin` on; `longest` is
  // the longest piece in it. The file must exist until everything is drained.
  void add_saved(const std::string& path, uint64_t begin, const std::vector<uint64_t>& ends,
                 uint64_t longest);

  // Calls `sink` for every piece and frees the tables meanwhile. Ends counting.
  void drain(const CountSink& sink);
  // The same, but tables of which nothing was spilled are passed to `take`, some at a time.
  using TableSink = std::function<void(std::span<const CountShard* const>)>;
  void drain(const CountSink& sink, const TableSink& take);

  uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }
  uint64_t pieces_done() const { return pieces_done_.load(std::memory_order_relaxed); }
  uint64_t distinct() const;  // of what the shared tables hold; exact after checkpoint() or drain()
  // The bytes of all distinct pieces; what was spilled more than once counts more than once.
  uint64_t distinct_bytes() const;
  // Text without a place to cut is refused beyond this many bytes, so that memory stays bounded.
  size_t largest_window() const { return largest_window_; }
  // Bytes of the longest piece, if one is very long; an upper bound if runs were restored.
  uint64_t longest_piece() const { return longest_piece_.load(std::memory_order_relaxed); }
  uint64_t spilled_runs() const { return runs_made_.load(std::memory_order_relaxed); }

 private:
  struct Local;
  static constexpr size_t kShards = 64;
  struct Shard {
    std::mutex mutex;
    CountShard table;
    std::vector<CountRun> runs;
  };

  void count_window(Local& local, const uint8_t* text, size_t length);
  void count_segment(Local& local, const uint8_t* text, size_t length);
  void count_short(Local& local, const PieceKey& key, uint64_t hash);
  void count_long(Local& local, const uint8_t* piece, size_t length);
  void count_very_long(const uint8_t* piece, size_t length, uint64_t hash);
  template <typename Way>
  void hand_on(Local& local, const Way& way);  // entries evicted from the thread's own table
  void flush_shard(Local& local, size_t shard);
  void flush_long(Local& local, size_t shard);
  void flush(Local& local);
  void flush_all();
  void spill_if_full(size_t index);
  std::string new_run_path(size_t index);
  std::string spill(size_t index);
  void merge_many_runs(size_t index);

  const SplitFunction split_;
  const SpecialFinder specials_;
  const size_t num_threads_;
  const size_t shard_bytes_;
  const size_t window_bytes_, largest_window_;
  const std::string spill_dir_;
  std::mutex large_window_;  // held while a window without a place to cut is processed
  std::vector<Shard> shards_{kShards};
  std::vector<std::unique_ptr<Local>> locals_;
  std::atomic<uint64_t> bytes_done_{0}, pieces_done_{0}, runs_made_{0}, distinct_{0};
  std::atomic<uint64_t> spilled_bytes_{0}, longest_piece_{0};
};

}  // namespace lowtide
