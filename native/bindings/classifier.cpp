// The classifier's training, for Python.
//
// Memory:  copies only results; rows and sums of a trainer are views of it
#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "bindings/bindings.hpp"
#include "quality/classifier_training.hpp"

namespace lowtide {
using namespace nb::literals;
namespace {

constexpr uint32_t kMostBuckets = 1u << 30;

nb::tuple pick(Input<uint8_t> text, Input<uint8_t> documents, uint64_t num_good,
               size_t passage_bytes, uint64_t limit_other, uint64_t limit_good) {
  require(passage_bytes >= 64 && passage_bytes <= 1u << 30, "passage_bytes must be 64 to 2^30");
  const auto rows = as_rows<DocumentRow>(documents);
  std::vector<Passage> passages;
  std::string kept;
  bool good;
  {
    nb::gil_scoped_release release;
    good = pick_passages(as_text(text), rows, num_good, passage_bytes, limit_other, limit_good,
                         passages, kept);
  }
  require(good, "a document lies outside its block");
  std::vector<char> bytes(kept.begin(), kept.end());
  return nb::make_tuple(to_view<uint8_t>(std::move(passages)), to_view<uint8_t>(std::move(bytes)));
}

WordList* choose(const std::vector<const WordList*>& lists, size_t most) {
  for (const WordList* list : lists) require(list != nullptr, "a list of words is missing");
  nb::gil_scoped_release release;
  return new WordList(choose_words(lists, most));
}

ClassifierTrainer* make_trainer(const WordList& words, uint32_t bucket, uint32_t min_count,
                                uint32_t epochs, float first_sum) {
  require(bucket >= 1 && bucket <= kMostBuckets, "bucket must be 1 to 2^30");
  require(min_count <= 1u << 30 && epochs <= 1u << 30, "these numbers are too large");
  require(std::isfinite(first_sum) && first_sum > 0, "first_sum must be above 0");
  require(words.size() <= 1u << 30, "there are more than 2^30 words");
  return new ClassifierTrainer(words, {bucket, min_count, epochs, first_sum});
}

double step(ClassifierTrainer& self, Input<uint8_t> text, Input<uint64_t> ends,
            Input<uint8_t> labels, std::array<float, 2> weights, float rate, size_t num_threads) {
  require_threads(num_threads);
  require(std::isfinite(rate) && std::isfinite(weights[0]) && std::isfinite(weights[1]),
          "rate and weights must be numbers");
  double loss;
  {
    nb::gil_scoped_release release;
    loss = self.step(as_text(text), as_span(ends), as_span(labels), weights, rate, num_threads);
  }
  require(loss >= 0, "texts and labels differ in number, or lie outside");
  return loss;
}

View<float> score(const ClassifierTrainer& self, Input<uint8_t> text, Input<uint64_t> ends,
                  size_t num_threads) {
  require_threads(num_threads);
  std::vector<float> scores;
  {
    nb::gil_scoped_release release;
    scores = self.score(as_text(text), as_span(ends), num_threads);
  }
  require(scores.size() == ends.shape(0), "a text lies outside");
  return to_view<float>(std::move(scores));
}

void restore(ClassifierTrainer& self, Input<float> rows, Input<float> sums) {
  require(rows.shape(0) == self.rows().size() && sums.shape(0) == self.sums().size(),
          "these are the rows of another model");
  std::copy(rows.data(), rows.data() + rows.shape(0), self.rows().begin());
  std::copy(sums.data(), sums.data() + sums.shape(0), self.sums().begin());
}

}  // namespace

void bind_classifier(nb::module_& m) {
  m.def("pick_passages", &pick, "text"_a, "documents"_a, "num_good"_a, "passage_bytes"_a,
        "limit_other"_a, "limit_good"_a,
        "Rows of passages (hash, group, size and label) and their texts, one after the other.");
  nb::class_<WordList>(m, "WordList").def("__len__", &WordList::size);
  nb::class_<WordCounter>(m, "WordCounter")
      .def(
          "__init__",
          [](WordCounter* self, uint32_t partition, uint32_t num_partitions, size_t table_bytes) {
            require(partition < num_partitions, "no such partition");
            new (self) WordCounter(partition, num_partitions, table_bytes);
          },
          "partition"_a, "num_partitions"_a, "table_bytes"_a)
      .def(
          "add",
          [](WordCounter& self, Input<uint8_t> text, Input<uint64_t> ends) {
            const nb::gil_scoped_release release;
            return self.add(as_text(text), as_span(ends));
          },
          "text"_a, "ends"_a)
      .def("list", &WordCounter::list, "min_count"_a);
  m.def("choose_words", &choose, "lists"_a, "most"_a, nb::rv_policy::take_ownership);
  nb::class_<ClassifierTrainer>(m, "ClassifierTrainer")
      .def(nb::new_(&make_trainer), "words"_a, "bucket"_a, "min_count"_a, "epochs"_a, "first_sum"_a)
      .def("step", &step, "text"_a, "ends"_a, "labels"_a, "weights"_a, "rate"_a, "num_threads"_a)
      .def("score", &score, "text"_a, "ends"_a, "num_threads"_a)
      .def("restore", &restore, "rows"_a, "sums"_a)
      .def(
          "write",
          [](const ClassifierTrainer& self, int file, std::array<uint64_t, 2> label_counts) {
            const nb::gil_scoped_release release;
            self.write(file, label_counts);
          },
          "file"_a, "label_counts"_a)
      .def_prop_ro("num_words", &ClassifierTrainer::num_words)
      .def_prop_ro("rows",
                   [](ClassifierTrainer& self) {
                     return view_bytes(self.rows().data(), self.rows().size(), self);
                   })
      .def_prop_ro("sums", [](ClassifierTrainer& self) {
        return view_bytes(self.sums().data(), self.sums().size(), self);
      });
}

}  // namespace lowtide
