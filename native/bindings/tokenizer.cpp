// Python's view of splitting, counting and merge learning. No logic lives here.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.hpp"
#include "bindings/native_vocabulary.hpp"
#include "tokenizer/encoding/encode_jobs.hpp"
#include "tokenizer/learning/counter.hpp"
#include "tokenizer/learning/merger.hpp"
#include "tokenizer/learning/round_learner.hpp"
#include "tokenizer/splitting/splitter.hpp"
#include "tokenizer/splitting/windows.hpp"

namespace lowtide {

namespace {

Pattern pattern_named(const std::string& name) {
  if (name == "gpt2") return Pattern::kGpt2;
  if (name == "cl100k") return Pattern::kCl100k;
  if (name == "o200k") return Pattern::kO200k;
  if (name == "qwen2") return Pattern::kQwen2;
  if (name == "qwen35") return Pattern::kQwen35;
  if (name == "digits") return Pattern::kDigits;
  if (name == "tekken") return Pattern::kTekken;
  if (name == "spaces") return Pattern::kSpaces;
  throw std::invalid_argument("unknown pattern: " + name);
}

std::vector<std::string> as_strings(const std::vector<nb::bytes>& list) {
  std::vector<std::string> strings;
  strings.reserve(list.size());
  for (const nb::bytes& item : list) strings.emplace_back(item.c_str(), item.size());
  return strings;
}

std::string_view view(const nb::bytes& text) {
  return {static_cast<const char*>(text.data()), text.size()};
}

std::vector<std::string_view> as_views(const std::vector<nb::bytes>& list) {
  std::vector<std::string_view> views;
  views.reserve(list.size());
  for (const nb::bytes& item : list) views.push_back(view(item));
  return views;
}

Instructions instructions_named(const std::string& name) {
  if (name == "scalar") return Instructions::kScalar;
  if (name == "avx2") return Instructions::kAvx2;
  if (name == "avx512") return Instructions::kAvx512;
  throw std::invalid_argument("unknown instructions: " + name);
}

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

// The class of every code point, by number; for tests.
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

size_t find_last_cut(const uint8_t* data, size_t length, const SpecialFinder& finder) {
  // What follows could complete a special token that begins in the last bytes.
  const size_t margin = std::max<size_t>(4, finder.longest());
  for (size_t at = length > margin ? length - margin : 0; at > 0; --at) {
    if (is_safe_cut(data, length, at) && finder.allows_cut(data, length, at)) return at;
  }
  return 0;
}

// The last place where `text` can be cut, also if more text follows it; 0 if there is none.
size_t last_cut(nb::bytes text, const std::vector<nb::bytes>& specials) {
  return find_last_cut(static_cast<const uint8_t*>(text.data()), text.size(),
                       SpecialFinder(as_strings(specials)));
}

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

template <typename Learner>
void take_items(Learner& learner, const std::vector<std::pair<nb::bytes, uint64_t>>& items) {
  for (const auto& [bytes, count] : items) {
    // Counts of pairs add up in 64 bits: so many pieces of this kind are more than any text has.
    require(count <= uint64_t{1} << 48 && bytes.size() < UINT32_MAX, "a piece or count too large");
    learner.add_piece(static_cast<const uint8_t*>(bytes.data()), bytes.size(), count);
  }
}

template <typename Learner>
Array<uint32_t> merges(const Learner& learner) {
  std::vector<uint32_t> flat;
  flat.reserve(learner.merges().size() * 3);
  for (const Merge& merge : learner.merges()) {
    flat.insert(flat.end(), {merge.left, merge.right, merge.token});
  }
  return to_array(std::move(flat));
}

// What all learners have, whatever they hold in memory.
template <typename Learner>
void def_learning(nb::class_<Learner>& learner) {
  learner.def("take", &take<Learner>, nb::arg("counter"), nb::call_guard<nb::gil_scoped_release>())
      .def("take_items", &take_items<Learner>, nb::arg("items"))
      .def("build", &Learner::build, nb::call_guard<nb::gil_scoped_release>())
      .def("learn", &Learner::learn, nb::arg("target"), nb::arg("max_merges"),
           nb::arg("min_frequency"), nb::call_guard<nb::gil_scoped_release>())
      .def("merges", &merges<Learner>)
      .def_prop_ro("merges_done", &Learner::merges_done)
      .def_prop_ro("num_words", &Learner::num_words);
}

template <typename Symbol>
void bind_round_learner(nb::module_& m, const char* name) {
  nb::class_<RoundLearner<Symbol>> learner(m, name);
  learner
      .def(
          "__init__",
          [](RoundLearner<Symbol>* self, const std::string& tie_break, const FileName& file_dir,
             size_t memory_bytes) {
            new (self)
                RoundLearner<Symbol>(tie_break_named(tie_break), file_dir.bytes, memory_bytes);
          },
          nb::arg("tie_break"), nb::kw_only(), nb::arg("file_dir"), nb::arg("memory_bytes"))
      .def_prop_ro("rounds", &RoundLearner<Symbol>::rounds)
      .def_prop_ro("parts", &RoundLearner<Symbol>::parts)
      .def_prop_ro("file_bytes", &RoundLearner<Symbol>::file_bytes);
  def_learning(learner);
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

// Text in NFC as Python's tables have it. Bytes that are no text stay as they are.
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

// Where text may be cut without changing its ids is known for pieces of other patterns only.
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

// The ids of pieces, merged without caches: the short ones together, the others one by one.
std::vector<std::vector<uint32_t>> merge_pieces(const NativeVocabulary& self,
                                                const std::vector<nb::bytes>& pieces,
                                                const std::string& at_most) {
  const PieceMerger merger(instructions_named(at_most));
  const MergeTable& table = self.vocabulary->merges();
  std::vector<std::vector<uint32_t>> ids(pieces.size());
  std::vector<uint32_t> num_ids(pieces.size());
  std::vector<PieceToMerge> together;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].size() == 0) continue;
    ids[i].resize(pieces[i].size());
    const PieceToMerge piece{static_cast<const uint8_t*>(pieces[i].data()), pieces[i].size(),
                             ids[i].data(), &num_ids[i]};
    if (piece.length <= PieceMerger::kShort) {
      together.push_back(piece);
    } else {
      merger.merge(table, piece);
    }
  }
  merger.merge_short(table, together);
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

// Where the first special token begins; -1 if there is none.
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

// The first place behind the longest token where `text` can be cut, also if more text came before it;
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
  m.def("character_classes", &character_classes, "The class of every code point, for tests.");
  m.def("safe_cuts", &safe_cuts, nb::arg("text"), nb::arg("specials"),
        "The offsets where `text` can be split apart without changing its pieces.");

  m.def("last_cut", &last_cut, nb::arg("text"), nb::arg("specials"),
        "The last offset where `text` can be cut, also if more text follows; 0 if there is none.");
  m.def("rules_by_rank", &rules_by_rank, nb::arg("tokens"),
        "Every pair of tokens that spells a token, as flat rows (left, right, token).");

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
      .def("merge_pieces", &merge_pieces, nb::arg("pieces"), nb::arg("at_most") = "avx512")
      .def("merge_long", &merge_long, nb::arg("piece"), nb::arg("chunk"))
      .def("find_special", &find_special, nb::arg("text"))
      .def("last_cut", &last_cut_of, nb::arg("text"), nb::arg("specials"))
      .def("first_cut", &first_cut_of, nb::arg("text"), nb::arg("specials"))
      .def("decode", &decode, nb::arg("ids"));

  nb::class_<MergeLearner> learner(m, "MergeLearner");
  learner
      .def(
          "__init__",
          [](MergeLearner* self, const std::string& tie_break) {
            new (self) MergeLearner(std::make_shared<TokenTable>(tie_break_named(tie_break)));
          },
          nb::arg("tie_break"))
      .def_prop_ro("bytes", &MergeLearner::bytes);
  def_learning(learner);
  bind_round_learner<uint16_t>(m, "RoundLearner");
  bind_round_learner<uint32_t>(m, "WideRoundLearner");
}

}  // namespace lowtide
