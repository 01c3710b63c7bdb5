// Bindings for encoding blocks and ordering their documents. No logic here.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings/bindings.hpp"
#include "bindings/native_vocabulary.hpp"
#include "dataset/page_sums.hpp"
#include "dataset/ranges.hpp"
#include "dataset/work_files.hpp"
#include "dataset/work_index.hpp"
#include "system/memory.hpp"

namespace lowtide {
using namespace nb::literals;
namespace {

using IdentityRow = std::tuple<uint64_t, uint64_t, uint64_t>;

template <typename Coder>
EncodedBlock* encode_with(Coder& coder, const Input<uint8_t>& text, const Input<uint8_t>& documents,
                          const Input<uint8_t>& removed, const CleanOptions& cleaning,
                          const EncodeOptions& options, size_t id_bytes) {
  require_id_bytes(id_bytes);
  require(options.end_id < int64_t{1} << 8 * id_bytes, "end_id does not fit id_bytes");
  const auto rows = as_rows<DocumentRow>(documents);
  const auto lines = as_rows<uint32_t>(removed);
  auto encoded = std::make_unique<EncodedBlock>();
  KeptDocuments kept;
  bool good;
  {
    nb::gil_scoped_release release;
    good = keep_documents(as_text(text), rows, lines, cleaning, kept);
    if (good && id_bytes == 2) {
      encode_documents(coder, kept, rows, options, encoded->narrow, *encoded);
    } else if (good) {
      encode_documents(coder, kept, rows, options, encoded->wide, *encoded);
    }
  }
  if (!good) throw std::invalid_argument("a document lies outside its block");
  encoded->counts = kept.counts;
  encoded->samples = std::move(kept.samples);
  encoded->remnants = std::move(kept.remnants);
  return encoded.release();
}

EncodeOptions make_options(bool shuffle, uint64_t seed, uint64_t block,
                           const std::optional<IdentityRow>& carried, int64_t end_id) {
  EncodeOptions options{shuffle, seed, block, std::nullopt, end_id};
  if (carried) {
    options.carried = {std::get<0>(*carried), std::get<1>(*carried), std::get<2>(*carried)};
  }
  return options;
}

EncodedBlock* encode_pieces(NativeVocabulary& vocabulary, Input<uint8_t> text,
                            Input<uint8_t> documents, Input<uint8_t> removed,
                            const CleanOptions& cleaning, bool shuffle, uint64_t seed,
                            uint64_t block, std::optional<IdentityRow> carried, int64_t end_id,
                            size_t id_bytes) {
  if (id_bytes == 2 && vocabulary.vocabulary->size() > 1 << 16) {
    throw std::invalid_argument("the vocabulary does not fit 16 bits");
  }
  EncoderPool::Lease encoder(vocabulary.pool);
  return encode_with(*encoder.operator->(), text, documents, removed, cleaning,
                     make_options(shuffle, seed, block, carried, end_id), id_bytes);
}

EncodedBlock* encode_characters(const CharacterTable& table, Input<uint8_t> text,
                                Input<uint8_t> documents, Input<uint8_t> removed,
                                const CleanOptions& cleaning, bool shuffle, uint64_t seed,
                                uint64_t block, std::optional<IdentityRow> carried, int64_t end_id,
                                size_t id_bytes) {
  require(id_bytes != 2 || table.largest_id() <= UINT16_MAX, "the vocabulary does not fit 16 bits");
  return encode_with(table, text, documents, removed, cleaning,
                     make_options(shuffle, seed, block, carried, end_id), id_bytes);
}

EncodedBlock* encode_by_call(const CalledCoder& coder, Input<uint8_t> text,
                             Input<uint8_t> documents, Input<uint8_t> removed,
                             const CleanOptions& cleaning, bool shuffle, uint64_t seed,
                             uint64_t block, std::optional<IdentityRow> carried, int64_t end_id,
                             size_t id_bytes) {
  require(id_bytes != 2 || coder.vocab_size() <= 1 << 16, "the vocabulary does not fit 16 bits");
  return encode_with(coder, text, documents, removed, cleaning,
                     make_options(shuffle, seed, block, carried, end_id), id_bytes);
}

// Called without the GIL, by any thread.
std::vector<uint32_t> call_encode(nb::handle encode, std::string_view text) {
  const nb::gil_scoped_acquire acquire;
  const auto ids = nb::cast<Input<uint32_t>>(encode(nb::bytes(text.data(), text.size())));
  return {ids.data(), ids.data() + ids.size()};
}

nb::list list_sources(const EncodedBlock& self) {
  nb::list rows;
  for (const auto& [input, counts] : self.sources) {
    rows.append(nb::make_tuple(input, counts.first, counts.second));
  }
  return rows;
}

nb::tuple read_range(RangeReader& reader, uint64_t first, uint64_t last, size_t id_bytes) {
  require(id_bytes == reader.id_bytes(), "the range has ids of another size");
  require(first <= last && last <= reader.num_tokens(), "no such tokens in this range");
  const size_t size = checked_product(last - first, id_bytes);
  std::unique_ptr<char[]> ids;
  std::vector<uint64_t> ends;
  {
    nb::gil_scoped_release release;
    ids.reset(new char[size]);  // not cleared: all of it is read into
    ends = reader.read(first, last, ids.get());
  }
  const char* const data = ids.get();
  nb::capsule owner(ids.release(), [](void* p) noexcept { delete[] static_cast<char*>(p); });
  Bytes view(reinterpret_cast<const uint8_t*>(data), {size}, owner);
  return nb::make_tuple(view, to_view<uint8_t>(std::move(ends)));
}

std::pair<uint64_t, uint64_t> measure(Input<uint8_t> ids, size_t id_bytes) {
  require_id_bytes(id_bytes);
  nb::gil_scoped_release release;
  return id_bytes == 2 ? measure_ids(as_rows<uint16_t>(ids)) : measure_ids(as_rows<uint32_t>(ids));
}

std::vector<std::string> list_names(const std::vector<nb::bytes>& paths) {
  std::vector<std::string> names;
  names.reserve(paths.size());
  for (const nb::bytes& path : paths) names.emplace_back(path.c_str(), path.size());
  return names;
}

void add_held(RangeRows& self, Input<uint8_t> ids, Input<uint8_t> index, uint64_t id_bytes,
              uint64_t low, uint64_t high) {
  require_id_bytes(id_bytes);
  const auto rows = as_rows<EncodedRow>(index);
  uint64_t left = ids.shape(0) / id_bytes;
  for (const EncodedRow& row : rows) {
    require(row.tokens <= left, "an index of encoded documents counts more ids than there are");
    left -= row.tokens;
  }
  const char* const data = as_text(ids).data();
  nb::gil_scoped_release release;
  self.add_held(data, rows, id_bytes, low, high, Chosen::kAll, 0);
}

Chosen choose_split(std::optional<bool> val) {
  return !val ? Chosen::kAll : *val ? Chosen::kVal : Chosen::kTrain;
}

using OutputRow = std::tuple<nb::bytes, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t>;

std::optional<std::pair<size_t, uint64_t>> add_outputs(
    RangeRows& self, const std::vector<OutputRow>& outputs, size_t page_bytes, uint64_t num_buckets,
    uint64_t first, uint64_t last, uint64_t id_bytes, uint64_t low, uint64_t high,
    std::optional<bool> val, uint64_t val_limit) {
  require_id_bytes(id_bytes);
  require(first <= last && last < num_buckets, "no such buckets");
  require(page_bytes > 0 && page_bytes <= size_t{1} << 20, "a page has 1 byte to 1 MiB");
  std::vector<EncodedOutput> found;
  for (const auto& [path, num_bytes, ids_at, index_at, row_ends_at, token_ends_at] : outputs) {
    constexpr uint64_t kMost = uint64_t{1} << 60;
    require(num_bytes <= kMost && ids_at <= num_bytes && index_at <= num_bytes &&
                row_ends_at <= num_bytes && token_ends_at <= num_bytes,
            "a section lies outside its file");
    found.push_back({std::string(path.c_str(), path.size()), num_bytes, ids_at, index_at,
                     row_ends_at, token_ends_at});
  }
  nb::gil_scoped_release release;
  for (size_t number = 0; number < found.size(); ++number) {
    try {
      self.add_output(found[number], page_bytes, first, last, id_bytes, low, high,
                      choose_split(val), val_limit);
    } catch (const DamagedPage& damaged) {
      return std::pair{number, damaged.page};
    }
  }
  return std::nullopt;
}

void write_sections(const nb::bytes& partial, const nb::bytes& path, const nb::bytes& head,
                    const std::vector<Input<uint8_t>>& sections, size_t alignment) {
  require(alignment >= 1 && alignment <= 4096, "an alignment is 1 to 4096 bytes");
  const std::string from(partial.c_str(), partial.size()), to(path.c_str(), path.size());
  const std::string_view text(head.c_str(), head.size());
  std::vector<std::string_view> views;
  for (const Input<uint8_t>& section : sections) views.push_back(as_text(section));
  nb::gil_scoped_release release;
  write_work_file(from, to, text, views, alignment);
}

std::optional<std::pair<size_t, int>> flush_all(const std::vector<nb::bytes>& paths,
                                                size_t num_threads) {
  require(num_threads >= 1 && num_threads <= 1024, "threads are 1 to 1024");
  std::vector<std::string> names;
  for (const nb::bytes& path : paths) names.emplace_back(path.c_str(), path.size());
  nb::gil_scoped_release release;
  return flush_files(names, num_threads);
}

void bind_rows(nb::module_& m) {
  m.def("flush_files", &flush_all, "paths"_a, "num_threads"_a,
        "Flush closed files to the disk; the number and errno of the first that failed.");
  m.def("write_work_file", &write_sections, "partial"_a, "path"_a, "head"_a, "sections"_a,
        "alignment"_a, "Write a new file and give it its name.");
  m.def("start_writeback", &start_writeback, "file"_a, "offset"_a, "size"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Begin to write a stretch of a file to the disk, without waiting for it.");
  nb::class_<RangeCounter>(m, "RangeCounter")
      .def(nb::init<std::vector<uint64_t>, uint64_t>(), "bounds"_a, "val_limit"_a)
      .def(
          "add",
          [](RangeCounter& self, Input<uint8_t> index) { self.add(as_rows<EncodedRow>(index)); },
          "index"_a)
      .def(
          "add_files",
          [](RangeCounter& self, const std::vector<nb::bytes>& paths, size_t num_threads) {
            require_threads(num_threads);
            const std::vector<std::string> names = list_names(paths);
            nb::gil_scoped_release release;
            self.add_files(names, num_threads);
          },
          "paths"_a, "num_threads"_a = 1, "Add what work files of ids have.")
      .def("row_ends", [](RangeCounter& self) { return to_view<uint8_t>(self.row_ends()); })
      .def("token_ends", [](RangeCounter& self) { return to_view<uint8_t>(self.token_ends()); })
      .def(
          "view_tokens",
          [](RangeCounter& self, size_t split) {
            require(split < self.tokens.size(), "there are two splits");
            return view_bytes(self.tokens[split].data(), self.tokens[split].size(), self);
          },
          "split"_a)
      .def_ro("tokens", &RangeCounter::tokens)
      .def_ro("rows", &RangeCounter::rows)
      .def_ro("documents", &RangeCounter::documents);
  nb::class_<RangeRows>(m, "RangeRows")
      .def(nb::init<>())
      .def(
          "add",
          [](RangeRows& self, const nb::bytes& path, Input<uint8_t> index, uint64_t ids_at,
             uint64_t id_bytes, uint64_t low, uint64_t high, std::optional<bool> val,
             uint64_t val_limit) {
            require_id_bytes(id_bytes);
            const auto rows = as_rows<EncodedRow>(index);
            const std::string name(path.c_str(), path.size());
            nb::gil_scoped_release release;
            self.add(name, rows, ids_at, id_bytes, low, high, choose_split(val), val_limit);
          },
          "path"_a, "index"_a, "ids_at"_a, "id_bytes"_a, "low"_a, "high"_a, "val"_a.none(),
          "val_limit"_a)
      .def("add_held", &add_held, "ids"_a, "index"_a, "id_bytes"_a, "low"_a, "high"_a,
           nb::keep_alive<1, 2>(), "Add documents whose ids are in memory.")
      .def("add_outputs", &add_outputs, "outputs"_a, "page_bytes"_a, "num_buckets"_a, "first"_a,
           "last"_a, "id_bytes"_a, "low"_a, "high"_a, "val"_a.none(), "val_limit"_a,
           "Add what outputs of tasks have of some buckets; returns the first output that is "
           "damaged, and its page.")
      .def(
          "add_files",
          [](RangeRows& self, const std::vector<nb::bytes>& paths, uint64_t id_bytes, uint64_t low,
             uint64_t high, std::optional<bool> val, uint64_t val_limit, size_t num_threads) {
            require_id_bytes(id_bytes);
            require_threads(num_threads);
            const std::vector<std::string> names = list_names(paths);
            nb::gil_scoped_release release;
            self.add_files(names, id_bytes, low, high, choose_split(val), val_limit, num_threads);
          },
          "paths"_a, "id_bytes"_a, "low"_a, "high"_a, "val"_a.none(), "val_limit"_a,
          "num_threads"_a = 1, "Add what work files of ids have.")
      .def(
          "finish",
          [](RangeRows& self, size_t num_threads) {
            require_threads(num_threads);
            nb::gil_scoped_release release;
            self.finish(num_threads);
          },
          "num_threads"_a = 1, "Put documents in their order.")
      .def_prop_ro("damaged", [](RangeRows& self) -> std::optional<std::pair<nb::bytes, uint64_t>> {
        if (!self.damaged) return std::nullopt;
        const auto& [path, page] = *self.damaged;
        return std::pair{nb::bytes(path.data(), path.size()), page};
      });
  nb::class_<RangeReader>(m, "RangeReader")
      .def(
          "__init__",
          [](RangeReader* self, const RangeRows& range, uint64_t id_bytes, size_t max_open_files) {
            require_id_bytes(id_bytes);
            require(max_open_files >= 1, "max_open_files must be at least 1");
            new (self) RangeReader(range, id_bytes, max_open_files);
          },
          "range"_a, "id_bytes"_a, "max_open_files"_a, nb::keep_alive<1, 2>())
      .def_prop_ro("num_tokens", &RangeReader::num_tokens)
      .def("read", &read_range, "first"_a, "last"_a, "id_bytes"_a,
           "Ids as bytes, and the ends of documents among them as uint64.");
  m.def(
      "sort_rows",
      [](Input<uint8_t> index, uint64_t low, uint64_t high) {
        const auto rows = as_rows<EncodedRow>(index);
        std::vector<EncodedRow> sorted;
        {
          nb::gil_scoped_release release;
          sorted = sort_rows(rows, low, high);
        }
        return to_view<uint8_t>(std::move(sorted));
      },
      "index"_a, "low"_a, "high"_a, "Rows of documents with keys from low to high, by key.");
  m.def(
      "sort_places",
      [](Input<uint8_t> places) {
        const auto rows = as_rows<uint64_t>(places);
        std::vector<uint64_t> sorted(rows.begin(), rows.end());
        {
          nb::gil_scoped_release release;
          std::sort(sorted.begin(), sorted.end());
        }
        return to_view<uint8_t>(std::move(sorted));
      },
      "places"_a, "Places of lines, as uint64, in order.");
  m.def(
      "sum_pages",
      [](Input<uint8_t> data, size_t page_bytes) {
        require(page_bytes > 0, "a page has at least a byte");
        const auto text = as_text(data);
        std::vector<uint64_t> sums;
        {
          nb::gil_scoped_release release;
          sums = sum_pages(text, page_bytes);
        }
        return to_view<uint8_t>(std::move(sums));
      },
      "data"_a, "page_bytes"_a, "The checksums of pages, as uint64; the last may be shorter.");
  m.def(
      "find_damaged_page",
      [](int file, uint64_t page, uint64_t end, uint64_t num_bytes, size_t page_bytes) {
        require(page_bytes > 0 && page_bytes <= size_t{1} << 20, "a page has 1 byte to 1 MiB");
        require(num_bytes <= uint64_t{1} << 60 && end <= num_bytes / page_bytes + 1,
                "the file has no such pages");
        nb::gil_scoped_release release;
        return find_damaged_page(file, page, end, num_bytes, page_bytes);
      },
      "file"_a, "page"_a, "end"_a, "num_bytes"_a, "page_bytes"_a,
      "The first page of an open file that does not fit its checksum, or `end`.");
  m.def("measure_ids", &measure, "ids"_a, "id_bytes"_a, "The lowest and the highest id.");
}

}  // namespace

void bind_dataset(nb::module_& m) {
  nb::class_<CharacterTable>(m, "CharacterTable")
      .def(
          "__init__",
          [](CharacterTable* self, Input<uint32_t> codes, Input<uint32_t> ids, uint32_t unknown) {
            require(codes.shape(0) == ids.shape(0), "arrays differ in length");
            new (self) CharacterTable(as_span(codes), as_span(ids), unknown);
          },
          "codes"_a, "ids"_a, "unknown"_a);
  nb::class_<CalledCoder>(m, "CalledCoder")
      .def(
          "__init__",
          [](CalledCoder* self, nb::callable encode, uint32_t vocab_size) {
            new (self) CalledCoder(
                [encode](std::string_view text) { return call_encode(encode, text); }, vocab_size);
          },
          "encode"_a, "vocab_size"_a);
  nb::class_<EncodedBlock>(m, "EncodedBlock")
      .def_prop_ro(
          "index",
          [](EncodedBlock& self) { return view_bytes(self.index.data(), self.index.size(), self); })
      .def_prop_ro("ids",
                   [](EncodedBlock& self) {
                     return self.wide.empty()
                                ? view_bytes(self.narrow.data(), self.narrow.size(), self)
                                : view_bytes(self.wide.data(), self.wide.size(), self);
                   })
      .def_prop_ro("num_documents", [](EncodedBlock& self) { return self.index.size(); })
      .def_ro("num_tokens", &EncodedBlock::num_tokens)
      .def_ro("max_id", &EncodedBlock::max_id)
      .def_prop_ro("sources", &list_sources)
      .def_prop_ro("counts", [](EncodedBlock& self) { return list_counts(self.counts); })
      .def_prop_ro("samples", [](EncodedBlock& self) { return list_samples(self.samples); })
      .def_ro("remnants", &EncodedBlock::remnants);
  m.def("encode_block", &encode_pieces, "coder"_a, "text"_a, "documents"_a, "removed"_a,
        "cleaning"_a, nb::kw_only(), "shuffle"_a, "seed"_a, "block"_a, "carried"_a.none(),
        "end_id"_a, "id_bytes"_a);
  m.def("encode_block", &encode_characters, "coder"_a, "text"_a, "documents"_a, "removed"_a,
        "cleaning"_a, nb::kw_only(), "shuffle"_a, "seed"_a, "block"_a, "carried"_a.none(),
        "end_id"_a, "id_bytes"_a);
  m.def("encode_block", &encode_by_call, "coder"_a, "text"_a, "documents"_a, "removed"_a,
        "cleaning"_a, nb::kw_only(), "shuffle"_a, "seed"_a, "block"_a, "carried"_a.none(),
        "end_id"_a, "id_bytes"_a);
  bind_rows(m);
}

}  // namespace lowtide
