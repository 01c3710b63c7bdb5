// Bindings for splitting and encoding. No logic here.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.hpp"
#include "bindings/native_vocabulary.hpp"
#include "bindings/tokenizer_arguments.hpp"
#include "tokenizer/encoding/encode_jobs.hpp"
#include "tokenizer/splitting/splitter.hpp"
#include "tokenizer/splitting/windows.hpp"

namespace lowtide {

namespace {

Array<uint32_t> split(const std::string& pattern, nb::bytes text, const std::string& at_most) {
  require(text.size() <= UINT32_MAX, "offsets of pieces have 32 bits: text of 4 GiB at most");
  const SplitFunction function = splitter(pattern_named(pattern), instructions_named(at_most));
  std::vector<uint32_t> ends, batch(4096);
  const uint8_t* const data = static_cast<const uint8_t*>(text.data());
  for (size_t position = 0; position < text.size();) {
    const size_t count = function(data, text.size(), &position, batch.data(), batch.size());
    ends.insert(ends.end(), batch.begin(), batch.begin() + static_cast<ptrdiff_t>(count));
  }
  return to_array(std::move(ends));
}

// The last offset where `text` can be cut, even if more text follows it; 0 if there is none.
size_t last_cut(nb::bytes text, const std::vector<nb::bytes>& specials) {
  return find_last_cut(static_cast<const uint8_t*>(text.data()), text.size(),
                       SpecialFinder(as_strings(specials)));
}

std::optional<std::vector<MergeRule>> rules_from(const std::optional<Input<uint32_t>>& merges) {
  if (!merges) return std::nullopt;
  require(merges->size() % 3 == 0, "a merge has three ids: left, right, token");
  std::vector<MergeRule> rules;
  rules.reserve(merges->size() / 3);
  const uint32_t* const flat = merges->data();
  for (uint32_t rank = 0; rank * size_t{3} + 2 < merges->size(); ++rank) {
    rules.push_back({flat[rank * 3], flat[rank * 3 + 1], rank, flat[rank * 3 + 2]});
  }
  return rules;
}

// The rules of a ranked vocabulary as rows (left, right, token).
Array<uint32_t> rules_by_rank(const std::vector<nb::bytes>& tokens) {
  std::vector<uint32_t> flat;
  for (const MergeRule& rule : Vocabulary::rules_by_rank(as_views(tokens))) {
    flat.insert(flat.end(), {rule.left, rule.right, rule.token});
  }
  return to_array(std::move(flat));
}

// Text in NFC by Python's tables. Invalid bytes are kept.
std::string compose_nfc(nb::handle compose, std::string_view text) {
  const nb::gil_scoped_acquire acquire;
  const nb::bytes composed = nb::cast<nb::bytes>(compose(nb::bytes(text.data(), text.size())));
  return {composed.c_str(), composed.size()};
}

using AddedRow = std::tuple<nb::bytes, uint32_t, bool, bool, bool, bool>;

std::vector<AddedToken> added_from(const std::vector<AddedRow>& rows) {
  std::vector<AddedToken> tokens;
  for (const auto& [bytes, id, special, lstrip, rstrip, normalized] : rows) {
    tokens.push_back(
        {std::string(bytes.c_str(), bytes.size()), id, special, lstrip, rstrip, normalized});
  }
  return tokens;
}

void make_vocabulary(NativeVocabulary* self, const std::string& pattern,
                     const std::vector<nb::bytes>& tokens,
                     const std::optional<Input<uint32_t>>& merges,
                     const std::vector<std::pair<nb::bytes, uint32_t>>& specials, bool whole_pieces,
                     size_t cache_bytes, const std::vector<AddedRow>& added,
                     const std::optional<nb::callable>& compose, std::optional<uint32_t> first_half,
                     uint8_t blank_before) {
  require(blank_before <= 3, "blank_before must be 0 to 3");
  require((pattern == "spaces") == first_half.has_value(), "halves go with the pattern spaces");
  require(cache_bytes <= size_t{1} << 34, "cache_bytes must be 16 GiB at most");
  std::vector<Vocabulary::Special> special_list;
  for (const auto& [bytes, id] : specials) {
    special_list.push_back({std::string(bytes.c_str(), bytes.size()), id});
  }
  Compose call;
  if (compose) {
    call = [compose = *compose](std::string_view text) { return compose_nfc(compose, text); };
  }
  auto vocabulary = std::make_shared<const Vocabulary>(
      pattern_named(pattern), as_strings(tokens), rules_from(merges), std::move(special_list),
      whole_pieces, added_from(added), std::move(call),
      Halves{first_half.value_or(kNoToken), static_cast<BlankBefore>(blank_before)});
  new (self) NativeVocabulary{vocabulary, {vocabulary, cache_bytes}};
}

// Places to cut without changing ids are only known for pieces of other patterns.
void require_cuts(const NativeVocabulary& self) {
  require(self.vocabulary->pattern() != Pattern::kSpaces, "text of this pattern goes in one piece");
}

Array<uint32_t> encode(NativeVocabulary& self, nb::bytes text, bool specials, bool is_first) {
  std::vector<uint32_t> ids;
  const std::string_view bytes = view(text);
  {
    const nb::gil_scoped_release release;
    EncoderPool::Lease encoder(self.pool);
    encoder->encode_pieces(bytes, specials, is_first, ids);
  }
  return to_array(std::move(ids));
}

nb::tuple encode_many(NativeVocabulary& self, const std::vector<nb::bytes>& texts, bool specials,
                      size_t num_threads) {
  require_threads(num_threads);
  require_cuts(self);
  const std::vector<std::string_view> views = as_views(texts);
  EncodedTexts encoded;
  {
    const nb::gil_scoped_release release;
    encoded = encode_texts(self.pool, views, specials, num_threads);
  }
  return nb::make_tuple(to_array(std::move(encoded.ids)), to_array(std::move(encoded.ends)));
}

// The ids of pieces, merged without caches: together from characters on, or one by one from bytes on.
std::vector<std::vector<uint32_t>> merge_pieces(const NativeVocabulary& self,
                                                const std::vector<nb::bytes>& pieces,
                                                const std::string& at_most, bool together) {
  PieceMerger merger(instructions_named(at_most));
  const MergeTable& table = self.vocabulary->merges();
  std::vector<std::vector<uint32_t>> ids(pieces.size());
  std::vector<uint32_t> num_ids(pieces.size());
  std::vector<PieceToMerge> to_merge;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].size() == 0) continue;
    ids[i].resize(pieces[i].size());
    to_merge.push_back({static_cast<const uint8_t*>(pieces[i].data()), pieces[i].size(),
                        ids[i].data(), &num_ids[i]});
    if (!together) merger.merge(table, to_merge.back());
  }
  if (together) merger.merge_all(table, self.vocabulary->characters(), to_merge);
  for (size_t i = 0; i < pieces.size(); ++i) ids[i].resize(num_ids[i]);
  return ids;
}

// The ids of one piece, merged in chunks of at least `chunk` bytes.
std::vector<uint32_t> merge_long(const NativeVocabulary& self, nb::bytes piece, size_t chunk) {
  LongPieceMerger merger(*self.vocabulary, chunk);
  std::vector<uint32_t> ids;
  merger.merge(
      static_cast<const uint8_t*>(piece.data()), piece.size(),
      [&](std::span<const uint32_t> part) { ids.insert(ids.end(), part.begin(), part.end()); });
  return ids;
}

// The offset of the first special token; -1 if there is none.
int64_t find_special(const NativeVocabulary& self, nb::bytes text) {
  const SpecialFinder::Match match = self.vocabulary->special_finder().find(
      static_cast<const uint8_t*>(text.data()), text.size(), 0);
  return match.begin == SpecialFinder::npos ? -1 : static_cast<int64_t>(match.begin);
}

size_t last_cut_of(const NativeVocabulary& self, nb::bytes text, bool specials) {
  require_cuts(self);
  return find_last_cut(static_cast<const uint8_t*>(text.data()), text.size(),
                       self.vocabulary->cut_finder(specials));
}

// The first offset after the longest token where `text` can be cut, even if more text precedes it;
// its size if there is none.
size_t first_cut_of(const NativeVocabulary& self, nb::bytes text, bool specials) {
  require_cuts(self);
  const SpecialFinder& finder = self.vocabulary->cut_finder(specials);
  return find_cut(static_cast<const uint8_t*>(text.data()), text.size(), 1 + finder.longest(),
                  finder);
}

nb::bytes decode(const NativeVocabulary& self, const Input<uint32_t>& ids) {
  std::string text;
  const uint32_t* const data = ids.data();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (data[i] >= self.vocabulary->size()) {
      throw std::out_of_range("id " + std::to_string(data[i]) + " at place " + std::to_string(i) +
                              ", the vocabulary has " + std::to_string(self.vocabulary->size()));
    }
    text += self.vocabulary->token(data[i]);
  }
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
  m.def("split", &split, nb::arg("pattern"), nb::arg("text"), nb::arg("at_most") = "avx512",
        "The offsets where the pieces of `text` end; `at_most` names the instructions allowed.");
  m.def("last_cut", &last_cut, nb::arg("text"), nb::arg("specials"),
        "The last offset where `text` can be cut, also if more text follows; 0 if there is none.");
  m.def("rules_by_rank", &rules_by_rank, nb::arg("tokens"),
        "Every pair of tokens that spells a token, as flat rows (left, right, token).");

  nb::class_<NativeVocabulary>(m, "Vocabulary")
      .def("__init__", &make_vocabulary, nb::arg("pattern"), nb::arg("tokens"),
           nb::arg("merges").none(), nb::arg("specials"), nb::kw_only(), nb::arg("whole_pieces"),
           nb::arg("cache_bytes"), nb::arg("added") = std::vector<AddedRow>{},
           nb::arg("compose") = nb::none(), nb::arg("first_half") = nb::none(),
           nb::arg("blank_before") = 0)
      .def("encode", &encode, nb::arg("text"), nb::arg("specials"), nb::arg("is_first") = true)
      .def("encode_many", &encode_many, nb::arg("texts"), nb::arg("specials"),
           nb::arg("num_threads"))
      .def(
          "encode_file",
          [](NativeVocabulary& self, FileName input_path, uint64_t begin, uint64_t stop,
             uint64_t end, int output_file, FileName output_path, uint64_t output_offset,
             size_t id_bytes, bool specials, size_t num_threads, size_t window_bytes,
             size_t largest_window) {
            require_id_bytes(id_bytes);
            require_threads(num_threads);
            require_cuts(self);
            require(window_bytes >= 1, "window_bytes must be at least 1");
            require(begin <= end, "the part to encode begins behind the end of the file");
            require(output_offset <= INT64_MAX, "output_offset is larger than any file");
            const nb::gil_scoped_release release;
            return encode_file(
                self.pool, {std::move(input_path.bytes), std::move(output_path.bytes), begin, stop,
                            end, output_file, output_offset, id_bytes, specials, num_threads,
                            window_bytes, largest_window});
          },
          nb::kw_only(), nb::arg("input_path"), nb::arg("begin"), nb::arg("stop"), nb::arg("end"),
          nb::arg("output_file"), nb::arg("output_path"), nb::arg("output_offset"),
          nb::arg("id_bytes"), nb::arg("specials"), nb::arg("num_threads"), nb::arg("window_bytes"),
          nb::arg("largest_window") = size_t{1} << 31)
      .def("merge_pieces", &merge_pieces, nb::arg("pieces"), nb::arg("at_most") = "avx512",
           nb::arg("together") = true)
      .def("merge_long", &merge_long, nb::arg("piece"), nb::arg("chunk"))
      .def("find_special", &find_special, nb::arg("text"))
      .def("last_cut", &last_cut_of, nb::arg("text"), nb::arg("specials"))
      .def("first_cut", &first_cut_of, nb::arg("text"), nb::arg("specials"))
      .def("decode", &decode, nb::arg("ids"));
}

}  // namespace lowtide
