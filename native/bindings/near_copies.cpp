// Bindings for near copies. No logic here.
#include "quality/near_copies.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>

#include "bindings/bindings.hpp"
#include "corpus/duplicates.hpp"
#include "quality/eval_grams.hpp"
#include "quality/near_decisions.hpp"
#include "quality/place_rows.hpp"

namespace lowtide {
using namespace nb::literals;
namespace {

constexpr uint32_t kMostWordsInGram = 64, kMostMinima = 4096;
constexpr uint64_t kMostBlocks = uint64_t{1} << 31;  // the highest bit of a place is a flag

void require_ngram(uint64_t ngram) {
  require(ngram >= 1 && ngram <= kMostWordsInGram, "ngram must be 1 to 64");
}

// File, offset of its rows, number of rows.
using RunRow = std::tuple<FileName, uint64_t, uint64_t>;
// First document, file, offset of its rows, number of rows, offset of its n-grams.
using SetRow = std::tuple<uint64_t, FileName, uint64_t, uint64_t, uint64_t>;

RowRun make_run(const FileName& path, uint64_t offset, uint64_t rows) {
  constexpr uint64_t kMost = uint64_t{1} << 56;
  require(offset < kMost && rows < kMost, "no file is so long");
  return {path.bytes, offset, rows};
}

void bind_signing(nb::module_& m) {
  nb::class_<NearSigner>(m, "NearSigner")
      .def(
          "__init__",
          [](NearSigner* self, double threshold, uint32_t ngram, uint32_t bands, uint32_t rows) {
            require(threshold > 0 && threshold <= 1, "threshold must be above 0, and 1 at most");
            require_ngram(ngram);
            require(bands >= 1 && rows >= 1 && bands <= kMostMinima && rows <= kMostMinima / bands,
                    "bands times rows must be 1 to 4096");
            new (self) NearSigner(NearOptions{threshold, ngram, bands, rows});
          },
          "threshold"_a, "ngram"_a, "bands"_a, "rows"_a)
      .def(
          "sign",
          [](NearSigner& self, Input<uint8_t> text, Input<uint8_t> documents) {
            const auto rows = as_rows<DocumentRow>(documents);
            bool good;
            {
              nb::gil_scoped_release release;
              good = self.sign(as_text(text), rows);
            }
            require(good, "a document lies outside its block");
          },
          "text"_a, "documents"_a, "Sign the whole documents of a block.")
      .def_prop_ro(
          "rows",
          [](NearSigner& self) { return view_bytes(self.rows.data(), self.rows.size(), self); })
      .def_prop_ro("radix_ends",
                   [](NearSigner& self) {
                     return view_bytes(self.radix_ends.data(), self.radix_ends.size(), self);
                   })
      .def_ro("num_signed", &NearSigner::num_signed)
      .def_ro("num_skipped", &NearSigner::num_skipped);
  nb::class_<GramSets>(m, "GramSets")
      .def(
          "__init__",
          [](GramSets* self, uint32_t ngram) {
            require_ngram(ngram);
            new (self) GramSets(ngram);
          },
          "ngram"_a)
      .def(
          "make",
          [](GramSets& self, Input<uint8_t> text, Input<uint8_t> documents, uint64_t block,
             Input<uint8_t> wanted, uint64_t begin) {
            const auto rows = as_rows<DocumentRow>(documents);
            const auto places = as_rows<PlacePair>(wanted);
            bool good;
            {
              nb::gil_scoped_release release;
              good = self.make(as_text(text), rows, block, places, begin);
            }
            require(good, "a document lies outside its block");
          },
          "text"_a, "documents"_a, "block"_a, "wanted"_a, "begin"_a)
      .def_prop_ro(
          "index",
          [](GramSets& self) { return view_bytes(self.index.data(), self.index.size(), self); })
      .def_prop_ro("grams", [](GramSets& self) {
        return view_bytes(self.grams.data(), self.grams.size(), self);
      });
}

template <typename Merger, typename Row>
void bind_merger(nb::module_& m, const char* name) {
  nb::class_<Merger>(m, name)
      .def(
          "__init__",
          [](Merger* self, const std::vector<RunRow>& runs, size_t buffer_bytes) {
            std::vector<RowRun> rows;
            for (const auto& [path, offset, count] : runs) {
              rows.push_back(make_run(path, offset, count));
            }
            require(buffer_bytes < size_t{1} << 40, "no machine has such a buffer");
            const nb::gil_scoped_release release;
            new (self) Merger(std::move(rows), buffer_bytes);
          },
          "runs"_a, "buffer_bytes"_a)
      .def(
          "read",
          [](Merger& self, size_t most) {
            std::vector<Row> rows;
            {
              const nb::gil_scoped_release release;
              rows = self.read(most);
            }
            return to_view<uint8_t>(std::move(rows));
          },
          "most"_a, "The next rows, each once; none at the end.");
}

void bind_buckets(nb::module_& m) {
  nb::class_<BucketRows>(m, "BucketRows")
      .def(
          "__init__",
          [](BucketRows* self, size_t capacity) {
            require(capacity >= 1 && capacity < size_t{1} << 36, "no machine holds so many rows");
            new (self) BucketRows(capacity);
          },
          "capacity"_a)
      .def(
          "add",
          [](BucketRows& self, Input<uint8_t> rows, uint64_t block, size_t first) {
            require(block < kMostBlocks, "no corpus has so many blocks");
            const auto span = as_rows<NearRow>(rows);
            const nb::gil_scoped_release release;
            return self.add(span, block, first);
          },
          "rows"_a, "block"_a, "first"_a, "How many of a block's rows there was room for.")
      .def("sort",
           [](BucketRows& self) {
             std::span<const BucketRow> rows;
             {
               const nb::gil_scoped_release release;
               rows = self.sort();
             }
             return view_bytes(rows.data(), rows.size(), self);
           })
      .def("clear", &BucketRows::clear);
  nb::class_<NearBuckets>(m, "NearBuckets")
      .def(nb::init<>())
      .def(
          "add",
          [](NearBuckets& self, Input<uint8_t> rows, size_t most) {
            const auto span = as_rows<BucketRow>(rows);
            const nb::gil_scoped_release release;
            return self.add(span, most);
          },
          "rows"_a, "most"_a, "How many rows were gone through until there were so many pairs.")
      .def("finish", &NearBuckets::finish)
      .def("sort", &NearBuckets::sort, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro(
          "pairs",
          [](NearBuckets& self) { return view_bytes(self.pairs.data(), self.pairs.size(), self); })
      .def_prop_ro("wanted",
                   [](NearBuckets& self) {
                     return view_bytes(self.wanted.data(), self.wanted.size(), self);
                   })
      .def_ro("num_capped", &NearBuckets::num_capped)
      .def_ro("largest", &NearBuckets::largest);
}

}  // namespace

void bind_near_copies(nb::module_& m) {
  bind_signing(m);
  bind_buckets(m);
  bind_merger<PairMerger, PlacePair>(m, "PairMerger");
  bind_merger<PlaceMerger, uint64_t>(m, "PlaceMerger");
  bind_merger<BucketMerger, BucketRow>(m, "BucketMerger");
  nb::class_<NearDecider>(m, "NearDecider")
      .def(
          "__init__",
          [](NearDecider* self, const std::vector<SetRow>& sets, double threshold,
             uint64_t copies_left_from, const FileName& out) {
            std::vector<GramSetFile> files;
            for (const auto& [first, path, offset, rows, grams_at] : sets) {
              require(files.empty() || files.back().first <= first, "files are not in order");
              files.push_back({first, make_run(path, offset, rows), grams_at});
            }
            const nb::gil_scoped_release release;
            new (self) NearDecider(std::move(files), threshold, copies_left_from, out.bytes);
          },
          "sets"_a, "threshold"_a, "copies_left_from"_a, "out"_a)
      .def(
          "add",
          [](NearDecider& self, Input<uint8_t> pairs) {
            const auto rows = as_rows<PlacePair>(pairs);
            const nb::gil_scoped_release release;
            self.add(rows);
          },
          "pairs"_a)
      .def("finish", &NearDecider::finish, nb::call_guard<nb::gil_scoped_release>())
      .def_ro("num_removed", &NearDecider::num_removed)
      .def_ro("num_compared", &NearDecider::num_compared)
      .def_ro("num_unlike", &NearDecider::num_unlike);
  m.def(
      "leave_out",
      [](Input<uint8_t> hashes, Input<uint8_t> left_out) {
        const auto rows = as_rows<HashRow>(hashes);
        const auto documents = as_rows<LeftOut>(left_out);
        std::vector<HashRow> rest;
        {
          const nb::gil_scoped_release release;
          rest = leave_out(rows, documents);
        }
        return to_view<uint8_t>(std::move(rest));
      },
      "hashes"_a, "left_out"_a, "The hashes of a block but those of some of its documents.");
  nb::class_<EvalGrams>(m, "EvalGrams")
      .def(nb::init<>())
      .def(
          "add",
          [](EvalGrams& self, nb::bytes text, uint32_t item) {
            return self.add({text.c_str(), text.size()}, item);
          },
          "text"_a, "item"_a, "How many n-grams of an item's text were added.")
      .def("finish", &EvalGrams::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("__len__", &EvalGrams::size)
      .def("items", [](const EvalGrams& self) { return to_view<uint8_t>(self.items()); })
      .def(
          "scan",
          [](const EvalGrams& self, Input<uint8_t> text, Input<uint8_t> documents) {
            const auto rows = as_rows<DocumentRow>(documents);
            std::vector<EvalHit> hits;
            bool good;
            {
              const nb::gil_scoped_release release;
              good = self.scan(as_text(text), rows, hits);
            }
            require(good, "a document lies outside its block");
            return to_view<uint8_t>(std::move(hits));
          },
          "text"_a, "documents"_a, "Where a block's documents say what items say.");
  m.attr("EVAL_HIT_BYTES") = sizeof(EvalHit);
  m.attr("CUT_MARK") = kCutMark;
  m.attr("CONTAMINATED_MARK") = kContaminatedMark;
  m.attr("NEAR_ROW_BYTES") = sizeof(NearRow);
  m.attr("BUCKET_ROW_BYTES") = sizeof(BucketRow);
  m.attr("PLACE_PAIR_BYTES") = sizeof(PlacePair);
  m.attr("GRAM_SET_ROW_BYTES") = sizeof(GramSetRow);
  m.attr("NEAR_COPY_ROW_BYTES") = sizeof(NearCopyRow);
  m.attr("NEAR_COPY_MARK") = kNearCopyMark;
}

}  // namespace lowtide
