// Functions only for tests and benchmarks, in the submodule _native.testing: separate parts of
// stages, and kernels with and without vector instructions.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.hpp"
#include "bindings/tokenizer_arguments.hpp"
#include "corpus/line_measures.hpp"
#include "corpus/line_scan.hpp"
#include "dataset/encoding.hpp"
#include "quality/words.hpp"
#include "tokenizer/splitting/character_classes.hpp"
#include "tokenizer/splitting/windows.hpp"

namespace lowtide {
using namespace nb::literals;
namespace {

// The class of every code point, by number.
Array<uint8_t> character_classes() {
  const ClassTable& table = ClassTable::get();
  std::vector<uint8_t> classes(0x110000);
  for (uint32_t code = 0; code < classes.size(); ++code) classes[code] = table(code);
  return to_array(std::move(classes));
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

void bind_lines(nb::module_& m) {
  m.def(
      "measure_repetition",
      [](nb::bytes line, bool vectors) {
        const std::string_view text = view(line);
        return measure_repetition(text, count_repeated_bytes(text.data(), text.size()), vectors);
      },
      "line"_a, "vectors"_a = true, "The share of a line that repeats itself.");
  m.def(
      "scan_line",
      [](nb::bytes text, bool vectors) {
        const LineScan line = scan_line(text.c_str(), text.c_str() + text.size(), vectors);
        return nb::make_tuple(line.end - text.c_str(), line.plain, line.repeated);
      },
      "text"_a, "vectors"_a = true,
      "Where the first line ends, whether cleaning leaves it as it is, bytes like the one before.");
  m.def(
      "find_bytes",
      [](nb::bytes text, nb::bytes wanted, bool vectors) -> ptrdiff_t {
        const char* found =
            find_bytes(text.c_str(), text.c_str() + text.size(), view(wanted), vectors);
        return found == nullptr ? -1 : found - text.c_str();
      },
      "text"_a, "wanted"_a, "vectors"_a = true,
      "Where one stands first in the other; -1: nowhere.");
}

}  // namespace

void bind_testing(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("testing", "What only tests and benchmarks call.");
  bind_lines(m);
  m.def(
      "split_words",
      [](nb::bytes text) {
        WordSplitter splitter;
        std::vector<Word> words;
        splitter.split(view(text), 0, ~size_t{0}, words);
        nb::list list;
        for (const Word& word : words) {
          list.append(nb::make_tuple(word.begin, word.chars(), word.facts & 0xFF));
        }
        return list;
      },
      "text"_a, "First byte, characters and flags of every word, as rules of quality count them.");
  m.def("shuffle_key", &shuffle_key, "seed"_a, "input_index"_a, "ordinal"_a,
        "A document's place in the shuffle.");
  m.def("character_classes", &character_classes, "The class of every code point.");
  m.def("safe_cuts", &safe_cuts, "text"_a, "specials"_a,
        "The offsets where `text` can be split apart without changing its pieces.");
}

}  // namespace lowtide
