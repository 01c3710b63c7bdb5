// Exact deduplication of one partition of hashes, and what remains of a block afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "corpus_clean.hpp"

namespace lowtide {

// Rows must be added in the order of the corpus: the first of equal ones stays.
class DuplicateFinder {
 public:
  // Room for `capacity` rows; memory is fixed here at 16 bytes for each and half as many more.
  explicit DuplicateFinder(size_t capacity);

  // Add the rows of a block that belong to this pass (of `num_passes` over the same partition).
  // Returns false when there is no more room.
  bool add(uint64_t block, std::span<const HashRow> rows, uint32_t pass, uint32_t num_passes);
  // The places of all duplicates, sorted: block in the upper half, HashRow::line in the lower.
  std::vector<uint64_t> take();

  static constexpr size_t planned_bytes(size_t rows) { return (rows + rows / 2 + 64) * 16; }

 private:
  struct Slot {
    uint64_t high;
    uint32_t low;
    uint32_t used;
  };
  std::vector<Slot> slots_;
  size_t capacity_, held_ = 0;
  std::vector<uint64_t> duplicates_;
};

// The documents of a block without their duplicate lines.
struct KeptDocuments {
  std::vector<std::string_view> documents;  // in the block's text, or in `changed`
  std::string changed;                      // the documents that lost lines
  std::vector<uint64_t> rows;               // which document of the block it was
  std::array<RuleCount, kNumRules> counts{};
  std::vector<Sample> samples;
};

// `removed` holds HashRow::line values, sorted. Fails (false) when rows lie outside the text.
bool keep_documents(std::string_view text, std::span<const DocumentRow> documents,
                    std::span<const uint32_t> removed, const CleanOptions& options,
                    KeptDocuments& kept);

}  // namespace lowtide
