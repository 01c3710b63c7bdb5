// Text quality rules: which documents are removed, and which lines of the others.
//
// Decisions equal those of datatrove's filters, in the given order of presets; the line rules of
// RefinedWeb follow DCLM's reconstruction. A document's words are split once: a preset that removes
// lines passes the words of the remaining lines on to the next preset.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "corpus/cleaning_rules.hpp"
#include "quality/ngrams.hpp"
#include "quality/text_parts.hpp"
#include "quality/words.hpp"

namespace lowtide {

enum Preset : uint32_t {
#define LOWTIDE_PRESET(enumerator, name, text) kPreset##enumerator,
#include "quality/limits.inc"
  kNumPresets,
};

enum Limit : uint32_t {
#define LOWTIDE_LIMIT(preset, enumerator, name, value, text) kLimit##preset##enumerator,
#include "quality/limits.inc"
  kNumLimits,
};

struct QualityOptions {
  std::vector<Preset> presets;  // in the order in which they are applied
  std::array<double, kNumLimits> limits = {
#define LOWTIDE_LIMIT(preset, enumerator, name, value, text) value,
#include "quality/limits.inc"
  };
};

// A line or paragraph: equal ones have the same key, different ones rarely.
struct TextPart {
  uint64_t key;
  uint32_t begin, size;  // in the text
};

class QualityRules {
 public:
  explicit QualityRules(const QualityOptions& options) : options_(options) {}

  // The rule that removes the document; kNumRules: it is kept, as `text()`. kRuleUnjudged: it has
  // too many words to be judged, and is kept unchanged.
  Rule judge(std::string_view document);
  std::string_view text() const { return text_; }
  bool is_changed() const { return changed_; }

  // Removed or changed lines of the last judged document: their number, the removed bytes, and the
  // beginnings of the first few.
  const std::array<RuleCount, kNumRules>& line_counts() const { return line_counts_; }
  const std::vector<Sample>& line_samples() const { return line_samples_; }

 private:
  double limit(Limit which) const { return options_.limits[which]; }
  bool exceeds(double value, Limit which) const { return limit(which) > 0 && value > limit(which); }
  bool is_below(double value, Limit which) const {
    return limit(which) > 0 && value < limit(which);
  }
  Rule apply(Preset preset);
  Rule judge_gopher_quality();
  // Lines of the text, as by str.splitlines.
  template <typename Found>
  void for_each_text_line(const Found& found) const {
    other_breaks_ ? for_each_line(text_, found) : for_each_newline(text_, found);
  }
  Rule judge_gopher_lines();
  Rule judge_gopher_repetition();
  Rule judge_repeated_parts();
  Rule judge_repeated_grams();
  bool may_repeat_more(uint32_t n) const;
  void add_part(std::string_view part);
  // How many parts repeat earlier ones, and their number of characters.
  std::pair<uint64_t, uint64_t> count_repeated();
  Rule judge_c4_paragraphs();
  Rule judge_fineweb();

  // Presets that remove lines build the next text and its words (quality/line_rules.cpp).
  Rule judge_c4();
  Rule judge_refinedweb();
  Rule keep_c4_line(std::string_view line, bool& changed);
  Rule find_refinedweb_line(std::string_view line, size_t words) const;
  void remove_line(Rule rule, std::string_view line, size_t bytes);
  void begin_rewriting();
  // `words` false: the line was changed, and is split into words again.
  void keep_line(std::string_view line, bool words);
  void end_rewriting();
  size_t count_sentences(size_t first_word) const;

  const QualityOptions& options_;
  WordSplitter splitter_;
  NgramCounter ngrams_;
  std::string_view text_;
  size_t chars_ = 0;
  bool changed_ = false, has_phrases_ = false;
  bool other_breaks_ = false;  // the document may have line ends other than newlines
  std::string written_, writing_, lowered_, line_;
  std::vector<Word> words_, next_words_;
  size_t word_ = 0;              // the first word that is not before the current line
  std::vector<TextPart> parts_;  // lines or paragraphs
  std::array<RuleCount, kNumRules> line_counts_{};
  std::vector<Sample> line_samples_;
};

}  // namespace lowtide
