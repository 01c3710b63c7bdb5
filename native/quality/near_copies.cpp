#include "quality/near_copies.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "corpus/text_hash.hpp"
#include "system/clones.hpp"

namespace lowtide {
namespace {

constexpr size_t kMostWords = 1 << 20;
constexpr uint64_t kBase = 0x9E3779B97F4A7C15ULL | 1;
// Limits of a bucket: how many of its documents later ones are compared with, and how many contents
// are stored. The more different documents it has, the fewer each is compared with, besides those
// just before it.
constexpr size_t kAnchors = 16, kFewAnchors = 2, kLargeBucket = 128, kBefore = 2, kMostKnown = 4096;

// Each hash is a permutation of 32 bits. The compiler vectorizes the loop over n-grams.
LOWTIDE_CLONES void take_minima(const uint32_t* grams, size_t count, const uint32_t* masks,
                                const uint32_t* factors, size_t num_hashes, uint32_t* minima) {
  for (size_t number = 0; number < num_hashes; ++number) {
    const uint32_t mask = masks[number], factor = factors[number];
    uint32_t least = ~uint32_t{0};
    for (size_t at = 0; at < count; ++at) least = std::min(least, (grams[at] ^ mask) * factor);
    minima[number] = least;
  }
}

// Sort hashes: by their first bits into as many buckets as there are hashes, which are then short.
void sort_hashes(std::span<uint64_t> hashes, std::vector<uint64_t>& other,
                 std::vector<uint32_t>& ends) {
  if (hashes.size() < 32) return std::sort(hashes.begin(), hashes.end());
  const int shift = 64 - std::bit_width(hashes.size() - 1);
  ends.assign((size_t{1} << (64 - shift)) + 1, 0);
  for (const uint64_t hash : hashes) ++ends[(hash >> shift) + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  other.assign(hashes.begin(), hashes.end());
  for (const uint64_t hash : other) hashes[ends[hash >> shift]++] = hash;
  for (size_t at = 1; at < hashes.size(); ++at) {  // no hash is far from its place
    const uint64_t hash = hashes[at];
    size_t to = at;
    for (; to > 0 && hashes[to - 1] > hash; --to) hashes[to] = hashes[to - 1];
    hashes[to] = hash;
  }
}

size_t count_anchors(size_t before) {
  if (before <= kLargeBucket) return std::min(kAnchors, before);
  return std::max(kFewAnchors, kAnchors * kLargeBucket / before);
}

}  // namespace

GramHasher::GramHasher(size_t n) : n_(n) {
  for (size_t step = 1; step < n; ++step) power_ *= kBase;
}

bool GramHasher::hash(std::string_view document) {
  words_.clear();
  grams_.clear();
  if (!splitter_.split(document, 0, kMostWords, words_)) return false;
  uint64_t rolling = 0;
  size_t count = 0;
  // Real words are moved to the front, because each is needed again when it leaves the n-gram.
  for (const Word& word : words_) {
    if ((word.facts & kWordReal) == 0) continue;
    if (count >= n_) rolling -= words_[count - n_].hash * power_;
    rolling = rolling * kBase + word.hash;
    words_[count++].hash = word.hash;
    if (count >= n_) grams_.push_back(scatter64(rolling));
  }
  if (grams_.empty() && count > 0) grams_.push_back(scatter64(rolling + count));
  return !grams_.empty();
}

NearSigner::NearSigner(const NearOptions& options)
    : options_(options),
      least_grams_(options.threshold < 1 ? options.threshold / (1 - options.threshold) : 0),
      hasher_(options.ngram) {
  const size_t count = options.bands * options.rows;
  minima_.resize(count);
  for (size_t number = 0; number < count; ++number) {
    const uint64_t random = scatter64(scatter64(number + 1) + kBase);
    masks_.push_back(static_cast<uint32_t>(random));
    factors_.push_back(static_cast<uint32_t>(random >> 32) | 1);
  }
}

bool NearSigner::sign(std::string_view text, std::span<const DocumentRow> documents) {
  rows.clear();
  unsorted_.clear();
  radix_ends.fill(0);
  num_signed = num_skipped = 0;
  for (size_t row = 0; row < documents.size(); ++row) {
    const DocumentRow& source = documents[row];
    if (source.begin > source.end || source.end > text.size()) return false;
    const bool whole = source.flags == (kDocumentFirst | kDocumentLast);
    if (!whole || !hasher_.hash(text.substr(source.begin, source.end - source.begin))) {
      ++num_skipped;
      continue;
    }
    ++num_signed;
    sign_document(source, static_cast<uint32_t>(row));
  }
  std::array<uint64_t, 256> next{};
  for (const NearRow& row : unsorted_) ++radix_ends[row.key >> 56];
  uint64_t total = 0;
  for (size_t value = 0; value < 256; ++value) {
    next[value] = total;
    total += radix_ends[value];
    radix_ends[value] = total;
  }
  rows.resize(unsorted_.size());
  for (const NearRow& row : unsorted_) rows[next[row.key >> 56]++] = row;
  return true;
}

void NearSigner::sign_document(const DocumentRow& document, uint32_t row) {
  const std::vector<uint64_t>& grams = hasher_.grams();
  short_grams_.clear();
  for (const uint64_t gram : grams) short_grams_.push_back(static_cast<uint32_t>(gram >> 32));
  take_minima(short_grams_.data(), short_grams_.size(), masks_.data(), factors_.data(),
              minima_.size(), minima_.data());
  const double count = static_cast<double>(grams.size());
  const uint32_t bands = count < least_grams_ ? 1 : options_.bands;
  const uint64_t check = document.hash_high;
  for (uint32_t band = 0; band < bands; ++band) {
    uint64_t key = band + 1;
    for (size_t at = band * options_.rows; at < (band + 1) * options_.rows; ++at) {
      key = fold_multiply(key ^ minima_[at], kBase) + at;
    }
    key = scatter64(key);
    unsorted_.push_back(
        {(key & ~uint64_t{0xFFFF}) | (check >> 32 & 0xFFFF), static_cast<uint32_t>(check), row});
  }
}

size_t BucketRows::add(std::span<const NearRow> rows, uint64_t block, size_t first) {
  const size_t count =
      std::min(capacity_ - rows_.size(), rows.size() - std::min(first, rows.size()));
  for (const NearRow& row : rows.subspan(std::min(first, rows.size()), count)) {
    rows_.push_back({row.key >> 16, block << 32 | row.row, (row.key & 0xFFFF) << 32 | row.check});
  }
  return count;
}

std::span<const BucketRow> BucketRows::sort() {
  std::sort(rows_.begin(), rows_.end());
  return rows_;
}

size_t NearBuckets::add(std::span<const BucketRow> rows, size_t most) {
  if (taken_) {
    pairs.clear();
    wanted.clear();
    taken_ = false;
  }
  size_t at = 0;
  for (; at < rows.size() && pairs.size() + wanted.size() < most; ++at) {
    if (!begun_ || rows[at].key != key_) {
      finish();
      begin(rows[at].key);
    }
    take(rows[at]);
  }
  return at;
}

void NearBuckets::begin(uint64_t key) {
  begun_ = true;
  key_ = key;
  num_different_ = 0;
  last_place_ = ~uint64_t{0};
  anchors_.clear();
  before_.clear();
  if (first_.size() > kAnchors) {
    std::unordered_map<uint64_t, uint64_t>().swap(first_);  // clearing visits all its buckets
  } else {
    first_.clear();
  }
}

void NearBuckets::finish() {
  if (!begun_) return;
  begun_ = false;
  num_capped += num_different_ > kAnchors + kBefore;
  largest = std::max(largest, num_different_);
}

void NearBuckets::sort() {
  for (std::vector<PlacePair>* rows : {&pairs, &wanted}) {
    std::sort(rows->begin(), rows->end());
    rows->erase(std::unique(rows->begin(), rows->end()), rows->end());
  }
  taken_ = true;
}

void NearBuckets::take(const BucketRow& row) {
  if (row.place == last_place_) return;  // two bands of one document
  last_place_ = row.place;
  const auto found = first_.find(row.check);
  if (found != first_.end()) {
    pair_with(row.place, found->second | kExactCopy);
    wanted.push_back({row.place, kWantPlace});
    wanted.push_back({found->second, kWantPlace});
    return;
  }
  if (first_.size() < kMostKnown) first_.emplace(row.check, row.place);
  const size_t anchors = std::min(count_anchors(num_different_), anchors_.size());
  for (size_t at = 0; at < anchors; ++at) pair_with(row.place, anchors_[at]);
  for (const uint64_t place : before_) {
    if (anchors == 0 || place > anchors_[anchors - 1]) pair_with(row.place, place);
  }
  if (num_different_ == 1) wanted.push_back({anchors_[0], kWantGrams});
  if (num_different_ > 0) wanted.push_back({row.place, kWantGrams});
  if (anchors_.size() < kAnchors) anchors_.push_back(row.place);
  if (before_.size() == kBefore) before_.erase(before_.begin());
  before_.push_back(row.place);
  ++num_different_;
}

bool GramSets::make(std::string_view text, std::span<const DocumentRow> documents, uint64_t block,
                    std::span<const PlacePair> wanted, uint64_t begin) {
  index.clear();
  grams.clear();
  for (const PlacePair& want : wanted) {
    const size_t row = want.first & 0xFFFFFFFF;
    if (want.first >> 32 != block || row >= documents.size()) return false;
    if (!index.empty() && index.back().place == want.first) continue;  // n-grams come first
    const DocumentRow& source = documents[row];
    if (source.begin > source.end || source.end > text.size()) return false;
    const size_t before = grams.size();
    if (want.second == kWantGrams &&
        hasher_.hash(text.substr(source.begin, source.end - source.begin))) {
      grams.insert(grams.end(), hasher_.grams().begin(), hasher_.grams().end());
      sort_hashes(std::span(grams).subspan(before), unsorted_, ends_);
      grams.erase(std::unique(grams.begin() + static_cast<ptrdiff_t>(before), grams.end()),
                  grams.end());
    }
    const uint64_t line_end =
        row + 1 < documents.size() ? documents[row + 1].line_base : uint64_t{kDocumentMark};
    index.push_back({want.first, begin + before, grams.size() - before,
                     source.line_base << 32 | line_end, source.input_index, source.ordinal});
  }
  return true;
}

}  // namespace lowtide
