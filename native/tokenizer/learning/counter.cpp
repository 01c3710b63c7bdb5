#include "tokenizer/learning/counter.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "system/huge_array.hpp"
#include "system/memory.hpp"
#include "system/threads.hpp"
#include "tokenizer/splitting/windows.hpp"

namespace lowtide {

namespace {

constexpr size_t kHotSets = 32768;  // times 64 bytes: 2 MiB a thread. 512 KiB fit the second-level
                                    // cache and counted 18 % slower: more entries were evicted
constexpr size_t kEndsBatch = 4096;
constexpr size_t kTablesAtOnce = 16;    // passed to the learner: their pieces are held twice then
constexpr size_t kGivenBack = 4 << 20;  // freed at least, because all arenas are scanned each time
constexpr size_t kSmallestLimit = 4 << 20;  // of a window; its only piece is held once more
constexpr size_t kRunsAtOnce = 64;          // read together: each needs a file and a buffer

}  // namespace

// The data of one thread.
struct PieceCounter::Local {
  struct Way {
    PieceKey key;
    uint64_t hash;
    uint64_t count;  // 0: empty
  };
  struct alignas(64) Set {
    Way ways[2];
  };
  HugeArray<Set> hot{kHotSets};
  std::vector<Way> batches = std::vector<Way>(kShards * kCountBatch);
  size_t batch_sizes[kShards] = {};
  std::vector<uint8_t> long_batches[kShards];
  std::vector<uint32_t> ends = std::vector<uint32_t>(kEndsBatch);
  std::vector<uint8_t> window;
};

PieceCounter::PieceCounter(Pattern pattern, std::vector<std::string> specials, size_t num_threads,
                           size_t table_bytes, size_t window_bytes, std::string spill_dir)
    : split_(splitter(pattern)),
      specials_(std::move(specials)),
      num_threads_(std::max<size_t>(1, num_threads)),
      shard_bytes_(table_bytes / kShards),
      window_bytes_(window_bytes),
      largest_window_(std::max<size_t>(kSmallestLimit, table_bytes / 8)),
      spill_dir_(std::move(spill_dir)) {
  for (size_t i = 0; i < num_threads_; ++i) locals_.push_back(std::make_unique<Local>());
}

PieceCounter::~PieceCounter() = default;

uint64_t PieceCounter::count_file(const std::string& path, uint64_t begin, uint64_t stop,
                                  uint64_t end) {
  if (locals_.empty()) throw std::logic_error("counting is over");
  FileWindows windows(path, begin, stop, end, window_bytes_, specials_, largest_window_);
  run_threads(num_threads_, [&](size_t thread) {
    Local& local = *locals_[thread];
    FileWindows::Window window;
    while (windows.next(window)) {
      std::unique_lock<std::mutex> lock(large_window_, std::defer_lock);
      if (windows.is_large(window)) lock.lock();
      windows.read(window, local.window);
      count_window(local, local.window.data(), local.window.size());
      bytes_done_.fetch_add(local.window.size(), std::memory_order_relaxed);
      if (local.window.capacity() > 4 * window_bytes_) local.window = {};
    }
  });
  return windows.position();
}

void PieceCounter::count_texts(const std::vector<Text>& texts) {
  if (locals_.empty()) throw std::logic_error("counting is over");
  std::mutex mutex;
  size_t index = 0, offset = 0;
  const auto next = [&](Text& part) {
    const std::lock_guard<std::mutex> lock(mutex);
    while (index < texts.size() && offset >= texts[index].length) ++index, offset = 0;
    if (index == texts.size()) return false;
    const Text& text = texts[index];
    const size_t end = text.length - offset <= window_bytes_
                           ? text.length
                           : find_cut(text.data, text.length, offset + window_bytes_, specials_);
    part = {text.data + offset, end - offset};
    offset = end;
    return true;
  };
  run_threads(num_threads_, [&](size_t thread) {
    Local& local = *locals_[thread];
    Text part;
    while (next(part)) {
      count_window(local, part.data, part.length);
      bytes_done_.fetch_add(part.length, std::memory_order_relaxed);
    }
  });
}

void PieceCounter::count_window(Local& local, const uint8_t* text, size_t length) {
  size_t at = 0;
  while (at < length) {
    const SpecialFinder::Match match = specials_.find(text, length, at);
    const size_t end = match.begin == SpecialFinder::npos ? length : match.begin;
    count_segment(local, text + at, end - at);
    at = end + match.length;
  }
}

void PieceCounter::count_segment(Local& local, const uint8_t* text, size_t length) {
  Probe probes[kProbes];
  size_t position = 0, begin = 0;
  uint64_t pieces = 0;
  while (position < length) {
    const size_t count = split_(text, length, &position, local.ends.data(), kEndsBatch);
    pieces += count;
    for (size_t first = 0; first < count; first += kProbes) {
      const size_t n = std::min(kProbes, count - first);
      begin =
          make_probes(text, length, begin, local.ends.data() + first, n, probes,
                      [&](uint64_t hash) { __builtin_prefetch(&local.hot[hash % kHotSets], 1); });
      for (size_t i = 0; i < n; ++i) {
        if (probes[i].length > kInlineBytes) {
          count_long(local, probes[i].piece, probes[i].length);
        } else {
          count_short(local, probes[i].key, probes[i].hash);
        }
      }
    }
  }
  pieces_done_.fetch_add(pieces, std::memory_order_relaxed);
}

inline void PieceCounter::count_short(Local& local, const PieceKey& key, uint64_t hash) {
  Local::Way* const ways = local.hot[hash % kHotSets].ways;
  if (ways[0].key == key) {  // an empty way has a key that no piece has
    ++ways[0].count;
  } else if (ways[1].key == key) {
    // The more frequent of the two keeps the slot that new pieces cannot take.
    if (++ways[1].count > ways[0].count) std::swap(ways[0], ways[1]);
  } else {
    if (ways[1].count != 0) hand_on(local, ways[1]);
    ways[1] = {key, hash, 1};
  }
}

void PieceCounter::count_long(Local& local, const uint8_t* piece, size_t length) {
  const uint64_t hash = hash_bytes(piece, length);
  const size_t shard = hash >> 58;
  if (length > kLongPiece) return count_very_long(piece, length, hash);
  std::vector<uint8_t>& batch = local.long_batches[shard];
  const uint32_t length32 = static_cast<uint32_t>(length);
  const uint8_t* const header = reinterpret_cast<const uint8_t*>(&length32);
  batch.insert(batch.end(), header, header + sizeof(length32));
  batch.insert(batch.end(), piece, piece + length);
  if (batch.size() > kLongBatchBytes) flush_long(local, shard);
}

// A single piece larger than a batch may be larger than a table's part of the memory too: it is
// held once besides the text, and not kept.
void PieceCounter::count_very_long(const uint8_t* piece, size_t length, uint64_t hash) {
  const size_t index = hash >> 58;
  Shard& shard = shards_[index];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  if (shard.table.size() > 0 && shard.table.bytes() + length > shard_bytes_) spill(index);
  const size_t before = shard.table.size();
  shard.table.add_long(piece, length, hash, 1);
  distinct_.fetch_add(shard.table.size() - before, std::memory_order_relaxed);
  uint64_t longest = longest_piece_.load(std::memory_order_relaxed);
  while (longest < length && !longest_piece_.compare_exchange_weak(longest, length)) {
  }
  if (shard.table.bytes() > shard_bytes_) spill(index);
}

template <typename Way>
inline void PieceCounter::hand_on(Local& local, const Way& way) {
  const size_t shard = way.hash >> 58;
  local.batches[shard * kCountBatch + local.batch_sizes[shard]] = way;
  if (++local.batch_sizes[shard] == kCountBatch) flush_shard(local, shard);
}

void PieceCounter::flush_shard(Local& local, size_t index) {
  Shard& shard = shards_[index];
  const Local::Way* const batch = local.batches.data() + index * kCountBatch;
  const size_t size = local.batch_sizes[index];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  spill_if_full(index);
  const size_t before = shard.table.size();
  for (size_t i = 0; i < std::min<size_t>(size, 8); ++i) shard.table.prefetch(batch[i].hash);
  for (size_t i = 0; i < size; ++i) {
    if (i + 8 < size) shard.table.prefetch(batch[i + 8].hash);
    shard.table.add(batch[i].key, batch[i].hash, batch[i].count);
  }
  distinct_.fetch_add(shard.table.size() - before, std::memory_order_relaxed);
  local.batch_sizes[index] = 0;
}

void PieceCounter::flush_long(Local& local, size_t index) {
  Shard& shard = shards_[index];
  std::vector<uint8_t>& batch = local.long_batches[index];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  spill_if_full(index);
  const size_t before = shard.table.size();
  for (size_t at = 0; at < batch.size();) {
    uint32_t length;
    std::memcpy(&length, batch.data() + at, sizeof(length));
    const uint8_t* const bytes = batch.data() + at + sizeof(length);
    shard.table.add_long(bytes, length, hash_bytes(bytes, length), 1);
    at += sizeof(length) + length;
  }
  distinct_.fetch_add(shard.table.size() - before, std::memory_order_relaxed);
  batch.clear();
  if (batch.capacity() > 16 * kLongBatchBytes) batch.shrink_to_fit();
}

void PieceCounter::flush(Local& local) {
  for (size_t i = 0; i < kHotSets; ++i) {
    for (Local::Way& way : local.hot[i].ways) {
      if (way.count != 0) hand_on(local, way);
      way = {};
    }
  }
  for (size_t shard = 0; shard < kShards; ++shard) {
    flush_shard(local, shard);
    flush_long(local, shard);
  }
}

// On several threads: of sixteen tables the last thread would pass on a million slots alone.
void PieceCounter::flush_all() {
  std::atomic<size_t> next{0};
  run_threads(locals_.size(), [&](size_t) {
    for (size_t i; (i = next.fetch_add(1)) < locals_.size();) flush(*locals_[i]);
  });
}

void PieceCounter::spill_if_full(size_t index) {
  const CountShard& table = shards_[index].table;
  if (table.size() > 0 && table.bytes_after_growth() > shard_bytes_) spill(index);
}

std::string PieceCounter::new_run_path(size_t index) {
  const uint64_t number = runs_made_.fetch_add(1, std::memory_order_relaxed);
  char name[64];
  std::snprintf(name, sizeof(name), "/counts_%02zu_%08llu.run", index,
                static_cast<unsigned long long>(number));
  return spill_dir_ + name;
}

std::string PieceCounter::spill(size_t index) {
  Shard& shard = shards_[index];
  const std::string path = new_run_path(index);
  shard.table.write_run(path);
  spilled_bytes_.fetch_add(shard.table.piece_bytes(), std::memory_order_relaxed);
  shard.table.clear();
  shard.runs.push_back({path});
  return path;
}

// The files of merged runs are kept: a checkpoint may name them, and the caller clears the folder.
void PieceCounter::merge_many_runs(size_t index) {
  std::vector<CountRun>& runs = shards_[index].runs;
  // A reader holds one piece, and all readers may hold a long one.
  const uint64_t longest = std::max<uint64_t>(longest_piece_.load(std::memory_order_relaxed), 1);
  const size_t at_once = std::clamp<size_t>(kShards * shard_bytes_ / 8 / longest, 2, kRunsAtOnce);
  while (runs.size() > at_once) {
    const auto taken = runs.begin() + static_cast<ptrdiff_t>(at_once);
    const std::string path = new_run_path(index);
    RunWriter writer(path);
    merge_runs({runs.begin(), taken}, [&](const uint8_t* bytes, size_t length, uint64_t count) {
      writer.add(bytes, length, count);
    });
    writer.finish();
    runs.erase(runs.begin(), taken);
    runs.push_back({path});
  }
}

std::vector<std::string> PieceCounter::checkpoint() {
  flush_all();
  std::vector<std::string> runs;
  for (size_t i = 0; i < kShards; ++i) {
    if (shards_[i].table.size() > 0) spill(i);
    for (const CountRun& run : shards_[i].runs) runs.push_back(run.path);
  }
  return runs;
}

std::vector<uint64_t> PieceCounter::save(const std::string& path) {
  flush_all();
  locals_.clear();
  std::vector<uint64_t> ends;
  RunWriter writer(path);
  for (size_t i = 0; i < kShards; ++i) {
    if (shards_[i].table.size() > 0) spill(i);
    merge_many_runs(i);
    merge_runs(shards_[i].runs, [&](const uint8_t* bytes, size_t length, uint64_t count) {
      writer.add(bytes, length, count);
    });
    ends.push_back(writer.written());
  }
  writer.finish();
  return ends;
}

void PieceCounter::add_saved(const std::string& path, uint64_t begin,
                             const std::vector<uint64_t>& ends, uint64_t longest) {
  if (ends.size() != kShards || !std::is_sorted(ends.begin(), ends.end())) {
    throw std::system_error(EBADMSG, std::generic_category(), path);
  }
  uint64_t before = 0;
  for (size_t i = 0; i < kShards; ++i) {
    if (ends[i] > before) shards_[i].runs.push_back({path, begin + before, begin + ends[i]});
    before = ends[i];
  }
  spilled_bytes_ += before;
  longest_piece_ = std::max<uint64_t>(longest_piece_, longest);
}

uint64_t PieceCounter::find_file_cut(const std::string& path, uint64_t at, uint64_t end) const {
  FileWindows windows(path, at, end, end, window_bytes_, specials_, largest_window_);
  return windows.cut_at_or_after(at);
}

void PieceCounter::adopt(std::vector<std::string> runs) {
  for (const std::string& run : runs) {
    size_t index = 0;
    unsigned long long number = 0;
    const size_t slash = run.rfind('/');
    const char* const name = run.c_str() + (slash == std::string::npos ? 0 : slash + 1);
    if (std::sscanf(name, "counts_%02zu_%08llu.run", &index, &number) != 2 || index >= kShards) {
      throw std::system_error(EBADMSG, std::generic_category(), run);
    }
    shards_[index].runs.push_back({run});
    const uint64_t size = std::filesystem::file_size(run);
    spilled_bytes_ += size;
    // The longest piece of it is not known; none is longer than the run.
    longest_piece_ = std::max<uint64_t>(longest_piece_, size);
    runs_made_ = std::max<uint64_t>(runs_made_, number + 1);
  }
}

void PieceCounter::drain(const CountSink& sink) { drain(sink, nullptr); }

void PieceCounter::drain(const CountSink& sink, const TableSink& take) {
  flush_all();
  locals_.clear();
  uint64_t distinct = 0;
  size_t freed = 0;
  const auto counted = [&](const uint8_t* bytes, size_t length, uint64_t count) {
    ++distinct;
    sink(bytes, length, count);
  };
  const size_t at_once = take ? kTablesAtOnce : 1;
  std::vector<const CountShard*> tables;
  for (size_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    if (shard.runs.empty() && take) {
      tables.push_back(&shard.table);
      distinct += shard.table.size();
    } else if (shard.runs.empty()) {
      shard.table.for_each(counted);
    } else {
      if (shard.table.size() > 0) spill(i);
      merge_many_runs(i);
      merge_runs(shard.runs, counted);
    }
    if ((i + 1) % at_once != 0) continue;
    if (!tables.empty()) take(tables);
    tables.clear();
    for (size_t done = i + 1 - at_once; done <= i; ++done) {
      freed += shards_[done].table.bytes();
      shards_[done].table.clear();
    }
    if (freed < kGivenBack && i + 1 < kShards) continue;
    give_memory_back();  // now, because the receiver of the pieces needs its pages
    freed = 0;
  }
  distinct_ = distinct;
}

uint64_t PieceCounter::distinct_bytes() const {
  uint64_t bytes = spilled_bytes_.load(std::memory_order_relaxed);
  for (const Shard& shard : shards_) bytes += shard.table.piece_bytes();
  return bytes;
}

uint64_t PieceCounter::distinct() const { return distinct_.load(std::memory_order_relaxed); }

}  // namespace lowtide
