// Exact deduplication of one partition of hashes, and the text of a block after it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/cleaner.hpp"

namespace lowtide {

// Rows must be added in the order of the corpus: the first of equal ones is kept.
//
// There is a table for each first byte of a hash, by which blocks sort their rows: one small table
// is in use at a time, and grows by a quarter, independently of the others, so memory is
// proportional to the rows held.
//
// Several threads may add blocks concurrently, each with its index (`add_in_turn`). The tables are
// divided into lanes, which a block passes one by one, each after the block before it has left: as
// many blocks are processed at a time as there are lanes, and every table still gets all of them in
// order. With one turn for all tables, sixteen threads waited for each other: for 2 GB of text the
// tables alone take 0.6 s.
class DuplicateFinder {
 public:
  // Room for `capacity` rows. Each takes 12 bytes in tables that are 64 to 80 % full, so at most 19;
  // only small tables, of 3 MiB together, are emptier. If all hashes of a partition begin with the
  // same `skipped_bits`, tables are chosen by the eight bits after them, because a single table for
  // all rows would need twice the memory while it grows.
  explicit DuplicateFinder(size_t capacity, uint32_t skipped_bits = 0)
      : capacity_(capacity), skipped_bits_(skipped_bits) {}

  // Add the rows of a block that belong to this pass (of `num_passes` over the same partition).
  // Returns false when there is no more room.
  bool add(std::span<const HashRow> rows, uint32_t pass, uint32_t num_passes);
  // HashRow::line of all duplicates since the last call, sorted.
  std::vector<uint32_t> take();
  // Add the rows of several blocks at once, `counts` of each; `places` gets the duplicates in order:
  // the block in the high half, counted from `first_block` on, and its line. The counts have to add
  // up to all rows. Returns false when there is no more room.
  bool add_blocks(std::span<const HashRow> rows, std::span<const uint32_t> counts,
                  uint32_t first_block, uint32_t pass, uint32_t num_passes,
                  std::vector<uint64_t>& places);

  enum class Turn { kAdded, kFull, kStopped };
  // Add the rows of the block `place` (0, 1, ...), sorted by their first byte, after those of all
  // blocks before it; its duplicates go to `lines`, sorted. Every place has to be added, in any
  // order and from any thread. From the first block on for which there is no room, all of them get
  // kFull, and the tables are freed. The capacity may be exceeded by the rows of one block. Only if
  // no bits are skipped.
  Turn add_in_turn(uint64_t place, std::span<const HashRow> rows, std::vector<uint32_t>& lines);
  // Blocks that wait for their turn, and all later ones, get kStopped.
  void stop();

 private:
  struct Slot {  // 96 bits of hash; all zero: free
    uint32_t words[3];
  };
  struct Table {
    std::vector<Slot> slots;
    size_t held = 0;

    // The slot where the search for a hash starts; `skipped` bits of it are the same for all
    // hashes.
    size_t place(uint64_t high, uint32_t skipped) const;
    // Returns true if the hash is new here.
    bool insert(uint64_t high, uint32_t low, uint32_t skipped);
    void grow(uint32_t skipped);
  };
  static constexpr size_t kLanes = 16, kLaneTables = 256 / kLanes, kGates = 8;
  struct Lane {
    std::mutex mutex;
    std::array<std::condition_variable, kGates> gates;  // by place, so that few threads wake up
    uint64_t next = 0;                                  // the block whose turn it is
    bool stopped = false;
  };
  bool enter(Lane& lane, uint64_t place);
  void leave(Lane& lane);
  size_t find_table(uint64_t high) const { return (high << skipped_bits_) >> 56; }
  // Returns true if a hash is new; it is stored from now on.
  bool insert(const HashRow& row);
  void prefetch(std::span<const HashRow> rows, size_t row) const;
  void fill_lane(uint64_t place, std::span<const HashRow> rows, std::vector<uint32_t>& lines);
  void free_lane(size_t lane);
  void fill_up(uint64_t place);

  std::array<Table, 256> tables_;
  std::array<Lane, kLanes> lanes_;
  size_t capacity_;
  uint32_t skipped_bits_;
  std::atomic<size_t> held_ = 0;
  std::atomic<uint64_t> full_from_ = UINT64_MAX;  // the first block for which there was no room
  bool zero_seen_ = false;
  std::vector<uint32_t> duplicates_;
};

// A row that is selected by the first bits of its key.
struct KeyedRow {
  uint64_t key, more;
};

// The rows whose first 16 bits are from `first` to `last` - 1, in their order. `counts`, the rows
// of each block, is set to the number of selected ones; they have to add up to all rows.
std::vector<KeyedRow> pick_rows(std::span<const KeyedRow> rows, std::span<uint32_t> counts,
                                uint32_t first, uint32_t last);

// The documents of a block without their duplicate lines.
struct KeptDocuments {
  std::vector<std::string_view> documents;  // in the block's text, or in `changed`
  std::string changed;                      // the documents that lost lines
  std::vector<uint64_t> rows;               // index of the document in the block
  std::vector<uint64_t> remnants;           // documents that were dropped: too little was left
  std::array<RuleCount, kNumRules> counts{};
  std::vector<Sample> samples;
};

// The hashes of a block that cannot be recomputed from its kept text, as 3 words each: those of
// whole documents, and those of the lines of documents that were dropped (`all`: of all lines).
std::vector<uint32_t> pick_hashes(std::span<const HashRow> hashes,
                                  std::span<const DocumentRow> documents,
                                  std::span<const uint64_t> remnants, bool all);

// A document whose lines are excluded from comparison: its row and its lines in the block.
struct LeftOut {
  uint32_t row, first_line, line_end;
};

// The hashes of a block without those of the documents `left_out`, in increasing order.
std::vector<HashRow> leave_out(std::span<const HashRow> hashes, std::span<const LeftOut> left_out);

// `removed` holds HashRow::line values, sorted, and near copies after them. Fails (false) when rows lie outside the text.
bool keep_documents(std::string_view text, std::span<const DocumentRow> documents,
                    std::span<const uint32_t> removed, const CleanOptions& options,
                    KeptDocuments& kept);

}  // namespace lowtide
