// The presets that remove lines: C4, RefinedWeb.
#include <algorithm>
#include <bit>
#include <cstring>

#include "corpus/line_scan.hpp"
#include "quality/byte_masks.hpp"
#include "quality/large_buffers.hpp"
#include "quality/rules.hpp"
#include "quality/text_parts.hpp"
#include "system/clones.hpp"

namespace lowtide {
namespace {

constexpr size_t kSampleBytes = 160, kSamplesPerRule = 3;
constexpr std::string_view kPolicies[] = {"terms of use", "privacy policy", "cookie policy",
                                          "uses cookies", "use of cookies", "use cookies"};
// Conditions for which C4 examines the lines of a document.
constexpr std::string_view kPhrases[] = {"{",      "lorem ipsum",  "javascript",
                                         "cookie", "terms of use", "privacy policy"};
constexpr size_t kLongestPhrase = 16, kScanned = 4096;
constexpr std::string_view kCounted[] = {"likes",   "shares",    "comments",  "retweets",
                                         "reposts", "quotes",    "bookmarks", "upvotes",
                                         "views",   "downvotes", "downloads", "followers"};

void lower(std::string_view text, std::string& out) {
  out.assign(text);
  for (char& byte : out) {
    if (byte >= 'A' && byte <= 'Z') byte = static_cast<char>(byte | 0x20);
  }
}

// True if one of C4's phrases may begin in the first `places` bytes, in small letters or capitals;
// reads 6 bytes more. Three letters of each are compared at their distances, many positions at a
// time; matches of all three are then checked exactly.
LOWTIDE_CLONES bool may_have_phrases(const uint8_t* bytes, size_t places) {
  uint8_t found = 0;
  for (size_t at = 0; at < places; ++at) {
    const auto is = [&](size_t distance, char letter) -> uint8_t {
      return (bytes[at + distance] | 0x20) == static_cast<uint8_t>(letter);
    };
    found |= static_cast<uint8_t>(bytes[at] == '{');
    found |= static_cast<uint8_t>(is(0, 'm') & is(3, 'p') & is(5, 'u'));  // lorem ipsum
    found |= static_cast<uint8_t>(is(0, 'v') & is(2, 's') & is(6, 'p'));  // javascript
    found |= static_cast<uint8_t>(is(0, 'c') & is(3, 'k') & is(5, 'e'));  // cookie
    found |= static_cast<uint8_t>(is(0, 'm') & is(4, 'f') & is(6, 'u'));  // terms of use
    found |= static_cast<uint8_t>(is(0, 'v') & is(3, 'y') & is(5, 'p'));  // privacy policy
  }
  return found != 0;
}

// True if a run without ASCII whitespace is longer than `most` bytes: then a word may be.
bool has_long_stretch(std::string_view line, size_t most) {
  for (size_t at = 0; line.size() - at > most;) {
    size_t blank = at + most;
    while (blank > at && static_cast<unsigned char>(line[blank] - '\t') >= 5 &&
           line[blank] != ' ') {
      --blank;
    }
    if (blank == at) return true;
    at = blank;
  }
  return false;
}

bool contains(std::string_view text, std::string_view wanted) {
  return find_bytes(text.data(), text.data() + text.size(), wanted) != nullptr;
}

bool has_phrase(std::string_view text, std::string& lowered) {
  uint8_t tail[2 * kLongestPhrase] = {};
  const size_t size = std::min(text.size(), kLongestPhrase);
  std::memcpy(tail, text.data() + text.size() - size, size);
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  if (!may_have_phrases(bytes, text.size() - size) && !may_have_phrases(tail, kLongestPhrase)) {
    return false;
  }
  lower(text, lowered);
  for (const std::string_view wanted : kPhrases) {
    if (contains(lowered, wanted)) return true;
  }
  return false;
}

// The size of a citation mark at text[at], which is '['; 0 if there is none.
size_t citation_size(std::string_view text, size_t at) {
  for (const std::string_view mark : {"[edit]", "[citation needed]"}) {
    if (text.substr(at).starts_with(mark)) return mark.size();
  }
  size_t end = at + 1;
  while (end < text.size()) {
    const Decoded next = decode_at(text, end);
    if (next.code == ']') return end + 1 - at;
    if (!(text_flags(next.code) & kTextDigit)) return 0;
    end += next.size;
  }
  return 0;
}

// Delete citation marks; false if there were none.
bool delete_citations(std::string_view line, std::string& out) {
  bool found = false;
  size_t copied = 0;
  for (size_t at = line.find('['); at != std::string_view::npos;) {
    const size_t size = citation_size(line, at);
    if (size > 0) {
      if (!found) out.clear();
      found = true;
      out.append(line, copied, at - copied);
      copied = at + size;
    }
    at = line.find('[', at + std::max<size_t>(size, 1));
  }
  if (found) out.append(line, copied);
  return found;
}

bool ends_a_sentence(std::string_view line) {
  if (line.empty() || line.ends_with("...")) return false;
  return std::strchr(".?!\"'", line.back()) != nullptr;
}

size_t count_words(std::string_view text) {
  size_t words = 0;
  uint64_t space_before = 1, high = 0;
  for (size_t at = 0; at < text.size(); at += kMaskedBytes) {
    const ByteMasks masks = mask_bytes(text.data() + at, text.size() - at);
    words += static_cast<size_t>(std::popcount(~masks.spaces & (masks.spaces << 1 | space_before)));
    space_before = masks.spaces >> 63;
    high |= masks.high;
  }
  if (high == 0) return words;  // otherwise there may be other blanks
  words = 0;
  for_each_word(text, [&](std::string_view, size_t) { return ++words, true; });
  return words;
}

struct LineCharacters {
  size_t all = 0, capitals = 0, digits = 0;
};

LineCharacters count_characters(std::string_view line) {
  LineCharacters found;
  uint8_t high = 0;
  for (size_t begin = 0; begin < line.size(); begin += 128) {
    uint8_t capitals = 0, digits = 0;  // narrow, so that 16 of them are counted at a time
    const size_t end = std::min(begin + 128, line.size());
    for (size_t at = begin; at < end; ++at) {
      const auto byte = static_cast<uint8_t>(line[at]);
      capitals += static_cast<uint8_t>(byte - 'A') < 26;
      digits += static_cast<uint8_t>(byte - '0') < 10;
      high |= byte;
    }
    found.capitals += capitals, found.digits += digits;
  }
  found.all = line.size();
  if (high < 0x80) return found;
  found = {};
  for (size_t at = 0; at < line.size(); ++found.all) {
    const Decoded next = decode_at(line, at);
    const uint16_t flags = text_flags(next.code);
    found.capitals += next.code < 0x80 ? next.code - 'A' < 26 : (flags & kTextCapital) != 0;
    found.digits += next.code < 0x80 ? next.code - '0' < 10 : (flags & kTextDigit) != 0;
    at += next.size;
  }
  return found;
}

size_t skip_marks(std::string_view line, size_t at) {
  while (at < line.size()) {
    const Decoded next = decode_at(line, at);
    if (text_flags(next.code) & kTextWordChar) break;
    at += next.size;
  }
  return at;
}

// "12.5k likes", with marks around it; the line has no capitals.
bool is_counter(std::string_view line) {
  size_t at = skip_marks(line, 0);
  if (at >= line.size() || line[at] < '0' || line[at] > '9') return false;
  while (at < line.size() && std::strchr(",.0123456789", line[at]) && line[at] != 0) ++at;
  if (at < line.size() && (line[at] == 'k' || line[at] == 'm' || line[at] == 'b')) ++at;
  const size_t blank = at;
  while (at < line.size() && (line[at] == ' ' || line[at] == '\t')) ++at;
  if (at == blank) return false;
  for (const std::string_view thing : kCounted) {
    if (line.substr(at).starts_with(thing) && skip_marks(line, at + thing.size()) == line.size()) {
      return true;
    }
  }
  return false;
}

}  // namespace

void QualityRules::remove_line(Rule rule, std::string_view line, size_t bytes) {
  size_t end = std::min(line.size(), kSampleBytes);
  while (end > 0 && end < line.size() && (line[end] & 0xC0) == 0x80) --end;
  RuleCount& counter = line_counts_[rule];
  counter.bytes += bytes;
  if (++counter.count <= kSamplesPerRule) {
    line_samples_.push_back({static_cast<uint32_t>(rule), std::string(line.substr(0, end))});
  }
}

void QualityRules::begin_rewriting() {
  writing_.clear();
  next_words_.clear();
  word_ = 0;
}

// Lines and words are in order; words before the line are of removed lines.
void QualityRules::keep_line(std::string_view line, bool words) {
  if (!writing_.empty() || !next_words_.empty()) writing_.push_back('\n');
  const size_t begin = writing_.size();
  writing_.append(line);
  if (!words) {
    splitter_.split(std::string_view(writing_).substr(begin), begin, ~size_t{0}, next_words_);
    return;
  }
  const auto first = static_cast<size_t>(line.data() - text_.data());
  const size_t last = first + line.size();
  while (word_ < words_.size() && words_[word_].begin < first) ++word_;
  const size_t first_word = word_, before = next_words_.size();
  while (word_ < words_.size() && words_[word_].begin < last) ++word_;
  next_words_.insert(next_words_.end(), words_.begin() + static_cast<ptrdiff_t>(first_word),
                     words_.begin() + static_cast<ptrdiff_t>(word_));
  const auto moved = static_cast<uint32_t>(begin - first);  // unsigned: may wrap around
  for (size_t at = before; at < next_words_.size(); ++at) next_words_[at].begin += moved;
}

void QualityRules::end_rewriting() {
  const std::string_view kept = strip(writing_);
  const auto cut = static_cast<uint32_t>(kept.data() - writing_.data());
  for (Word& word : next_words_) word.begin -= cut;
  if (kept != text_) {
    changed_ = true;
    written_.assign(kept);
    text_ = written_;
  }
  words_.swap(next_words_);
  give_back_large(next_words_);
  give_back_large(writing_);
}

// A sentence ends with an end mark, and the next begins with the first word that is not a mark.
size_t QualityRules::count_sentences(size_t first_word) const {
  size_t sentences = 1;
  bool ended = false;
  for (size_t at = first_word; at < next_words_.size(); ++at) {
    const uint32_t facts = next_words_[at].facts;
    if (facts & kWordEnd) {
      ended = true;
    } else if (ended && !(facts & kWordMarks)) {
      ++sentences;
      ended = false;
    }
  }
  return sentences;
}

// The reason to remove a line, or the document; kNumRules: it is kept, as `line_` if it was
// changed.
Rule QualityRules::keep_c4_line(std::string_view line, bool& changed) {
  const double max_chars = limit(kLimitC4MaxWordChars), min_words = limit(kLimitC4MinLineWords);
  size_t words = 0, longest = 0;
  const bool counts_all = max_chars > 0 && static_cast<double>(line.size()) > max_chars &&
                          has_long_stretch(line, static_cast<size_t>(max_chars));
  for_each_word(line, [&](std::string_view, size_t chars) {
    ++words;
    longest = std::max(longest, chars);
    return counts_all || static_cast<double>(words) < min_words;
  });
  if (max_chars > 0 && static_cast<double>(longest) > max_chars) return kRuleC4LongWord;
  changed = limit(kLimitC4Citations) > 0 && delete_citations(line, line_);
  const std::string_view now = changed ? std::string_view(line_) : line;
  if (limit(kLimitC4EndMark) > 0 && !ends_a_sentence(now)) return kRuleC4EndMark;
  if (static_cast<double>(words) < min_words) return kRuleC4FewWords;
  if (!has_phrases_) return kNumRules;
  lower(now, lowered_);
  if (limit(kLimitC4LoremIpsum) > 0 && contains(lowered_, "lorem ipsum")) return kRuleC4LoremIpsum;
  if (limit(kLimitC4Javascript) > 0 && contains(lowered_, "javascript")) return kRuleC4Javascript;
  if (limit(kLimitC4CurlyBracket) > 0 && contains(lowered_, "{")) return kRuleC4CurlyBracket;
  if (limit(kLimitC4Policy) > 0) {
    for (const std::string_view policy : kPolicies) {
      if (contains(lowered_, policy)) return kRuleC4Policy;
    }
  }
  return kNumRules;
}

Rule QualityRules::judge_c4() {
  begin_rewriting();
  has_phrases_ = false;  // most documents have none, and their lines need not be examined
  for (size_t at = 0; at < text_.size() && !has_phrases_; at += kScanned) {
    // Parts overlap, so that no phrase is missed between them.
    has_phrases_ = has_phrase(text_.substr(at, kScanned + kLongestPhrase), lowered_);
  }
  size_t sentences = 0;
  Rule verdict = kNumRules;
  for_each_text_line([&](std::string_view whole) {
    if (verdict != kNumRules) return;
    const std::string_view line = strip(whole);
    bool changed = false;
    const Rule rule = keep_c4_line(line, changed);
    if (rule == kRuleC4LoremIpsum || rule == kRuleC4CurlyBracket) {
      verdict = rule;
    } else if (rule != kNumRules) {
      if (!line.empty()) remove_line(rule, line, line.size());
    } else {
      if (changed) remove_line(kRuleC4Citation, line, line.size() - line_.size());
      const size_t first_word = next_words_.size();
      keep_line(changed ? std::string_view(line_) : line, !changed);
      sentences += count_sentences(first_word);
    }
  });
  if (verdict != kNumRules) return verdict;
  if (is_below(static_cast<double>(sentences), kLimitC4MinSentences)) return kRuleC4FewSentences;
  end_rewriting();
  return kNumRules;
}

// The reason to remove a line; kNumRules: it is kept.
Rule QualityRules::find_refinedweb_line(std::string_view line, size_t words) const {
  const LineCharacters found = count_characters(line);
  const double share = static_cast<double>(found.capitals) / static_cast<double>(found.all);
  if (exceeds(share, kLimitRefinedWebMaxCapitals)) return kRuleRefinedWebCapitals;
  if (limit(kLimitRefinedWebDigits) > 0 && found.digits == found.all) return kRuleRefinedWebDigits;
  if (limit(kLimitRefinedWebCounters) > 0) {
    std::string lowered;
    if (line.size() < 256 && found.digits > 0) lower(line, lowered);
    if (!lowered.empty() && is_counter(lowered)) return kRuleRefinedWebCounter;
  }
  return is_below(static_cast<double>(words), kLimitRefinedWebMinLineWords)
             ? kRuleRefinedWebFewWords
             : kNumRules;
}

Rule QualityRules::judge_refinedweb() {
  begin_rewriting();
  size_t before = 0, after = 0;  // words of the text, and of the kept lines
  const double most = limit(kLimitRefinedWebMaxButtonWords);
  for_each_part(text_, '\n', [&](std::string_view line) {
    const size_t words = count_words(line);
    before += words;
    const Rule rule = line.empty() ? kNumRules : find_refinedweb_line(line, words);
    if (rule != kNumRules) return remove_line(rule, line, line.size());
    bool changed = false;
    if (most > 0 && line.size() < 4096 && static_cast<double>(words) <= most) {
      line_.assign(line);
      for (size_t at; (at = line_.find("items in cart")) != std::string::npos;) line_.erase(at, 13);
      if (line_.ends_with("Read more...")) line_.resize(line_.size() - 12);
      if (line_.starts_with("Sign-in")) line_.erase(0, 7);
      changed = line_.size() != line.size();
    }
    after += changed ? count_words(line_) : words;
    if (changed) remove_line(kRuleRefinedWebButton, line, line.size() - line_.size());
    keep_line(changed ? std::string_view(line_) : line, !changed);
  });
  end_rewriting();
  if (after == 0) return kRuleRefinedWebRemovedWords;
  const double removed = static_cast<double>(before - after) / static_cast<double>(before);
  return exceeds(removed, kLimitRefinedWebMaxRemovedWords) ? kRuleRefinedWebRemovedWords
                                                           : kNumRules;
}

}  // namespace lowtide
