// Bindings for counting pieces and learning merges. No logic here.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.hpp"
#include "bindings/tokenizer_arguments.hpp"
#include "tokenizer/learning/counter.hpp"
#include "tokenizer/learning/merger.hpp"
#include "tokenizer/learning/round_learner.hpp"

namespace lowtide {

namespace {

void count_texts(PieceCounter& counter, const std::vector<nb::bytes>& texts) {
  std::vector<PieceCounter::Text> views;
  for (const nb::bytes& text : texts) {
    views.push_back({static_cast<const uint8_t*>(text.data()), text.size()});
  }
  const nb::gil_scoped_release release;
  counter.count_texts(views);
}

uint64_t count_file(PieceCounter& counter, const FileName& path, uint64_t begin, uint64_t stop,
                    uint64_t end) {
  require(begin <= end, "the part to count begins behind the end of the file");
  const nb::gil_scoped_release release;
  return counter.count_file(path.bytes, begin, stop, end);
}

std::vector<FileName> checkpoint(PieceCounter& counter) {
  const nb::gil_scoped_release release;
  std::vector<FileName> names;
  for (std::string& run : counter.checkpoint()) names.push_back({std::move(run)});
  return names;
}

void adopt(PieceCounter& counter, const std::vector<FileName>& runs) {
  std::vector<std::string> names;
  for (const FileName& run : runs) names.push_back(run.bytes);
  counter.adopt(std::move(names));
}

std::vector<uint64_t> save_counts(PieceCounter& counter, const FileName& path) {
  const nb::gil_scoped_release release;
  return counter.save(path.bytes);
}

void add_saved(PieceCounter& counter, const FileName& path, uint64_t begin,
               const std::vector<uint64_t>& ends, uint64_t longest) {
  counter.add_saved(path.bytes, begin, ends, longest);
}

uint64_t find_file_cut(const PieceCounter& counter, const FileName& path, uint64_t at,
                       uint64_t end) {
  require(at <= end, "the place to cut is behind the end of the file");
  const nb::gil_scoped_release release;
  return at == 0 ? 0 : counter.find_file_cut(path.bytes, at, end);
}

nb::list drain(PieceCounter& counter) {
  nb::list items;
  counter.drain([&](const uint8_t* bytes, size_t length, uint64_t count) {
    items.append(nb::make_tuple(nb::bytes(bytes, length), count));
  });
  return items;
}

TieBreak tie_break_named(const std::string& name) {
  if (name == "huggingface") return TieBreak::kHuggingFace;
  if (name == "cs336") return TieBreak::kCs336;
  throw std::invalid_argument("unknown tie-break: " + name);
}

template <typename Learner>
void take(Learner& learner, PieceCounter& counter) {
  counter.drain([&](const uint8_t* bytes, size_t length, uint64_t count) {
    learner.add_piece(bytes, length, count);
  });
}

template <typename Symbol>
void take_tables(MergeLearner<Symbol>& learner, PieceCounter& counter) {
  if (learner.num_threads() == 1) return take(learner, counter);
  counter.drain([&](const uint8_t* bytes, size_t length,
                    uint64_t count) { learner.add_piece(bytes, length, count); },
                [&](std::span<const CountShard* const> tables) { learner.add_tables(tables); });
}

template <typename Learner>
void take_items(Learner& learner, const std::vector<std::pair<nb::bytes, uint64_t>>& items) {
  for (const auto& [bytes, count] : items) {
    // Counts of pairs are summed in 64 bits; no text has more pieces of a kind than this limit.
    require(count <= uint64_t{1} << 48 && bytes.size() < UINT32_MAX, "a piece or count too large");
    learner.add_piece(static_cast<const uint8_t*>(bytes.data()), bytes.size(), count);
  }
}

template <typename Learner>
View<uint32_t> merges(const Learner& learner, uint32_t first) {
  std::vector<uint32_t> flat;
  flat.reserve(learner.merges().size() * 3);
  for (const Merge& merge : learner.merges()) {
    flat.insert(flat.end(), {first + merge.left, first + merge.right, first + merge.token});
  }
  return to_view<uint32_t>(std::move(flat));
}

// The methods that all learners share.
template <typename Learner>
void def_learning(nb::class_<Learner>& learner) {
  learner.def("take_items", &take_items<Learner>, nb::arg("items"))
      .def("build", &Learner::build, nb::call_guard<nb::gil_scoped_release>())
      .def("learn", &Learner::learn, nb::arg("target"), nb::arg("max_merges"),
           nb::arg("min_frequency"), nb::call_guard<nb::gil_scoped_release>())
      .def("merges", &merges<Learner>, nb::arg("first") = 0,
           "Left, right and token of each merge, as uint32; bytes have the ids from first on.")
      .def_prop_ro("merges_done", &Learner::merges_done)
      .def_prop_ro("num_words", &Learner::num_words);
}

template <typename Symbol>
void bind_merge_learner(nb::module_& m, const char* name) {
  using Learner = MergeLearner<Symbol>;
  nb::class_<Learner> learner(m, name);
  learner
      .def(
          "__init__",
          [](Learner* self, const std::string& tie_break, size_t longest_token, size_t num_threads,
             size_t many_words) {
            require_threads(num_threads);
            auto tokens = std::make_shared<TokenTable>(tie_break_named(tie_break), longest_token);
            new (self) Learner(std::move(tokens), num_threads, many_words);
          },
          nb::arg("tie_break"), nb::kw_only(), nb::arg("longest_token") = kAnyLength,
          nb::arg("num_threads") = 1, nb::arg("many_words") = Learner::kManyWords)
      .def("take", &take_tables<Symbol>, nb::arg("counter"),
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("bytes", &Learner::bytes);
  def_learning(learner);
}

template <typename Symbol>
void bind_round_learner(nb::module_& m, const char* name) {
  nb::class_<RoundLearner<Symbol>> learner(m, name);
  learner
      .def(
          "__init__",
          [](RoundLearner<Symbol>* self, const std::string& tie_break, const FileName& file_dir,
             size_t memory_bytes, size_t longest_token) {
            new (self) RoundLearner<Symbol>(tie_break_named(tie_break), file_dir.bytes,
                                            memory_bytes, longest_token);
          },
          nb::arg("tie_break"), nb::kw_only(), nb::arg("file_dir"), nb::arg("memory_bytes"),
          nb::arg("longest_token") = kAnyLength)
      .def_prop_ro("rounds", &RoundLearner<Symbol>::rounds)
      .def_prop_ro("parts", &RoundLearner<Symbol>::parts)
      .def("take", &take<RoundLearner<Symbol>>, nb::arg("counter"),
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("file_bytes", &RoundLearner<Symbol>::file_bytes);
  def_learning(learner);
}

}  // namespace

void bind_learning(nb::module_& m) {
  nb::class_<PieceCounter>(m, "PieceCounter")
      .def(
          "__init__",
          [](PieceCounter* self, const std::string& pattern, const std::vector<nb::bytes>& specials,
             size_t num_threads, size_t table_bytes, size_t window_bytes,
             const FileName& spill_dir) {
            require_threads(num_threads);
            require(window_bytes >= 1, "window_bytes must be at least 1");
            new (self) PieceCounter(pattern_named(pattern), as_strings(specials), num_threads,
                                    table_bytes, window_bytes, spill_dir.bytes);
          },
          nb::arg("pattern"), nb::arg("specials"), nb::kw_only(), nb::arg("num_threads"),
          nb::arg("table_bytes"), nb::arg("window_bytes"), nb::arg("spill_dir"))
      .def("count_file", &count_file, nb::arg("path"), nb::arg("begin"), nb::arg("stop"),
           nb::arg("end"))
      .def("count_texts", &count_texts, nb::arg("texts"))
      .def("checkpoint", &checkpoint)
      .def("adopt", &adopt, nb::arg("runs"))
      .def("save", &save_counts, nb::arg("path"))
      .def("add_saved", &add_saved, nb::arg("path"), nb::arg("begin"), nb::arg("ends"),
           nb::arg("longest"))
      .def("find_file_cut", &find_file_cut, nb::arg("path"), nb::arg("at"), nb::arg("end"))
      .def("drain", &drain)
      .def_prop_ro("bytes_done", &PieceCounter::bytes_done)
      .def_prop_ro("pieces_done", &PieceCounter::pieces_done)
      .def_prop_ro("distinct", &PieceCounter::distinct)
      .def_prop_ro("distinct_bytes", &PieceCounter::distinct_bytes)
      .def_prop_ro("largest_window", &PieceCounter::largest_window)
      .def_prop_ro("longest_piece", &PieceCounter::longest_piece)
      .def_prop_ro("spilled_runs", &PieceCounter::spilled_runs);

  bind_merge_learner<uint16_t>(m, "MergeLearner");
  bind_merge_learner<uint32_t>(m, "WideMergeLearner");
  bind_round_learner<uint16_t>(m, "RoundLearner");
  bind_round_learner<uint32_t>(m, "WideRoundLearner");
}

}  // namespace lowtide
