// Near copies, found by MinHash: documents that share most of their word n-grams.
//
// A document's n-grams are hashed once (words are split as for quality rules, without punctuation)
// and reduced to minima; bands of minima are hashed to keys; and documents that share a key are
// compared by all of their n-grams (quality/near_decisions.hpp). Results do not depend on how the
// corpus was divided.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "corpus/cleaner.hpp"
#include "quality/words.hpp"

namespace lowtide {

// The n-grams of a document's words.
class GramHasher {
 public:
  explicit GramHasher(size_t n);

  // Hash a document's n-grams, in order and with repetitions; if it has fewer words than n, all of
  // them are one n-gram. False: it has no words, or too many.
  bool hash(std::string_view document);
  const std::vector<uint64_t>& grams() const { return grams_; }

 private:
  size_t n_;
  uint64_t power_ = 1;
  WordSplitter splitter_;
  std::vector<Word> words_;
  std::vector<uint64_t> grams_;
};

struct NearOptions {
  double threshold = 0.8;
  uint32_t ngram = 5, bands = 13, rows = 6;
};

// One band of a document's signature, as stored in work files.
struct NearRow {
  uint64_t key;    // 48 bits of the band, then the highest 16 of the content's 48
  uint32_t check;  // the content's others
  uint32_t row;    // of the document in its block
};

class NearSigner {
 public:
  explicit NearSigner(const NearOptions& options);

  // Sign the whole documents of a block; false when rows lie outside the text.
  bool sign(std::string_view text, std::span<const DocumentRow> documents);

  std::vector<NearRow> rows;               // by the first byte of their keys
  std::array<uint64_t, 256> radix_ends{};  // where each value's rows end
  uint64_t num_signed = 0, num_skipped = 0;

 private:
  void sign_document(const DocumentRow& document, uint32_t row);

  NearOptions options_;
  double least_grams_;  // with fewer, only equal sets are similar enough
  GramHasher hasher_;
  std::vector<uint32_t> short_grams_, masks_, factors_, minima_;
  std::vector<NearRow> unsorted_;
};

// Two numbers to sort by: a pair of documents (the later one first), or a document and what is
// wanted of it. A document is its block's index in the corpus and its row there.
struct PlacePair {
  uint64_t first, second;

  friend bool operator==(const PlacePair&, const PlacePair&) = default;
  friend auto operator<=>(const PlacePair&, const PlacePair&) = default;
};
constexpr uint64_t kExactCopy = uint64_t{1} << 63;  // of a pair's second: contents are the same
constexpr uint64_t kWantGrams = 0, kWantPlace = 1;  // of a document's second

// A document under one of its keys.
struct BucketRow {
  uint64_t key, place, check;

  friend bool operator==(const BucketRow&, const BucketRow&) = default;
  friend auto operator<=>(const BucketRow&, const BucketRow&) = default;
};

// Rows of one partition of the keys, until they are sorted.
class BucketRows {
 public:
  explicit BucketRows(size_t capacity) : capacity_(capacity) { rows_.reserve(capacity); }
  // Add a block's rows from `first` on, as far as there is room; returns their number.
  size_t add(std::span<const NearRow> rows, uint64_t block, size_t first);
  std::span<const BucketRow> sort();
  void clear() { rows_.clear(); }

 private:
  size_t capacity_;
  std::vector<BucketRow> rows_;
};

// The pairs of documents that share a key. The data stored for a bucket is limited, so that buckets
// of any size can be processed; a large one is usually caused by a page template.
class NearBuckets {
 public:
  // Process sorted rows until there are about `most` pairs; returns the number of rows.
  size_t add(std::span<const BucketRow> rows, size_t most);
  // End the last bucket.
  void finish();
  // Sort the results since the last call, without repeats; they stay in `pairs` and `wanted`.
  void sort();

  std::vector<PlacePair> pairs, wanted;
  uint64_t num_capped = 0, largest = 0;

 private:
  void begin(uint64_t key);
  void take(const BucketRow& row);
  void pair_with(uint64_t place, uint64_t earlier) { pairs.push_back({place, earlier}); }

  bool taken_ = false;  // results were read: the next call starts with empty ones
  bool begun_ = false;
  uint64_t key_ = 0, num_different_ = 0, last_place_ = 0;
  std::vector<uint64_t> anchors_, before_;
  std::unordered_map<uint64_t, uint64_t> first_;  // by content: its first position
};

// A document that is needed for comparison, as stored in work files.
struct GramSetRow {
  uint64_t place;
  uint64_t begin, count;  // of its n-grams in the file
  uint64_t lines;         // first line in the high half, the end of its lines in the low one
  uint64_t input, ordinal;
};

// Sets of n-grams of the documents of a block, sorted, without repeats.
class GramSets {
 public:
  explicit GramSets(size_t n) : hasher_(n) {}

  // `wanted` are documents of this block, sorted; `begin` is the position of the next n-gram in the
  // file. False if rows lie outside the block.
  bool make(std::string_view text, std::span<const DocumentRow> documents, uint64_t block,
            std::span<const PlacePair> wanted, uint64_t begin);

  std::vector<GramSetRow> index;
  std::vector<uint64_t> grams;

 private:
  GramHasher hasher_;
  std::vector<uint64_t> unsorted_;
  std::vector<uint32_t> ends_;
};

}  // namespace lowtide
