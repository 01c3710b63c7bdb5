// FastText models, .bin and .ftz: read them, with every size checked against the file, and predict
// the labels of a text.
//
// With few labels, the output layer is multiplied into the rows of the input once: a row then has a
// number for each label instead of `dim`, and a text's outputs are the mean of its rows. So a model of
// two classes with 2 million buckets of 100 takes 16 MB, not 800.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quality/line_allocator.hpp"
#include "quality/word_sums.hpp"

namespace lowtide {

// The error in a model's file, for users.
struct ModelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class FastTextModel {
 public:
  // Throws ModelError.
  explicit FastTextModel(const std::string& path);

  // The probability of every label as in the fasttext package (p + 1e-5); all 0 if no part of the
  // text is known. Newlines are treated as blanks. `scores` has a number for each label.
  struct Scratch {
    struct Word {
      std::string_view text;
      WordSums::Key key;
      bool is_end = false, is_kept = false;  // cached: its sum is stored under its key
    };
    uint64_t num_rows = 0;
    std::vector<int32_t> hashes;
    std::vector<float> hidden,
        outputs;  // the sum of rows, then their mean; a number for each label
    std::string word;
    std::vector<uint32_t> buckets;
    std::vector<float> word_values;
    WordSums sums;  // once there was enough text to pay off; of one model
    const FastTextModel* sums_of = nullptr;
    size_t text_bytes = 0;
  };
  void predict(std::string_view text, Scratch& scratch, std::vector<float>& scores) const;
  // The input rows whose mean represents a text, in the order of the text; words, then n-grams.
  void list_rows(std::string_view text, Scratch& scratch, std::vector<uint32_t>& rows) const;

  const std::vector<std::string>& labels() const { return labels_; }
  size_t memory_bytes() const;

 private:
  friend class ModelReader;
  friend class ClassifierTrainer;  // makes one, and changes its rows
  FastTextModel() = default;
  enum Loss : int32_t { kHierarchical = 1, kNegative = 2, kSoftmax = 3, kOneVsAll = 4 };
  static constexpr int64_t kMostCount = 1'000'000'000'000'000;  // as in fastText
  struct Quantizer {
    int32_t dim = 0, parts = 0, part_size = 0, last_size = 0;
    std::vector<float> centroids;
    void add(const uint8_t* codes, float factor, float* out) const;
  };
  struct Matrix {
    uint64_t rows = 0, width = 0;
    LineVector<float> dense;
    std::vector<uint8_t> codes, norm_codes;
    Quantizer parts, norms;
    // Add a row to `out`.
    void add_row(uint64_t row, float* out) const;
    // Store decoded numbers instead of codes, if they take no more than a few mebibytes.
    void expand_small();
  };
  struct Node {
    int32_t left = -1, right = -1;
    int64_t count = 0;
  };

  void index_words();
  void index_buckets();
  // Sort the rows of n-grams that were not pruned by bucket, so that their indices need no lookup.
  void order_rows();
  int64_t find_word(std::string_view word, uint32_t hash) const;
  // Each calls take(row) for the rows of its argument.
  template <typename Take>
  void visit_bucket(uint64_t bucket, const Take& take) const;
  template <typename Take>
  void visit_word(std::string_view word, bool is_end, Scratch& scratch, const Take& take) const;
  // The buckets of a word's subwords, without pruned ones.
  void list_pieces(std::string_view word, Scratch& scratch) const;
  template <typename Take>
  void visit_ngrams(const std::vector<int32_t>& hashes, const Take& take) const;
  template <typename Take>
  void visit_text(std::string_view text, Scratch& scratch, const Take& take) const;
  // Add the words of a text for a model with subwords: sums a word's rows, then adds that to the
  // text's sum.
  void add_words(std::string_view text, Scratch& scratch) const;
  void add_word(const Scratch::Word& word, Scratch& scratch) const;
  // Add a word's rows to `values`; returns their number.
  uint32_t add_rows(const Scratch::Word& word, Scratch& scratch, float* values) const;
  void add_text(std::string_view text, Scratch& scratch) const;
  void add_pairs(std::string_view text, Scratch& scratch) const;
  void compute_outputs(Scratch& scratch) const;
  void build_tree(const std::vector<int64_t>& counts);
  void walk_tree(const std::vector<float>& outputs, std::vector<float>& scores) const;

  int32_t dim_ = 0, word_ngrams_ = 0, bucket_ = 0, min_n_ = 0, max_n_ = 0;
  Loss loss_ = kSoftmax;
  uint64_t num_words_ = 0;
  std::vector<char> word_bytes_;
  std::vector<uint32_t> word_ends_, word_slots_;
  std::vector<std::string> labels_;
  bool pruned_ = false;
  // Sorted: bucket, row; each once. Empty once rows are in this order.
  std::vector<std::pair<uint32_t, uint32_t>> kept_buckets_;
  // If there are few enough buckets: a bit for each one not pruned, and a count of these before
  // every 64 buckets.
  std::vector<uint64_t> kept_bits_;
  std::vector<uint32_t> kept_before_;
  Matrix input_, output_;
  bool folded_ = false;
  std::vector<Node> tree_;
};

uint32_t hash_fasttext(std::string_view bytes);

constexpr std::string_view kFastTextEnd = "</s>", kFastTextLabel = "__label__";

inline bool is_fasttext_blank(char byte) {
  constexpr uint64_t kBlanks =
      uint64_t{1} << ' ' | 1u << '\n' | 1u << '\t' | 1u << '\v' | 1u << '\f' | 1u << '\r' | 1u;
  const auto value = static_cast<uint8_t>(byte);
  return value <= ' ' && (kBlanks >> value & 1) != 0;
}

// The position of the first blank from `at` on, or the end.
inline size_t find_fasttext_blank(std::string_view text, size_t at) {
  constexpr uint64_t kOnes = 0x0101010101010101u;
  while (at + 8 <= text.size()) {
    uint64_t bytes;
    std::memcpy(&bytes, text.data() + at, 8);
    // The high bit of the first byte up to a blank's code is set; the bits after it may be wrong.
    const uint64_t low = (bytes - kOnes * (' ' + 1)) & ~bytes & kOnes * 0x80;
    if (low == 0) {
      at += 8;
      continue;
    }
    at += static_cast<size_t>(std::countr_zero(low)) / 8;
    if (is_fasttext_blank(text[at])) return at;
    ++at;
  }
  while (at < text.size() && !is_fasttext_blank(text[at])) ++at;
  return at;
}

// Calls take(word, is_end) for every word of a text, the end of its line last: text after an end is
// another line to fastText. Newlines are treated as blanks.
template <typename Take>
void split_fasttext(std::string_view text, const Take& take) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    at = find_fasttext_blank(text, at);
    const std::string_view word = text.substr(begin, at - begin);
    if (word == kFastTextEnd) break;
    if (!word.empty()) take(word, false);
    ++at;
  }
  take(kFastTextEnd, true);
}

}  // namespace lowtide
