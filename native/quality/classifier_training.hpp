// Train a classifier of two classes: a fastText model whose rows have one number.
//
// A text is the mean of its rows (words of a dictionary, bigrams in hashed buckets), and the
// difference of its two outputs is twice that mean: a logistic regression, stored in fastText's
// format. It is fitted by AdaGrad, batch by batch. A batch has two steps, each on any number of
// threads: first the rows and the error of every example are computed with the weights from before
// the batch, and sorted into partitions of rows; then the errors of each partition are summed in the
// order of the examples, and its rows updated. Both are divided into the same tasks whatever the
// number of threads, so the result is the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "corpus/cleaner.hpp"
#include "quality/fasttext_model.hpp"

namespace lowtide {

// A passage of a document that is one example.
struct Passage {
  uint64_t hash;   // of its text, because equal texts are one example
  uint64_t group;  // of the part of the document it is from: neighbours have the same
  uint32_t size;
  uint32_t label;  // 1: good
};

// Cut documents into passages of about `passage_bytes` and keep those whose hash is at most the
// limit of their class. Documents of inputs before `num_good` are good. Returns false if a document
// lies outside of the text.
bool pick_passages(std::string_view text, std::span<const DocumentRow> documents, uint64_t num_good,
                   size_t passage_bytes, uint64_t limit_other, uint64_t limit_good,
                   std::vector<Passage>& rows, std::string& kept);

// Words with their counts: the bytes of all, the end of each, the counts.
struct WordList {
  std::vector<char> bytes;
  std::vector<uint64_t> ends, counts;
  size_t size() const { return ends.size(); }
  std::string_view word(size_t at) const {
    const size_t begin = at == 0 ? 0 : ends[at - 1];
    return {bytes.data() + begin, ends[at] - begin};
  }
  void add(std::string_view word, uint64_t count);
};

// Counts the words of one partition (by their hash) of several, in a table of bounded size.
class WordCounter {
 public:
  WordCounter(uint32_t partition, uint32_t num_partitions, size_t table_bytes);
  // Count the words of texts that end at `ends`; false once the table is full.
  bool add(std::string_view text, std::span<const uint64_t> ends);
  // The words that occur at least `min_count` times.
  WordList list(uint64_t min_count) const;

 private:
  bool count(std::string_view word);
  void grow();

  uint32_t partition_, num_partitions_;
  size_t table_bytes_;
  WordList words_;
  std::vector<uint32_t> hashes_, slots_;
};

// The `most` most frequent words, ordered by count, then by their bytes.
WordList choose_words(std::span<const WordList* const> lists, size_t most);

struct TrainingNumbers {
  uint32_t bucket, min_count, epochs;
  float first_sum;  // initial sum of squares of gradients: rare rows change little
};

class ClassifierTrainer {
 public:
  ClassifierTrainer(const WordList& words, const TrainingNumbers& numbers);

  // One batch: texts that end at `ends`, 1 for good ones, the weight of an error by class. Returns
  // the sum of their losses; -1 if `ends` exceed the text.
  double step(std::string_view text, std::span<const uint64_t> ends,
              std::span<const uint8_t> labels, std::array<float, 2> weights, float rate,
              size_t num_threads);
  // The scores of the good class, as in the fasttext package.
  std::vector<float> score(std::string_view text, std::span<const uint64_t> ends,
                           size_t num_threads) const;
  // The whole file of the model, in pieces, so that it is never in memory twice.
  void write(int file, std::array<uint64_t, 2> label_counts) const;

  LineVector<float>& rows() { return model_.input_.dense; }
  std::vector<float>& sums() { return sums_; }
  size_t num_words() const { return words_.size(); }

 private:
  static constexpr size_t kPartitions = 64, kTaskExamples = 8, kLineRows = 16;
  struct Change {
    uint32_t row;
    float gradient;
  };
  struct Task {
    std::array<std::vector<Change>, kPartitions> changes;
    std::vector<uint32_t> rows;
    FastTextModel::Scratch scratch;
    double loss = 0;
  };
  void judge(std::string_view text, uint8_t label, const std::array<float, 2>& weights, Task& task);
  void change(size_t partition, size_t num_tasks, float rate, float num_examples);

  WordList words_;
  TrainingNumbers numbers_;
  FastTextModel model_;
  std::vector<float> sums_, gradients_;  // the gradients of the current batch
  std::vector<Task> tasks_;
};

}  // namespace lowtide
