#include "quality/rules.hpp"

#include <algorithm>
#include <cstring>

#include "corpus/text_hash.hpp"
#include "quality/large_buffers.hpp"
#include "quality/text_parts.hpp"
#include "system/clones.hpp"

namespace lowtide {
namespace {

constexpr size_t kScanned = 4096;       // bytes between checks of a scan's results
constexpr size_t kMostWords = 1 << 20;  // 16 bytes each; English has as many in 5.5 MB

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// The stop words of Gopher's rules, looked up by some bits of their hashes.
class StopWords {
 public:
  StopWords() {
    constexpr std::string_view words[] = {"the", "be", "to", "of", "and", "that", "have", "with"};
    while (true) {
      slots_.fill({0, 0});
      uint32_t bit = 1;
      for (const std::string_view word : words) {
        auto& [hash, mark] = slots_[hash_word(word) >> shift_ & (slots_.size() - 1)];
        if (mark != 0) break;
        hash = hash_word(word), mark = bit;
        bit <<= 1;
      }
      if (bit == 1u << std::size(words)) break;
      ++shift_;
    }
  }
  // A separate bit for each of them; 0 if it is none.
  uint32_t find(uint64_t hash) const {
    const auto& [known, mark] = slots_[hash >> shift_ & (slots_.size() - 1)];
    return known == hash ? mark : 0;
  }

 private:
  uint32_t shift_ = 0;
  std::array<std::pair<uint64_t, uint32_t>, 64> slots_{};
};

uint64_t count_bytes(std::string_view text, char wanted) {
  uint64_t count = 0;
  for (size_t begin = 0; begin < text.size(); begin += 128) {
    uint8_t found = 0;  // narrow, so that 16 of them are counted at a time
    const size_t end = std::min(begin + 128, text.size());
    for (size_t at = begin; at < end; ++at) found += text[at] == wanted;
    count += found;
  }
  return count;
}

// True if the text may have line ends other than newlines. Only pairs of bytes are compared,
// regardless of the byte before them, so there are false positives.
LOWTIDE_CLONES bool may_have_other_breaks(const char* text, size_t size) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text);
  for (size_t begin = 0; begin < size; begin += kScanned) {
    uint8_t found = 0;
    const size_t end = std::min(begin + kScanned, size - 1);
    for (size_t at = begin; at < end; ++at) {
      const uint8_t byte = bytes[at], next = bytes[at + 1];
      const auto control = static_cast<uint8_t>(byte - 0x0B),
                 other = static_cast<uint8_t>(byte - 0x1C);
      const auto low = static_cast<uint8_t>(next - 0xA8);
      found |=
          static_cast<uint8_t>((control < 3) | (other < 3) | ((byte == 0xC2) & (next == 0x85)) |
                               ((byte == 0x80) & (low < 2)));
    }
    if (found != 0) return true;
  }
  return size > 0 && (bytes[size - 1] - 0x0Bu < 3 || bytes[size - 1] - 0x1Cu < 3);
}

// True if the text contains "..." or its single character.
LOWTIDE_CLONES bool has_ellipses(const char* text, size_t size) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text);
  for (size_t begin = 0; begin + 2 < size; begin += kScanned) {
    uint8_t found = 0;
    const size_t end = std::min(begin + kScanned, size - 2);
    for (size_t at = begin; at < end; ++at) {
      const uint8_t first = bytes[at], second = bytes[at + 1], third = bytes[at + 2];
      found |= static_cast<uint8_t>(((first == '.') & (second == '.') & (third == '.')) |
                                    ((first == 0xE2) & (second == 0x80) & (third == 0xA6)));
    }
    if (found != 0) return true;
  }
  return false;
}

}  // namespace

Rule QualityRules::judge(std::string_view document) {
  text_ = document;
  changed_ = false;
  line_counts_ = {};
  line_samples_.clear();
  words_.clear();
  give_back_large(next_words_);  // left by a document that was removed while it was rewritten
  give_back_large(writing_);
  if (!splitter_.split(document, 0, kMostWords, words_)) return kRuleUnjudged;
  other_breaks_ = may_have_other_breaks(document.data(), document.size());
  std::string_view counted;
  for (const Preset preset : options_.presets) {
    if (counted.data() != text_.data() || counted.size() != text_.size()) {
      counted = text_;
      chars_ = count_code_points(text_.data(), text_.size());
    }
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
  static const StopWords stop_words;
  uint64_t real = 0, real_chars = 0, alpha = 0;
  uint32_t found = 0;
  for (const Word& word : words_) {
    const uint64_t is_real = word.facts / kWordReal % 2;
    real += is_real;
    real_chars += word.chars() * is_real;
    alpha += word.facts & kWordAlpha;
    found |= stop_words.find(word.hash);
  }
  const double mean = share(real_chars, real);
  if (is_below(static_cast<double>(real), kLimitGopherQualityMinWords)) return kRuleGopherMinWords;
  if (exceeds(static_cast<double>(real), kLimitGopherQualityMaxWords)) return kRuleGopherMaxWords;
  if (is_below(mean, kLimitGopherQualityMinWordChars)) return kRuleGopherMinWordChars;
  if (exceeds(mean, kLimitGopherQualityMaxWordChars)) return kRuleGopherMaxWordChars;
  const uint64_t hashes = count_bytes(text_, '#');
  if (exceeds(share(hashes, words_.size()), kLimitGopherQualityMaxHashes)) return kRuleGopherHashes;
  const uint64_t ellipses = has_ellipses(text_.data(), text_.size())
                                ? count_text(text_, "...") + count_text(text_, "\xE2\x80\xA6")
                                : 0;
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
  for_each_text_line([&](std::string_view line) {
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
  give_back_large(parts_);
  if (parts != kNumRules) return parts;
  const Rule grams = judge_repeated_grams();
  ngrams_.give_back();
  return grams;
}

Rule QualityRules::judge_repeated_grams() {
  ngrams_.begin(words_);
  for (uint32_t n = 2; n <= 10; ++n) {
    if (n > 2) {
      if (!may_repeat_more(n)) return kNumRules;
      ngrams_.advance();
    }
    const uint64_t chars = n <= 4 ? ngrams_.measure_top() : ngrams_.measure_repeated();
    if (exceeds(share(chars, chars_), static_cast<Limit>(kLimitGopherRepetitionMaxTop2 + n - 2))) {
      return static_cast<Rule>(kRuleTop2Gram + n - 2);
    }
  }
  return kNumRules;
}

// False if no n-grams of `n` words or more can exceed a limit, by bounds from shorter ones.
bool QualityRules::may_repeat_more(uint32_t n) const {
  const auto limit_of = [](uint32_t words) {
    return static_cast<Limit>(kLimitGopherRepetitionMaxTop2 + words - 2);
  };
  for (uint32_t words = n; words <= 4; ++words) {
    const auto enough = static_cast<uint64_t>(limit(limit_of(words)) * static_cast<double>(chars_));
    if (exceeds(share(ngrams_.bound_top(words, enough), chars_), limit_of(words))) return true;
  }
  const double chars = share(ngrams_.bound_repeated(std::max(n, 5u)), chars_);
  for (uint32_t words = std::max(n, 5u); words <= 10; ++words) {
    if (exceeds(chars, limit_of(words))) return true;
  }
  return false;
}

void QualityRules::add_part(std::string_view part) {
  const size_t size = part.size();
  const uint64_t key = size < 16 ? hash_word(part)
                                 : fold_multiply(load64(part.data()) ^ 0x9E3779B97F4A7C15ULL,
                                                 load64(part.data() + size - 8) + size);
  parts_.push_back(
      {key, static_cast<uint32_t>(part.data() - text_.data()), static_cast<uint32_t>(size)});
}

// Most parts differ in length, beginning or end, which make up their key. Those with the same key
// are hashed as a whole.
std::pair<uint64_t, uint64_t> QualityRules::count_repeated() {
  const auto by_key = [](const TextPart& a, const TextPart& b) { return a.key < b.key; };
  std::sort(parts_.begin(), parts_.end(), by_key);
  uint64_t repeated = 0, chars = 0;
  for (auto first = parts_.begin(); first != parts_.end();) {
    auto last = first + 1;
    while (last != parts_.end() && last->key == first->key) ++last;
    if (last - first > 1) {
      for (auto part = first; part != last; ++part) {
        part->key = hash_word(text_.substr(part->begin, part->size));
      }
      std::sort(first, last, by_key);
      for (auto part = first + 1; part != last; ++part) {
        if (part->key != part[-1].key) continue;
        ++repeated;
        chars += count_code_points(text_.data() + part->begin, part->size);
      }
    }
    first = last;
  }
  return {repeated, chars};
}

Rule QualityRules::judge_repeated_parts() {
  parts_.clear();
  for_each_run(strip(text_), 2, [&](std::string_view part) { add_part(part); });
  const auto [paragraphs, paragraph_chars] = count_repeated();
  if (exceeds(share(paragraphs, parts_.size()), kLimitGopherRepetitionMaxParagraphs)) {
    return kRuleRepeatedParagraphs;
  }
  if (exceeds(share(paragraph_chars, chars_), kLimitGopherRepetitionMaxParagraphChars)) {
    return kRuleRepeatedParagraphChars;
  }
  parts_.clear();
  for_each_run(text_, 1, [&](std::string_view part) { add_part(part); });
  const auto [lines, line_chars] = count_repeated();
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
    add_part(line);
    ++lines;
    ended += (text_flags(last_code(line)) & kTextEnd) != 0;
    const double most = limit(kLimitFineWebShortLineChars);
    short_lines += static_cast<double>(line.size()) <= 4 * most &&  // bytes of a character
                   static_cast<double>(count_code_points(line.data(), line.size())) <= most;
  });
  --newlines;  // parts are one more
  if (lines == 0) return kRuleFineWebEmpty;
  if (is_below(share(ended, lines), kLimitFineWebMinEndLines)) return kRuleFineWebEndLines;
  if (exceeds(share(short_lines, lines), kLimitFineWebMaxShortLines)) return kRuleFineWebShortLines;
  const uint64_t repeated = count_repeated().second;
  if (exceeds(share(repeated, chars_ - newlines), kLimitFineWebMaxLineChars)) {
    return kRuleFineWebLineChars;
  }
  return exceeds(share(newlines, words_.size()), kLimitFineWebMaxNewlines) ? kRuleFineWebNewlines
                                                                           : kNumRules;
}

}  // namespace lowtide
