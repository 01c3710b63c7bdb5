#include <malloc.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <stdexcept>

#include "bindings.hpp"
#include "corpus_clean.hpp"
#include "corpus_dedup.hpp"
#include "corpus_json.hpp"
#include "dataset_encode.hpp"
#include "dataset_gather.hpp"
#include "native_vocabulary.hpp"

namespace lowtide {
using namespace nb::literals;
namespace {

template <typename T>
std::span<const T> as_span(const Input<T>& array) {
  return {array.data(), array.shape(0)};
}

// Rows of a plain struct, handed over as raw bytes.
template <typename Row>
std::span<const Row> as_rows(const Input<uint8_t>& array) {
  if (array.shape(0) % sizeof(Row) != 0 ||
      reinterpret_cast<uintptr_t>(array.data()) % alignof(Row) != 0) {
    throw std::invalid_argument("rows are cut off or not aligned");
  }
  return {reinterpret_cast<const Row*>(array.data()), array.shape(0) / sizeof(Row)};
}

std::string_view as_text(const Input<uint8_t>& array) {
  return {reinterpret_cast<const char*>(array.data()), array.shape(0)};
}

template <typename T, typename Owner>
Array<const uint8_t> view_bytes(const T* data, size_t count, Owner& owner) {
  return Array<const uint8_t>(reinterpret_cast<const uint8_t*>(data), {count * sizeof(T)},
                              nb::find(owner));
}

Array<uint8_t> give_text(std::string&& text) {
  auto* held = new std::string(std::move(text));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::string*>(p); });
  return Array<uint8_t>(reinterpret_cast<uint8_t*>(held->data()), {held->size()}, owner);
}

nb::list list_counts(const std::array<RuleCount, kNumRules>& counts) {
  nb::list rows;
  for (const RuleCount& row : counts) rows.append(nb::make_tuple(row.count, row.bytes));
  return rows;
}

nb::list list_samples(const std::vector<Sample>& samples) {
  nb::list rows;
  for (const Sample& sample : samples) {
    rows.append(nb::make_tuple(sample.rule, nb::bytes(sample.text.data(), sample.text.size())));
  }
  return rows;
}

BlockCleaner::Compose make_compose(nb::callable compose) {
  return [compose](const std::string& line) {
    nb::gil_scoped_acquire hold;
    const nb::bytes result = nb::cast<nb::bytes>(compose(nb::bytes(line.data(), line.size())));
    return std::string(result.c_str(), result.size());
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
  const BlockCleaner::Compose call = make_compose(std::move(compose));
  auto cleaner = std::make_unique<BlockCleaner>(options, call);
  {
    nb::gil_scoped_release release;
    cleaner->text.reserve(text.size());
    for (size_t row = 0; row < count; ++row) {
      const uint64_t begin = begins.data()[row], end = ends.data()[row];
      cleaner->add_document(text.substr(begin, end - begin), input_indexes.data()[row],
                            ordinals.data()[row], flags.data()[row]);
    }
    cleaner->finish();
  }
  return cleaner.release();
}

std::pair<Array<uint64_t>, Array<uint64_t>> find_documents(Input<uint8_t> data,
                                                           const nb::bytes& separator,
                                                           uint64_t begin, uint64_t end) {
  if (begin > end || end > data.shape(0)) throw std::invalid_argument("range outside the block");
  std::vector<uint64_t> begins, ends;
  {
    const char *needle = separator.c_str(), *text = reinterpret_cast<const char*>(data.data());
    const size_t needle_size = separator.size();
    nb::gil_scoped_release release;
    for (uint64_t at = begin;;) {
      const void* found =
          needle_size == 0 ? nullptr : memmem(text + at, end - at, needle, needle_size);
      // A separator ends a document; what follows the last one of a block may be nothing at all.
      if (found == nullptr && at == end) break;
      begins.push_back(at);
      ends.push_back(found == nullptr ? end : static_cast<const char*>(found) - text);
      if (found == nullptr) break;
      at = ends.back() + needle_size;
    }
  }
  return {to_array(std::move(begins)), to_array(std::move(ends))};
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

// Kept documents, and the array that most of them still lie in.
struct HeldDocuments : KeptDocuments {
  Input<uint8_t> text;
};

HeldDocuments* keep_block(Input<uint8_t> text, Input<uint8_t> documents, Input<uint32_t> removed,
                          const CleanOptions& options) {
  auto kept = std::make_unique<HeldDocuments>();
  kept->text = text;
  const auto rows = as_rows<DocumentRow>(documents);
  bool good;
  {
    nb::gil_scoped_release release;
    good = keep_documents(as_text(text), rows, as_span(removed), options, *kept);
  }
  if (!good) throw std::invalid_argument("a document lies outside its block");
  return kept.release();
}

template <typename Id, typename Coder>
nb::tuple encode_as(Coder& coder, const HeldDocuments& kept, const Input<uint64_t>& order,
                    const Input<uint8_t>& ending, int64_t end_id) {
  std::vector<Id> ids;
  std::vector<uint64_t> lengths;
  {
    nb::gil_scoped_release release;
    size_t bytes = 0;
    for (const std::string_view document : kept.documents) bytes += document.size();
    ids.reserve(bytes / 4 + order.shape(0));
    encode_documents(coder, kept, as_span(order), as_span(ending), end_id, ids, lengths);
  }
  return nb::make_tuple(to_array(std::move(ids)), to_array(std::move(lengths)));
}

template <typename Coder>
nb::tuple encode_with(Coder& coder, const HeldDocuments& kept, const Input<uint64_t>& order,
                      const Input<uint8_t>& ending, int64_t end_id, size_t id_bytes) {
  if (ending.shape(0) != kept.documents.size())
    throw std::invalid_argument("arrays differ in length");
  for (size_t row = 0; row < order.shape(0); ++row) {
    if (order.data()[row] >= kept.documents.size()) throw std::invalid_argument("no such document");
  }
  return id_bytes == 2 ? encode_as<uint16_t>(coder, kept, order, ending, end_id)
                       : encode_as<uint32_t>(coder, kept, order, ending, end_id);
}

nb::tuple encode_pieces(NativeVocabulary& vocabulary, const HeldDocuments& kept,
                        Input<uint64_t> order, Input<uint8_t> ending, int64_t end_id,
                        size_t id_bytes) {
  if (id_bytes == 2 && vocabulary.vocabulary->size() > 1 << 16) {
    throw std::invalid_argument("the vocabulary does not fit 16 bits");
  }
  EncoderPool::Lease encoder(vocabulary.pool);
  return encode_with(*encoder.operator->(), kept, order, ending, end_id, id_bytes);
}

nb::tuple encode_characters(const CharacterTable& table, const HeldDocuments& kept,
                            Input<uint64_t> order, Input<uint8_t> ending, int64_t end_id,
                            size_t id_bytes) {
  return encode_with(table, kept, order, ending, end_id, id_bytes);
}

int gather(Input<int32_t> descriptors, Input<uint64_t> offsets, Input<uint64_t> sizes,
           nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
  if (descriptors.shape(0) != sizes.shape(0) || offsets.shape(0) != sizes.shape(0)) {
    throw std::invalid_argument("arrays differ in length");
  }
  nb::gil_scoped_release release;
  return gather_bytes(as_span(descriptors), as_span(offsets), as_span(sizes),
                      {reinterpret_cast<char*>(out.data()), out.shape(0)});
}

// Blocks of a few MiB come and go by the thousand. Given back and asked for again, their pages are
// cleared and mapped anew each time: 65,000 page faults and 0.15 s for 120 MB of text.
void keep_freed_memory(bool keep) {
  constexpr int kKept = 16 << 20, kSmall = 1 << 17;
  ::mallopt(M_MMAP_THRESHOLD, keep ? kKept : kSmall);
  ::mallopt(M_TRIM_THRESHOLD, keep ? 4 * kKept : kSmall);
  ::malloc_trim(0);
}

void bind_options(nb::module_& m) {
  nb::class_<CleanOptions>(m, "CleanOptions")
      .def(nb::init<>())
      .def_rw("normalize", &CleanOptions::normalize)
      .def_rw("lowercase", &CleanOptions::lowercase)
      .def_rw("filter", &CleanOptions::filter)
      .def_rw("dedup", &CleanOptions::dedup)
      .def_rw("collect_characters", &CleanOptions::collect_characters)
      .def_rw("min_line_chars", &CleanOptions::min_line_chars)
      .def_rw("max_line_chars", &CleanOptions::max_line_chars)
      .def_rw("min_line_words", &CleanOptions::min_line_words)
      .def_rw("min_document_chars", &CleanOptions::min_document_chars)
      .def_rw("max_document_chars", &CleanOptions::max_document_chars)
      .def_rw("min_document_words", &CleanOptions::min_document_words)
      .def_rw("max_repetition", &CleanOptions::max_repetition)
      .def_rw("min_dedup_chars", &CleanOptions::min_dedup_chars);
}

}  // namespace

void bind_corpus(nb::module_& m) {
  bind_options(m);
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
      .def_prop_ro("counts", [](BlockCleaner& self) { return list_counts(self.counts); })
      .def_prop_ro("samples", [](BlockCleaner& self) { return list_samples(self.samples); })
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
      .def(nb::init<size_t>(), "capacity"_a)
      .def(
          "add",
          [](DuplicateFinder& self, uint64_t block, Input<uint8_t> rows, uint32_t pass_index,
             uint32_t num_passes) {
            const auto span = as_rows<HashRow>(rows);
            nb::gil_scoped_release release;
            return self.add(block, span, pass_index, num_passes);
          },
          "block"_a, "rows"_a, "pass_index"_a, "num_passes"_a)
      .def("take",
           [](DuplicateFinder& self) {
             std::vector<uint64_t> found;
             {
               nb::gil_scoped_release release;
               found = self.take();
             }
             return to_array(std::move(found));
           })
      .def_static("planned_bytes", &DuplicateFinder::planned_bytes, "rows"_a);
  m.def("clean_block", &clean_block, "data"_a, "begins"_a, "ends"_a, "input_indexes"_a,
        "ordinals"_a, "flags"_a, "options"_a, "compose"_a);
  m.def(
      "measure_repetition",
      [](nb::bytes line, bool vectors) {
        return measure_repetition({static_cast<const char*>(line.data()), line.size()}, vectors);
      },
      "line"_a, "vectors"_a = true, "The share of a line that repeats itself.");
  m.def("find_documents", &find_documents, "data"_a, "separator"_a, "begin"_a, "end"_a);
  m.def("extract_jsonl", &extract_rows, "data"_a, "field"_a);
  m.def("keep_documents", &keep_block, "text"_a, "documents"_a, "removed"_a, "options"_a);
  nb::class_<CharacterTable>(m, "CharacterTable")
      .def(
          "__init__",
          [](CharacterTable* self, Input<uint32_t> codes, Input<uint32_t> ids, uint32_t unknown) {
            new (self) CharacterTable(as_span(codes), as_span(ids), unknown);
          },
          "codes"_a, "ids"_a, "unknown"_a);
  m.def("encode_documents", &encode_pieces, "coder"_a, "kept"_a, "order"_a, "ending"_a, "end_id"_a,
        "id_bytes"_a);
  m.def("encode_documents", &encode_characters, "coder"_a, "kept"_a, "order"_a, "ending"_a,
        "end_id"_a, "id_bytes"_a);
  m.def("keep_freed_memory", &keep_freed_memory, "keep"_a,
        "Give freed memory back; say whether what is freed from now on stays with this process.");
  m.def("gather_bytes", &gather, "descriptors"_a, "offsets"_a, "sizes"_a, "out"_a);
}

}  // namespace lowtide
