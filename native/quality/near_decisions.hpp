// Decide which near copies are removed: each document, in the order of the corpus, is compared with
// the earlier kept documents that share a key with it.
//
// A document is removed if its Jaccard similarity with a kept one is at least `threshold`. So every
// removed document is similar to a kept one, however long a chain of similar documents is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quality/place_rows.hpp"

namespace lowtide {

// A file with sets of n-grams, of documents from `first` on.
struct GramSetFile {
  uint64_t first = 0;
  RowRun index;
  uint64_t grams_at = 0;
};

// A removed document, as stored in work files.
struct NearCopyRow {
  uint64_t place, kept;
  double similarity;
  uint64_t lines;  // as in GramSetRow
  uint64_t input, ordinal, kept_input, kept_ordinal;
};

class NearDecider {
 public:
  // Rows of removed documents are appended to the file `out`. Exact copies of kept documents are
  // left to exact deduplication, if the kept one is at `copies_left_from` or later.
  NearDecider(std::vector<GramSetFile> sets, double threshold, uint64_t copies_left_from,
              std::string out);
  NearDecider(const NearDecider&) = delete;
  NearDecider& operator=(const NearDecider&) = delete;
  ~NearDecider();

  // Process the next pairs, in order.
  void add(std::span<const PlacePair> pairs);
  // Write the remaining rows.
  void finish();

  uint64_t num_removed = 0, num_compared = 0, num_unlike = 0;

 private:
  struct Cursor {  // the last chunk read of an index
    size_t file = ~size_t{0};
    uint64_t held = ~uint64_t{0};
    std::vector<GramSetRow> chunk;
    std::vector<uint64_t> grams;
  };

  void take(const PlacePair& pair);
  GramSetRow find_set(uint64_t place, Cursor& cursor);
  void read_grams(const GramSetRow& row, Cursor& cursor);
  double measure_similarity(const GramSetRow& earlier);
  bool find_removed(uint64_t place, NearCopyRow& found);
  void remove(const NearCopyRow& row);
  void flush();

  std::vector<GramSetFile> sets_;
  double threshold_;
  uint64_t copies_left_from_;
  OpenFiles files_;
  std::vector<RowIndex<GramSetRow>> indexes_;
  std::string out_;
  int descriptor_;
  std::vector<uint64_t> removed_keys_;   // the first value of every chunk in the file
  std::vector<NearCopyRow> removed_;     // the chunk that is not full yet
  std::vector<NearCopyRow> read_chunk_;  // the last one read
  uint64_t read_number_ = ~uint64_t{0};
  Cursor later_cursor_, earlier_cursor_;
  GramSetRow later_{};
  bool begun_ = false, decided_ = false, loaded_ = false;
};

}  // namespace lowtide
