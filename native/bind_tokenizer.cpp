// Python's view of splitting, counting and merge learning. No logic lives here.
#include "bindings.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "counter.hpp"
#include "merger.hpp"
#include "splitter.hpp"
#include "windows.hpp"

namespace lowtide {

namespace {

Pattern pattern_named(const std::string& name) {
  if (name == "gpt2") return Pattern::kGpt2;
  if (name == "cl100k") return Pattern::kCl100k;
  if (name == "o200k") return Pattern::kO200k;
  throw std::invalid_argument("unknown pattern: " + name);
}

std::vector<std::string> as_strings(const std::vector<nb::bytes>& list) {
  std::vector<std::string> strings;
  for (const nb::bytes& item : list) strings.emplace_back(item.c_str(), item.size());
  return strings;
}

Array<uint32_t> split(const std::string& pattern, nb::bytes text, bool vectorized) {
  const Pattern p = pattern_named(pattern);
  const SplitFunction function = vectorized ? splitter(p) : scalar_splitter(p);
  std::vector<uint32_t> ends, batch(4096);
  const uint8_t* const data = static_cast<const uint8_t*>(text.data());
  for (size_t position = 0; position < text.size();) {
    const size_t count = function(data, text.size(), &position, batch.data(), batch.size());
    ends.insert(ends.end(), batch.begin(), batch.begin() + static_cast<ptrdiff_t>(count));
  }
  return to_array(std::move(ends));
}

Array<uint64_t> safe_cuts(nb::bytes text, const std::vector<nb::bytes>& specials) {
  const SpecialFinder finder(as_strings(specials));
  const uint8_t* const data = static_cast<const uint8_t*>(text.data());
  std::vector<uint64_t> cuts;
  for (size_t at = find_cut(data, text.size(), 1, finder); at < text.size();
       at = find_cut(data, text.size(), at + 1, finder)) {
    cuts.push_back(at);
  }
  return to_array(std::move(cuts));
}

void count_texts(PieceCounter& counter, const std::vector<nb::bytes>& texts) {
  std::vector<PieceCounter::Text> views;
  for (const nb::bytes& text : texts) {
    views.push_back({static_cast<const uint8_t*>(text.data()), text.size()});
  }
  const nb::gil_scoped_release release;
  counter.count_texts(views);
}

nb::list drain(PieceCounter& counter) {
  nb::list items;
  counter.drain([&](const uint8_t* bytes, size_t length, uint64_t count) {
    items.append(nb::make_tuple(nb::bytes(bytes, length), count));
  });
  return items;
}

void take(MergeLearner& learner, PieceCounter& counter) {
  counter.drain([&](const uint8_t* bytes, size_t length, uint64_t count) {
    learner.add_piece(bytes, length, count);
  });
}

void take_items(MergeLearner& learner, const std::vector<std::pair<nb::bytes, uint64_t>>& items) {
  for (const auto& [bytes, count] : items) {
    learner.add_piece(static_cast<const uint8_t*>(bytes.data()), bytes.size(), count);
  }
}

Array<uint32_t> merges(const MergeLearner& learner) {
  std::vector<uint32_t> flat;
  flat.reserve(learner.merges().size() * 3);
  for (const Merge& merge : learner.merges()) {
    flat.insert(flat.end(), {merge.left, merge.right, merge.token});
  }
  return to_array(std::move(flat));
}

TieBreak tie_break_named(const std::string& name) {
  if (name == "huggingface") return TieBreak::kHuggingFace;
  if (name == "cs336") return TieBreak::kCs336;
  throw std::invalid_argument("unknown tie-break: " + name);
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
  m.def("split", &split, nb::arg("pattern"), nb::arg("text"), nb::arg("vectorized") = true,
        "The offsets where the pieces of `text` end.");
  m.def("safe_cuts", &safe_cuts, nb::arg("text"), nb::arg("specials"),
        "The offsets where `text` can be split apart without changing its pieces.");

  nb::class_<PieceCounter>(m, "PieceCounter")
      .def(
          "__init__",
          [](PieceCounter* self, const std::string& pattern, const std::vector<nb::bytes>& specials,
             size_t num_threads, size_t table_bytes, size_t window_bytes,
             const std::string& spill_dir) {
            new (self) PieceCounter(pattern_named(pattern), as_strings(specials), num_threads,
                                    table_bytes, window_bytes, spill_dir);
          },
          nb::arg("pattern"), nb::arg("specials"), nb::kw_only(), nb::arg("num_threads"),
          nb::arg("table_bytes"), nb::arg("window_bytes"), nb::arg("spill_dir"))
      .def("count_file", &PieceCounter::count_file, nb::arg("path"), nb::arg("begin"),
           nb::arg("end"), nb::call_guard<nb::gil_scoped_release>())
      .def("count_texts", &count_texts, nb::arg("texts"))
      .def("checkpoint", &PieceCounter::checkpoint, nb::call_guard<nb::gil_scoped_release>())
      .def("adopt", &PieceCounter::adopt, nb::arg("runs"))
      .def("drain", &drain)
      .def_prop_ro("bytes_done", &PieceCounter::bytes_done)
      .def_prop_ro("pieces_done", &PieceCounter::pieces_done)
      .def_prop_ro("distinct", &PieceCounter::distinct)
      .def_prop_ro("spilled_runs", &PieceCounter::spilled_runs);

  nb::class_<MergeLearner>(m, "MergeLearner")
      .def(
          "__init__",
          [](MergeLearner* self, const std::string& tie_break, const std::string& file_dir,
             size_t resident_limit) {
            new (self) MergeLearner(tie_break_named(tie_break), file_dir, resident_limit);
          },
          nb::arg("tie_break"), nb::kw_only(), nb::arg("file_dir"), nb::arg("resident_limit"))
      .def("take", &take, nb::arg("counter"), nb::call_guard<nb::gil_scoped_release>())
      .def("take_items", &take_items, nb::arg("items"))
      .def("build", &MergeLearner::build, nb::call_guard<nb::gil_scoped_release>())
      .def("learn", &MergeLearner::learn, nb::arg("target_tokens"), nb::arg("max_merges"),
           nb::arg("min_frequency"), nb::call_guard<nb::gil_scoped_release>())
      .def("merges", &merges)
      .def_prop_ro("tokens_made", &MergeLearner::tokens_made)
      .def_prop_ro("num_words", &MergeLearner::num_words)
      .def_prop_ro("num_symbols", &MergeLearner::num_symbols)
      .def_prop_ro("num_pairs", &MergeLearner::num_pairs)
      .def_prop_ro("bytes", &MergeLearner::bytes);
}

}  // namespace lowtide
