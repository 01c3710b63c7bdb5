#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "bindings/bindings.hpp"
#include "corpus/cleaner.hpp"
#include "corpus/duplicates.hpp"
#include "corpus/json_rows.hpp"
#include "corpus/snappy_pages.hpp"
#include "system/memory.hpp"

namespace lowtide {
using namespace nb::literals;
namespace {

Array<uint8_t> give_text(std::string&& text) {
  auto* held = new std::string(std::move(text));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::string*>(p); });
  return Array<uint8_t>(reinterpret_cast<uint8_t*>(held->data()), {held->size()}, owner);
}

// Lower-casing works on whole lines, because the result for a letter depends on its neighbours.
//
// `compose` must outlive the result, which has a plain pointer to it: threads without the GIL copy
// it, and so must not change reference counts.
BlockCleaner::Compose make_compose(const CleanOptions& options, nb::handle compose) {
  const auto ask = [compose](std::string_view text) {
    nb::gil_scoped_acquire hold;
    const nb::bytes result = nb::cast<nb::bytes>(compose(nb::bytes(text.data(), text.size())));
    return std::string(result.c_str(), result.size());
  };
  if (options.lowercase) return ask;
  return [ask, parts = options.composed](const std::string& line) {
    return parts->compose_line(line, ask);
  };
}

BlockCleaner* clean_block(Input<uint8_t> data, Input<uint64_t> begins, Input<uint64_t> ends,
                          Input<uint64_t> input_indexes, Input<uint64_t> ordinals,
                          Input<uint64_t> flags, const CleanOptions& options,
                          nb::callable compose) {
  const size_t count = begins.shape(0);
  for (const auto* array : {&ends, &input_indexes, &ordinals, &flags}) {
    if (array->shape(0) != count) throw std::invalid_argument("arrays differ in length");
  }
  const std::string_view text = as_text(data);
  for (size_t row = 0; row < count; ++row) {
    if (begins.data()[row] > ends.data()[row] || ends.data()[row] > text.size()) {
      throw std::invalid_argument("a document lies outside its block");
    }
  }
  const BlockCleaner::Compose call = make_compose(options, compose);
  auto cleaner = std::make_unique<BlockCleaner>(options, call);
  {
    nb::gil_scoped_release release;
    std::vector<DocumentRow> documents;
    documents.reserve(count);
    for (size_t row = 0; row < count; ++row) {
      documents.push_back({input_indexes.data()[row], ordinals.data()[row], begins.data()[row],
                           ends.data()[row], 0, 0, 0, flags.data()[row]});
    }
    cleaner->add_documents(text, documents);
  }
  return cleaner.release();
}

// A segment of a block: its input, position in the input, begin and end in the block.
using SegmentRow = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;

BlockCleaner* clean_text(Input<uint8_t> data, const std::vector<nb::bytes>& separators,
                         const std::vector<SegmentRow>& rows, bool continues, bool continued,
                         const CleanOptions& options, nb::callable compose) {
  const std::string_view text = as_text(data);
  std::vector<Segment> segments;
  for (const auto& [input, offset, begin, end] : rows) {
    if (begin > end || end > text.size()) {
      throw std::invalid_argument("a segment lies outside its block");
    }
    segments.push_back({input, offset, begin, end});
  }
  std::vector<std::string_view> marks;
  for (const nb::bytes& separator : separators) {
    marks.emplace_back(static_cast<const char*>(separator.data()), separator.size());
  }
  const BlockCleaner::Compose call = make_compose(options, compose);
  auto cleaner = std::make_unique<BlockCleaner>(options, call);
  {
    nb::gil_scoped_release release;
    cleaner->add_segments(text, segments, marks, continues, continued);
  }
  return cleaner.release();
}

nb::tuple extract_rows(Input<uint8_t> data, const std::string& field) {
  JsonRows rows;
  {
    nb::gil_scoped_release release;
    rows = extract_jsonl(as_text(data), field);
  }
  return nb::make_tuple(give_text(std::move(rows.text)), to_array(std::move(rows.ends)),
                        to_array(std::move(rows.offsets)), to_array(std::move(rows.bad_offsets)));
}

// Kept documents, and the array that still contains most of them.
struct HeldDocuments : KeptDocuments {
  Input<uint8_t> text;
};

HeldDocuments* keep_block(Input<uint8_t> text, Input<uint8_t> documents, Input<uint8_t> removed,
                          const CleanOptions& options) {
  auto kept = std::make_unique<HeldDocuments>();
  kept->text = text;
  const auto rows = as_rows<DocumentRow>(documents);
  const auto lines = as_rows<uint32_t>(removed);
  bool good;
  {
    nb::gil_scoped_release release;
    good = keep_documents(as_text(text), rows, lines, options, *kept);
  }
  if (!good) throw std::invalid_argument("a document lies outside its block");
  return kept.release();
}

std::optional<Bytes> add_in_turn(DuplicateFinder& self, uint64_t place, Input<uint8_t> rows) {
  const auto span = as_rows<HashRow>(rows);
  std::vector<uint32_t> lines;
  DuplicateFinder::Turn turn;
  {
    nb::gil_scoped_release release;
    turn = self.add_in_turn(place, span, lines);
  }
  if (turn == DuplicateFinder::Turn::kStopped) throw std::runtime_error("stopped");
  if (turn == DuplicateFinder::Turn::kFull) return std::nullopt;
  return to_view<uint8_t>(std::move(lines));
}

std::optional<Bytes> add_blocks(DuplicateFinder& self, Input<uint8_t> rows, Input<uint8_t> counts,
                                uint32_t first_block, uint32_t pass_index, uint32_t num_passes) {
  require(num_passes >= 1 && pass_index < num_passes, "no such pass");
  const auto span = as_rows<HashRow>(rows);
  const auto blocks = as_rows<uint32_t>(counts);
  require(blocks.size() <= UINT32_MAX - first_block, "there are too many blocks");
  std::vector<uint64_t> places;
  bool has_room;
  {
    nb::gil_scoped_release release;
    has_room = self.add_blocks(span, blocks, first_block, pass_index, num_passes, places);
  }
  if (!has_room) return std::nullopt;
  return to_view<uint8_t>(std::move(places));
}

nb::tuple pick_block_rows(Input<uint8_t> rows, Input<uint8_t> counts, uint32_t first,
                          uint32_t last) {
  const auto span = as_rows<KeyedRow>(rows);
  const auto given = as_rows<uint32_t>(counts);
  std::vector<uint32_t> left(given.begin(), given.end());
  std::vector<KeyedRow> picked;
  {
    nb::gil_scoped_release release;
    picked = pick_rows(span, left, first, last);
  }
  return nb::make_tuple(to_view<uint8_t>(std::move(picked)), to_view<uint8_t>(std::move(left)));
}

// Thousands of blocks of a few MiB are allocated and freed. If returned to the system, their pages
// are cleared and mapped again each time: 65,000 page faults and 0.15 s for 120 MB of text.
void keep_freed_memory(bool keep) {
  constexpr int kKept = 16 << 20, kSmall = 1 << 17;
  keep_freed_blocks(keep ? kKept : kSmall, keep ? 4 * kKept : kSmall);
}

void bind_rules(nb::module_& m) {
  auto options = nb::class_<CleanOptions>(m, "CleanOptions").def(nb::init<>());
  nb::list names, rules;
#define LOWTIDE_OPTION(type, name, value)     \
  options.def_rw(#name, &CleanOptions::name); \
  names.append(#name);
#include "corpus/cleaning_rules.inc"
#define LOWTIDE_RULE(enumerator, name, text) rules.append(nb::make_tuple(name, text));
#include "corpus/cleaning_rules.inc"
  options.def(
      "set_rules",
      [](CleanOptions& self, const std::vector<uint32_t>& presets,
         const std::vector<double>& limits) {
        require(limits.size() == kNumLimits, "not one number for each limit");
        self.quality.presets.clear();
        for (const uint32_t preset : presets) {
          require(preset < kNumPresets, "no such preset");
          self.quality.presets.push_back(static_cast<Preset>(preset));
        }
        std::copy(limits.begin(), limits.end(), self.quality.limits.begin());
      },
      "presets"_a, "limits"_a, "Which rules of quality apply, in order, and what they decide by.");
  options.def(
      "set_models",
      [](CleanOptions& self, std::shared_ptr<FastTextModel> language, std::vector<uint8_t> wanted,
         double min_language_score, std::shared_ptr<FastTextModel> score, size_t score_label,
         double keep_above) {
        require(language == nullptr || wanted.empty() || wanted.size() == language->labels().size(),
                "not one mark for each language");
        require(score == nullptr || score_label < score->labels().size(), "no such label");
        ModelOptions& models = self.models;
        models.language = std::move(language);
        models.score = std::move(score);
        models.wanted = std::move(wanted);
        models.min_language_score = min_language_score;
        models.keep_above = keep_above;
        models.score_label = score_label;
      },
      "language"_a.none(), "wanted"_a, "min_language_score"_a, "score"_a.none(), "score_label"_a,
      "keep_above"_a, "Which models judge documents, and by what.");
  options.def(
      "set_rank",
      [](CleanOptions& self, bool collect_keys, uint64_t cut) {
        self.models.by_rank = true;
        self.models.collect_keys = collect_keys;
        self.models.cut = cut;
      },
      "collect_keys"_a, "cut"_a, "Documents stay by the rank of their score, once a cut is known.");
  nb::list presets, limits;
#define LOWTIDE_PRESET(enumerator, name, text) presets.append(nb::make_tuple(name, text));
#include "quality/limits.inc"
#define LOWTIDE_LIMIT(preset, enumerator, name, value, text)                 \
  limits.append(nb::make_tuple(static_cast<uint32_t>(kPreset##preset), name, \
                               static_cast<double>(value), text));
#include "quality/limits.inc"
  m.attr("RULE_PRESETS") = nb::tuple(presets);
  m.attr("RULE_LIMITS") = nb::tuple(limits);
  m.attr("CLEANING_OPTIONS") = nb::tuple(names);
  m.attr("CLEANING_RULES") = nb::tuple(rules);
  m.attr("DOCUMENT_ROW_BYTES") = sizeof(DocumentRow);
  m.attr("HASH_ROW_BYTES") = sizeof(HashRow);
}

}  // namespace

void bind_corpus(nb::module_& m) {
  static nb::exception<ModelError> model_error(m, "ModelError", PyExc_ValueError);
  nb::class_<FastTextModel>(m, "FastTextModel")
      .def(
          "__init__",
          [](FastTextModel* self, const FileName& path) {
            const nb::gil_scoped_release release;
            new (self) FastTextModel(path.bytes);
          },
          "path"_a)
      .def_prop_ro("labels", &FastTextModel::labels)
      .def_prop_ro("memory_bytes", &FastTextModel::memory_bytes)
      .def(
          "predict",
          [](const FastTextModel& self, nb::bytes text) {
            FastTextModel::Scratch scratch;
            std::vector<float> scores;
            self.predict({text.c_str(), text.size()}, scratch, scores);
            return scores;
          },
          "text"_a, "The score of every label, as the fasttext package gives them.");
  bind_rules(m);
  nb::class_<BlockCleaner>(m, "CleanedBlock")
      .def_prop_ro(
          "text",
          [](BlockCleaner& self) { return view_bytes(self.text.data(), self.text.size(), self); })
      .def_prop_ro("documents",
                   [](BlockCleaner& self) {
                     return view_bytes(self.documents.data(), self.documents.size(), self);
                   })
      .def_prop_ro("hashes",
                   [](BlockCleaner& self) {
                     return view_bytes(self.hashes.data(), self.hashes.size(), self);
                   })
      .def_prop_ro("radix_ends",
                   [](BlockCleaner& self) {
                     return view_bytes(self.radix_ends.data(), self.radix_ends.size(), self);
                   })
      .def_prop_ro("characters",
                   [](BlockCleaner& self) {
                     return view_bytes(self.characters.data(), self.characters.size(), self);
                   })
      .def_prop_ro("score_keys",
                   [](BlockCleaner& self) {
                     return view_bytes(self.score_keys.data(), self.score_keys.size(), self);
                   })
      .def_prop_ro("counts", [](BlockCleaner& self) { return list_counts(self.counts); })
      .def_prop_ro("samples", [](BlockCleaner& self) { return list_samples(self.samples); })
      .def_prop_ro("languages",
                   [](BlockCleaner& self) {
                     nb::list rows;
                     for (const RuleCount& row : self.languages) {
                       rows.append(nb::make_tuple(row.count, row.bytes));
                     }
                     return rows;
                   })
      .def_ro("documents_in", &BlockCleaner::documents_in)
      .def_ro("lines_in", &BlockCleaner::lines_in)
      .def_ro("bytes_in", &BlockCleaner::bytes_in);
  nb::class_<HeldDocuments>(m, "KeptDocuments")
      .def("list_texts",
           [](HeldDocuments& self) {
             nb::list texts;
             for (const std::string_view document : self.documents) {
               texts.append(nb::bytes(document.data(), document.size()));
             }
             return texts;
           })
      .def_prop_ro(
          "rows",
          [](HeldDocuments& self) { return view_bytes(self.rows.data(), self.rows.size(), self); })
      .def_prop_ro("counts", [](HeldDocuments& self) { return list_counts(self.counts); })
      .def_prop_ro("samples", [](HeldDocuments& self) { return list_samples(self.samples); });
  nb::class_<DuplicateFinder>(m, "DuplicateFinder")
      .def(
          "__init__",
          [](DuplicateFinder* self, size_t capacity, uint32_t skipped_bits) {
            require(skipped_bits <= 16, "skipped_bits must be 0 to 16");
            new (self) DuplicateFinder(capacity, skipped_bits);
          },
          "capacity"_a, "skipped_bits"_a = 0)
      .def(
          "add",
          [](DuplicateFinder& self, Input<uint8_t> rows, uint32_t pass_index, uint32_t num_passes) {
            require(num_passes >= 1 && pass_index < num_passes, "no such pass");
            const auto span = as_rows<HashRow>(rows);
            nb::gil_scoped_release release;
            return self.add(span, pass_index, num_passes);
          },
          "rows"_a, "pass_index"_a, "num_passes"_a)
      .def(
          "take",
          [](DuplicateFinder& self) {
            std::vector<uint32_t> lines;
            {
              nb::gil_scoped_release release;
              lines = self.take();
            }
            return to_view<uint8_t>(std::move(lines));
          },
          "The lines of the blocks added since the last call, as uint32.")
      .def("add_blocks", &add_blocks, "rows"_a, "counts"_a, "first_block"_a, "pass_index"_a,
           "num_passes"_a,
           "The duplicates of several blocks, as uint64: block and line; None when there is no "
           "room.")
      .def("add_in_turn", &add_in_turn, "place"_a, "rows"_a,
           "The duplicate lines of the block at a place, as uint32; None from the first block on "
           "for which there is no room. Raises RuntimeError once it was stopped.")
      .def("stop", &DuplicateFinder::stop);
  m.def("pick_rows", &pick_block_rows, "rows"_a, "counts"_a, "first"_a, "last"_a,
        "The rows whose first 16 bits are from first to last - 1, and how many each block has.");
  m.def(
      "pick_hashes",
      [](Input<uint8_t> hashes, Input<uint8_t> documents, std::vector<uint64_t> remnants,
         bool all) {
        const auto rows = as_rows<HashRow>(hashes);
        const auto sources = as_rows<DocumentRow>(documents);
        std::vector<uint32_t> words;
        {
          nb::gil_scoped_release release;
          words = pick_hashes(rows, sources, remnants, all);
        }
        return to_view<uint8_t>(std::move(words));
      },
      "hashes"_a, "documents"_a, "remnants"_a, "all"_a);
  m.def("clean_block", &clean_block, "data"_a, "begins"_a, "ends"_a, "input_indexes"_a,
        "ordinals"_a, "flags"_a, "options"_a, "compose"_a);
  m.def("clean_text", &clean_text, "data"_a, "separators"_a, "segments"_a, "continues"_a,
        "continued"_a, "options"_a, "compose"_a);
  m.def("extract_jsonl", &extract_rows, "data"_a, "field"_a);
  m.def(
      "extract_long_row",
      [](int row_file, const std::string& field, int text_file) {
        const nb::gil_scoped_release release;
        return extract_long_row(row_file, field, text_file);
      },
      "row_file"_a, "field"_a, "text_file"_a);
  m.def(
      "unpack_snappy",
      [](int packed_file, int64_t offset, int64_t size, int text_file) {
        const nb::gil_scoped_release release;
        return unpack_snappy(packed_file, offset, size, text_file);
      },
      "packed_file"_a, "offset"_a, "size"_a, "text_file"_a);
  m.def("keep_documents", &keep_block, "text"_a, "documents"_a, "removed"_a, "options"_a);
  m.def("keep_freed_memory", &keep_freed_memory, "keep"_a,
        "Give freed memory back; say whether what is freed from now on stays with this process.");
}

}  // namespace lowtide
