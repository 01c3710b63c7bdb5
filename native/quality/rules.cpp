#include "quality/rules.hpp"

#include <algorithm>
#include <cstring>

#include "corpus/text_hash.hpp"
#include "quality/text_parts.hpp"

namespace lowtide {
namespace {

constexpr size_t kMostWords = 1 << 20;  // 16 bytes each; English has as many in 5.5 MB

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// How many of the parts came before, and how many characters they have.
std::pair<uint64_t, uint64_t> count_repeated(std::vector<std::pair<uint64_t, uint32_t>>& parts) {
  std::sort(parts.begin(), parts.end());
  uint64_t repeated = 0, chars = 0;
  for (size_t at = 1; at < parts.size(); ++at) {
    if (parts[at].first != parts[at - 1].first) continue;
    ++repeated;
    chars += parts[at].second;
  }
  return {repeated, chars};
}

std::pair<uint64_t, uint32_t> describe_part(std::string_view part) {
  const auto chars = static_cast<uint32_t>(count_code_points(part.data(), part.size()));
  return {hash_word(part), chars};
}

}  // namespace

Rule QualityRules::judge(std::string_view document) {
  text_ = document;
  changed_ = false;
  line_counts_ = {};
  line_samples_.clear();
  words_.clear();
  if (!splitter_.split(document, 0, kMostWords, words_)) return kRuleUnjudged;
  for (const Preset preset : options_.presets) {
    chars_ = count_code_points(text_.data(), text_.size());
    const Rule rule = apply(preset);
    if (rule != kNumRules) return rule;
  }
  return kNumRules;
}

Rule QualityRules::apply(Preset preset) {
  switch (preset) {
    case kPresetGopherQuality:
      return judge_gopher_quality();
    case kPresetGopherRepetition:
      return judge_gopher_repetition();
    case kPresetC4:
      return judge_c4();
    case kPresetC4Paragraphs:
      return judge_c4_paragraphs();
    case kPresetFineWeb:
      return judge_fineweb();
    case kPresetRefinedWeb:
      return judge_refinedweb();
    case kNumPresets:
      break;
  }
  return kNumRules;
}

Rule QualityRules::judge_gopher_quality() {
  static const std::array<uint64_t, 8> stop_words = {
      hash_word("the"), hash_word("be"),   hash_word("to"),   hash_word("of"),
      hash_word("and"), hash_word("that"), hash_word("have"), hash_word("with")};
  uint64_t real = 0, real_chars = 0, alpha = 0;
  uint32_t found = 0;
  for (const Word& word : words_) {
    if (word.facts & kWordReal) ++real, real_chars += word.chars();
    alpha += word.facts & kWordAlpha;
    if (word.chars() > 4) continue;
    for (uint32_t stop = 0; stop < stop_words.size(); ++stop) {
      if (word.hash == stop_words[stop]) found |= 1u << stop;
    }
  }
  const double mean = share(real_chars, real);
  if (is_below(static_cast<double>(real), kLimitGopherQualityMinWords)) return kRuleGopherMinWords;
  if (exceeds(static_cast<double>(real), kLimitGopherQualityMaxWords)) return kRuleGopherMaxWords;
  if (is_below(mean, kLimitGopherQualityMinWordChars)) return kRuleGopherMinWordChars;
  if (exceeds(mean, kLimitGopherQualityMaxWordChars)) return kRuleGopherMaxWordChars;
  const uint64_t hashes = static_cast<uint64_t>(std::count(text_.begin(), text_.end(), '#'));
  if (exceeds(share(hashes, words_.size()), kLimitGopherQualityMaxHashes)) return kRuleGopherHashes;
  const uint64_t ellipses = count_text(text_, "...") + count_text(text_, "\xE2\x80\xA6");
  if (exceeds(share(ellipses, words_.size()), kLimitGopherQualityMaxEllipses)) {
    return kRuleGopherEllipses;
  }
  const Rule lines = judge_gopher_lines();
  if (lines != kNumRules) return lines;
  if (is_below(share(alpha, words_.size()), kLimitGopherQualityMinAlphaWords)) {
    return kRuleGopherAlphaWords;
  }
  const double different = static_cast<double>(__builtin_popcount(found));
  return is_below(different, kLimitGopherQualityMinStopWords) ? kRuleGopherStopWords : kNumRules;
}

Rule QualityRules::judge_gopher_lines() {
  uint64_t lines = 0, bullets = 0, ellipses = 0;
  for_each_line(text_, [&](std::string_view line) {
    ++lines;
    const std::string_view inner = strip(line);
    bullets += inner.starts_with('-') || inner.starts_with("\xE2\x80\xA2");
    ellipses += inner.ends_with("...") || inner.ends_with("\xE2\x80\xA6");
  });
  if (exceeds(share(bullets, lines), kLimitGopherQualityMaxBulletLines)) {
    return kRuleGopherBulletLines;
  }
  return exceeds(share(ellipses, lines), kLimitGopherQualityMaxEllipsisLines)
             ? kRuleGopherEllipsisLines
             : kNumRules;
}

Rule QualityRules::judge_gopher_repetition() {
  const Rule parts = judge_repeated_parts();
  if (parts != kNumRules) return parts;
  ngrams_.begin(words_);
  for (uint32_t n = 2; n <= 10; ++n) {
    if (n > 2) ngrams_.advance();
    const uint64_t chars = n <= 4 ? ngrams_.measure_top() : ngrams_.measure_repeated();
    if (exceeds(share(chars, chars_), static_cast<Limit>(kLimitGopherRepetitionMaxTop2 + n - 2))) {
      return static_cast<Rule>(kRuleTop2Gram + n - 2);
    }
  }
  return kNumRules;
}

Rule QualityRules::judge_repeated_parts() {
  parts_.clear();
  for_each_run(strip(text_), 2,
               [&](std::string_view part) { parts_.push_back(describe_part(part)); });
  const auto [paragraphs, paragraph_chars] = count_repeated(parts_);
  if (exceeds(share(paragraphs, parts_.size()), kLimitGopherRepetitionMaxParagraphs)) {
    return kRuleRepeatedParagraphs;
  }
  if (exceeds(share(paragraph_chars, chars_), kLimitGopherRepetitionMaxParagraphChars)) {
    return kRuleRepeatedParagraphChars;
  }
  parts_.clear();
  for_each_run(text_, 1, [&](std::string_view part) { parts_.push_back(describe_part(part)); });
  const auto [lines, line_chars] = count_repeated(parts_);
  if (exceeds(share(lines, parts_.size()), kLimitGopherRepetitionMaxLines)) {
    return kRuleRepeatedLines;
  }
  return exceeds(share(line_chars, chars_), kLimitGopherRepetitionMaxLineChars)
             ? kRuleRepeatedLineChars
             : kNumRules;
}

Rule QualityRules::judge_c4_paragraphs() {
  uint64_t paragraphs = 0;
  const double chars = limit(kLimitC4ParagraphsMinChars);
  for_each_part(text_, '\n', [&](std::string_view line) {
    const size_t size = line.size();
    paragraphs += static_cast<double>(size) >= chars &&
                  static_cast<double>(count_code_points(line.data(), size)) >= chars;
  });
  return is_below(static_cast<double>(paragraphs), kLimitC4ParagraphsMinParagraphs)
             ? kRuleC4FewParagraphs
             : kNumRules;
}

Rule QualityRules::judge_fineweb() {
  parts_.clear();
  uint64_t lines = 0, ended = 0, short_lines = 0, newlines = 0;
  for_each_part(text_, '\n', [&](std::string_view line) {
    ++newlines;
    if (is_blank(line)) return;
    parts_.push_back(describe_part(line));
    ++lines;
    ended += (text_flags(last_code(line)) & kTextEnd) != 0;
    short_lines += parts_.back().second <= limit(kLimitFineWebShortLineChars);
  });
  --newlines;  // parts are one more
  if (lines == 0) return kRuleFineWebEmpty;
  if (is_below(share(ended, lines), kLimitFineWebMinEndLines)) return kRuleFineWebEndLines;
  if (exceeds(share(short_lines, lines), kLimitFineWebMaxShortLines)) return kRuleFineWebShortLines;
  const uint64_t repeated = count_repeated(parts_).second;
  if (exceeds(share(repeated, chars_ - newlines), kLimitFineWebMaxLineChars)) {
    return kRuleFineWebLineChars;
  }
  return exceeds(share(newlines, words_.size()), kLimitFineWebMaxNewlines) ? kRuleFineWebNewlines
                                                                           : kNumRules;
}

}  // namespace lowtide
