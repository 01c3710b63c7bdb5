// Bindings for reading and writing byte-level vocabularies. No logic here.
#include "tokenizer/encoding/vocabulary_files.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "bindings/bindings.hpp"

namespace lowtide {
namespace {

std::string_view view(const nb::bytes& text) {
  return {static_cast<const char*>(text.data()), text.size()};
}

nb::bytes as_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

std::vector<std::string_view> views(const std::vector<nb::bytes>& list) {
  std::vector<std::string_view> result;
  result.reserve(list.size());
  for (const nb::bytes& item : list) result.push_back(view(item));
  return result;
}

using SpecialRow = std::tuple<uint32_t, nb::bytes, nb::bytes>;

std::vector<SpecialText> special_texts(const std::vector<SpecialRow>& rows) {
  std::vector<SpecialText> result;
  for (const auto& [id, text, json] : rows) {
    result.push_back({id, std::string(view(text)), std::string(view(json))});
  }
  return result;
}

nb::object find_sections(nb::bytes text) {
  const auto found = find_json_sections(view(text));
  if (!found) return nb::none();
  const char* const begin = view(text).data();
  return nb::make_tuple(found->vocab.data() - begin, found->vocab.size(),
                        found->merges.data() - begin, found->merges.size());
}

nb::object read(nb::bytes vocab, nb::bytes merges, bool merges_are_json,
                const std::vector<nb::bytes>& specials) {
  std::vector<std::string> texts;
  for (const std::string_view text : views(specials)) texts.emplace_back(text);
  std::optional<ByteLevelVocabulary> result;
  {
    const nb::gil_scoped_release release;
    result = read_byte_level(view(vocab), view(merges), merges_are_json, texts);
  }
  if (!result) return nb::none();
  nb::list tokens;
  for (const std::string& token : result->tokens) tokens.append(as_bytes(token));
  nb::list special_ids;
  for (const int64_t id : result->special_ids) special_ids.append(id);
  return nb::make_tuple(tokens, special_ids, to_view<uint32_t>(std::move(result->merges)));
}

nb::object write_vocab(const std::vector<nb::bytes>& tokens,
                       const std::vector<SpecialRow>& specials, nb::bytes between,
                       nb::bytes colon) {
  const auto written =
      write_vocab_json(views(tokens), special_texts(specials), view(between), view(colon));
  return written ? nb::object(as_bytes(*written)) : nb::none();
}

nb::object write_merge_rows(const std::vector<nb::bytes>& tokens, const Input<uint32_t>& rows,
                            const std::vector<SpecialRow>& specials, bool as_json) {
  require(rows.size() % 3 == 0, "a merge has three ids: left, right, token");
  const auto written =
      write_merges(views(tokens), {rows.data(), rows.size()}, special_texts(specials), as_json);
  return written ? nb::object(as_bytes(*written)) : nb::none();
}

// Every token after its length in four bytes, little-endian.
nb::bytes join_with_lengths(const std::vector<nb::bytes>& tokens) {
  std::string joined;
  for (const std::string_view token : views(tokens)) {
    require(token.size() <= UINT32_MAX, "a token of 4 GiB");
    for (int shift = 0; shift < 32; shift += 8) {
      joined.push_back(static_cast<char>(token.size() >> shift & 0xFF));
    }
    joined += token;
  }
  return as_bytes(joined);
}

}  // namespace

void bind_vocabulary_files(nb::module_& m) {
  m.def("find_json_sections", &find_sections, nb::arg("text"),
        "Where the vocab and the merges of a tokenizer.json are: (begin, size, begin, size).");
  m.def("read_byte_level", &read, nb::arg("vocab"), nb::arg("merges"), nb::kw_only(),
        nb::arg("merges_are_json"), nb::arg("specials"),
        "Tokens by id, the ids of the special tokens, flat rows of merges; None if the files are "
        "not quite as they should be.");
  m.def("write_vocab_json", &write_vocab, nb::arg("tokens"), nb::arg("specials"), nb::kw_only(),
        nb::arg("between"), nb::arg("colon"),
        "Token texts with their ids; None if a special token is written like another.");
  m.def("write_merges", &write_merge_rows, nb::arg("tokens"), nb::arg("rows"), nb::arg("specials"),
        nb::kw_only(), nb::arg("as_json"), "Merges as the texts of their two parts.");
  m.def("join_with_lengths", &join_with_lengths, nb::arg("tokens"));
}

}  // namespace lowtide
