#include "corpus/cleaner.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "corpus/line_measures.hpp"
#include "corpus/line_scan.hpp"
#include "text/code_points.hpp"

namespace lowtide {
namespace {

constexpr uint32_t kSamplesPerRule = 3;
constexpr size_t kSampleBytes = 160;
constexpr uint32_t kMaxEmptyLines = 2;
constexpr uint64_t kLineSeed = 1, kDocumentSeed = 2, kRankSeed = 3;

constexpr ptrdiff_t kRoomBytes = 1024;
constexpr size_t kLongestCharacter = 4;
constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string_view shorten(std::string_view text) {
  if (text.size() <= kSampleBytes) return text;
  size_t end = kSampleBytes;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

// Orders documents by score, equal scores by a hash of the text. It is a separate hash, because the
// document's hash decides its split, and would favour one split among equal scores.
uint64_t make_rank_key(float score, std::string_view document) {
  const uint64_t hash = hash128(document.data(), document.size(), kRankSeed).high;
  const float known = score > 0 ? score : 0;  // also for NaN
  return uint64_t{std::bit_cast<uint32_t>(known)} << 32 | hash >> 32;
}

}  // namespace

BlockCleaner::BlockCleaner(const CleanOptions& options, const Compose& compose)
    : options_(options), compose_(&compose) {
  if (options_.collect_characters) characters.resize(0x110000 / 64);
  if (!options_.quality.presets.empty()) rules_ = std::make_unique<QualityRules>(options_.quality);
}

void BlockCleaner::drop(Rule rule, std::string_view what) {
  counts[rule].count += 1;
  counts[rule].bytes += what.size();
  if (num_samples_[rule] < kSamplesPerRule && !what.empty()) {
    ++num_samples_[rule];
    samples.push_back({static_cast<uint32_t>(rule), std::string(shorten(what))});
  }
}

void BlockCleaner::add_document(std::string_view raw, uint64_t input_index, uint64_t ordinal,
                                uint64_t flags) {
  documents_in += (flags & kDocumentFirst) != 0;
  bytes_in += raw.size();
  document_begin_ = line_begin_ = text.size();
  hash_mark_ = hashes.size();
  line_base_ = line_number_;
  // A part of a larger document may begin with empty lines, which belong to it.
  empty_lines_ = (flags & kDocumentFirst) != 0 ? kMaxEmptyLines : 0;
  const char* at = raw.data();
  const char* const end = at + raw.size();
  while (at < end) {
    const LineScan line = scan_line(at, end);
    add_line(at, line);
    at = line.end < end ? line.end + 1 : end;
  }
  end_document(input_index, ordinal, flags);
}

void BlockCleaner::add_line(const char* begin, const LineScan& line) {
  ++lines_in;
  const auto* first = reinterpret_cast<const unsigned char*>(begin);
  const auto* last = reinterpret_cast<const unsigned char*>(line.end);
  if (!options_.normalize) {
    add_exact_line(first, last, line.has_newline);
  } else if (line.plain) {
    text.append(begin, line.end);
    end_line(line.has_newline, false, true, line.repeated);
  } else {
    if (line.has_newline && line.end > begin && line.end[-1] == '\r') --last;
    add_unicode_line(first, last, line.has_newline);
  }
}

void BlockCleaner::add_exact_line(const unsigned char* begin, const unsigned char* end,
                                  bool ends_with_newline) {
  bool ascii = true;
  while (begin < end) {
    const Decoded next = decode_utf8(begin, end - begin);
    ascii &= next.size == 1 && next.valid;
    if (next.valid) {
      text.append(reinterpret_cast<const char*>(begin), next.size);
    } else {
      drop(kRuleInvalidUtf8, {reinterpret_cast<const char*>(begin), 0});
      counts[kRuleInvalidUtf8].bytes += next.size;
      append_utf8(text, next.code);
    }
    begin += next.size;
  }
  end_line(ends_with_newline, false, ascii);
}

void BlockCleaner::add_unicode_line(const unsigned char* begin, const unsigned char* end,
                                    bool ends_with_newline) {
  bool unstable = false, ascii = true, indented = true;
  uint8_t last_class = 0;
  // Cleaning only expands invalid bytes, to the three bytes of U+FFFD. Capacity is reserved for one
  // part at a time: reserving it for all following text, at every line end inside, took quadratic
  // time.
  const unsigned char* room_end = begin;  // the last character before it may extend beyond it
  char* out = text.data() + line_begin_;
  const auto make_room = [&] {
    const size_t used = static_cast<size_t>(out - text.data());
    room_end = begin + std::min(end - begin, kRoomBytes);
    text.resize(used + 3 * static_cast<size_t>(room_end - begin) + kLongestCharacter);
    out = text.data() + used;
  };
  const auto end_part = [&](bool newline) {
    text.resize(static_cast<size_t>(out - text.data()));
    end_line(newline, unstable, ascii);
  };
  while (begin < end) {
    if (begin >= room_end) make_room();
    if (!indented && *begin < 0x80) {
      const size_t plain = copy_plain(begin, room_end, out);
      if (plain > 0) {
        out += plain;
        begin += plain;
        last_class = 0;
        continue;
      }
    }
    const Decoded next = decode_utf8(begin, end - begin);
    const uint8_t kind = classify_code_point(next.code);
    if (!next.valid) {
      counts[kRuleInvalidUtf8].count += 1;
      counts[kRuleInvalidUtf8].bytes += next.size;
    }
    const unsigned char* const source = begin;
    begin += next.size;
    if (kind == kClassBlank) {
      // Indentation is kept. Elsewhere a run of blanks becomes one blank; a single tab is kept.
      const char blank = next.code == '\t' ? '\t' : ' ';
      if (indented ? next.code < 0x80 : out[-1] != ' ' && out[-1] != '\t') {
        *out++ = blank;
      } else if (!indented) {
        out[-1] = ' ';
      }
      last_class = 0;
    } else if (kind == kClassDrop) {
      counts[kRuleControlCharacter].count += 1;
      counts[kRuleControlCharacter].bytes += next.size;
    } else if (kind == kClassNewline) {
      end_part(true);
      room_end = begin;
      out = text.data() + line_begin_;
      unstable = false, ascii = true, indented = true, last_class = 0;
      ++lines_in;
    } else {
      if (kind == kClassUnstable || (kind != 0 && kind < last_class)) unstable = true;
      last_class = kind == kClassUnstable ? 0 : kind;
      ascii &= next.code < 0x80;
      indented = false;
      const char* const bytes = next.valid ? reinterpret_cast<const char*>(source) : kReplacement;
      const uint32_t size = next.valid ? next.size : 3;
      for (uint32_t at = 0; at < size; ++at) *out++ = bytes[at];
    }
  }
  end_part(ends_with_newline);
}

bool BlockCleaner::mask_personal_data() {
  MaskCounts found;
  const std::string_view line(text.data() + line_begin_, text.size() - line_begin_);
  if (!mask_line(line, options_.mask_kinds, masked_, found)) return false;
  for (size_t kind = 0; kind < kNumMasks; ++kind) {  // no samples, which would reveal it
    counts[kRuleMaskedEmail + kind].count += found.count[kind];
    counts[kRuleMaskedEmail + kind].bytes += found.bytes[kind];
  }
  text.replace(line_begin_, std::string::npos, masked_);
  return true;
}

void BlockCleaner::end_line(bool newline, bool unstable, bool ascii, size_t repeated) {
  if (options_.mask_kinds != 0 && mask_personal_data()) repeated = kNotCounted;
  if (options_.normalize) {
    while (text.size() > line_begin_ && (text.back() == ' ' || text.back() == '\t'))
      text.pop_back();
    if (unstable || (options_.lowercase && !ascii)) {
      const std::string before = text.substr(line_begin_);
      const std::string after = (*compose_)(before);
      if (unstable && after != before) {
        counts[kRuleComposed].count += 1;
        counts[kRuleComposed].bytes += before.size();
      }
      text.replace(line_begin_, std::string::npos, after);
    } else if (options_.lowercase) {
      for (size_t at = line_begin_; at < text.size(); ++at) {
        if (text[at] >= 'A' && text[at] <= 'Z') text[at] = static_cast<char>(text[at] | 0x20);
      }
    }
  }
  const std::string_view line(text.data() + line_begin_, text.size() - line_begin_);
  if (line.empty()) {
    if (options_.normalize && empty_lines_ >= kMaxEmptyLines) return;
    ++empty_lines_;
  } else {
    if (!keep_line(line, repeated)) {
      text.resize(line_begin_);
      return;
    }
    empty_lines_ = 0;
    hash_line(line);
  }
  ++line_number_;
  if (newline) text.push_back('\n');
  line_begin_ = text.size();
}

void BlockCleaner::hash_line(std::string_view line) {
  if (!options_.dedup || !is_worth_hashing(line)) return;
  const Hash128 hash = hash128(line.data(), line.size(), kLineSeed);
  hashes.push_back(
      {hash.high, static_cast<uint32_t>(hash.low), static_cast<uint32_t>(line_number_)});
}

// Short lines may repeat; indentation does not make a line long.
bool BlockCleaner::is_worth_hashing(std::string_view line) const {
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return false;
  return !has_fewer_chars(line.substr(begin), options_.min_dedup_chars);
}

bool BlockCleaner::keep_line(std::string_view line, size_t repeated) {
  if (!options_.filter) return true;
  if (has_fewer_chars(line, options_.min_line_chars)) return drop(kRuleLineTooShort, line), false;
  if (has_more_chars(line, options_.max_line_chars)) return drop(kRuleLineTooLong, line), false;
  if (options_.min_line_words > 0 && !has_words(line, options_.min_line_words)) {
    return drop(kRuleLineFewWords, line), false;
  }
  if (options_.max_repetition < 1) {
    if (repeated == kNotCounted) repeated = count_repeated_bytes(line.data(), line.size());
    if (measure_repetition(line, repeated) > options_.max_repetition) {
      return drop(kRuleLineRepetitive, line), false;
    }
  }
  return true;
}

bool BlockCleaner::keep_document(std::string_view document, bool whole) {
  if (document.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    if (whole) drop(kRuleDocumentEmpty, document);
    return !whole;
  }
  if (!options_.filter || !whole) return true;
  if (has_fewer_chars(document, options_.min_document_chars)) {
    return drop(kRuleDocumentTooShort, document), false;
  }
  if (has_more_chars(document, options_.max_document_chars)) {
    return drop(kRuleDocumentTooLong, document), false;
  }
  if (!has_words(document, options_.min_document_words)) {
    return drop(kRuleDocumentFewWords, document), false;
  }
  return true;
}

// Rules and models judge whole documents; a part of a larger one is kept.
bool BlockCleaner::is_good(bool whole) {
  const ModelOptions& models = options_.models;
  if (rules_ == nullptr && models.language == nullptr && models.score == nullptr) return true;
  const auto document = [&] {
    return std::string_view(text.data() + document_begin_, text.size() - document_begin_);
  };
  if (!whole) return drop(kRuleUnjudged, document()), true;
  return (models.language == nullptr || has_language(document())) &&
         (rules_ == nullptr || meets_rules(document())) &&
         (models.score == nullptr || has_score(document()));
}

bool BlockCleaner::has_language(std::string_view document) {
  const ModelOptions& models = options_.models;
  models.language->predict(document, language_scratch_, scores_);
  const auto best =
      static_cast<size_t>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
  languages.resize(scores_.size());
  if (scores_[best] > 0) {
    languages[best].count += 1;
    languages[best].bytes += document.size();
  }
  if (scores_[best] < models.min_language_score) return drop(kRuleUnsureLanguage, document), false;
  if (models.wanted.empty() || models.wanted[best] != 0) return true;
  return drop(kRuleOtherLanguage, document), false;
}

bool BlockCleaner::has_score(std::string_view document) {
  const ModelOptions& models = options_.models;
  models.score->predict(document, score_scratch_, scores_);
  const float score = scores_[models.score_label];
  if (!models.by_rank) {
    if (score >= models.keep_above) return true;
    return drop(kRuleLowScore, document), false;
  }
  const uint64_t key = make_rank_key(score, document);
  if (models.collect_keys) return score_keys.push_back(key), false;
  return key >= models.cut || (drop(kRuleLowScore, document), false);
}

bool BlockCleaner::meets_rules(std::string_view document) {
  const Rule rule = rules_->judge(document);
  if (rule == kRuleUnjudged) return drop(rule, document), true;
  if (rule != kNumRules) return drop(rule, document), false;
  for (size_t number = 0; number < kNumRules; ++number) {
    counts[number].count += rules_->line_counts()[number].count;
    counts[number].bytes += rules_->line_counts()[number].bytes;
  }
  for (const Sample& sample : rules_->line_samples()) {
    if (num_samples_[sample.rule]++ < kSamplesPerRule) samples.push_back(sample);
  }
  if (!rules_->is_changed()) return true;
  if (!keep_document(rules_->text(), true)) return false;
  replace_document(rules_->text());
  return true;
}

// Replace the text of the current document, and hash its lines.
void BlockCleaner::replace_document(std::string_view document) {
  text.resize(document_begin_);
  text.append(document);
  hashes.resize(hash_mark_);
  line_number_ = line_base_;
  for (size_t at = document_begin_; at < text.size(); ++line_number_) {
    const size_t newline = std::min(text.find('\n', at), text.size());
    if (newline > at) hash_line({text.data() + at, newline - at});
    at = newline + 1;
  }
}

void BlockCleaner::end_document(uint64_t input_index, uint64_t ordinal, uint64_t flags) {
  if (options_.normalize && (flags & kDocumentLast) != 0) {
    while (text.size() > document_begin_ && text.back() == '\n') text.pop_back();
  }
  const bool whole = flags == (kDocumentFirst | kDocumentLast);
  std::string_view document(text.data() + document_begin_, text.size() - document_begin_);
  if (!keep_document(document, whole) || !is_good(whole) || options_.models.collect_keys) {
    text.resize(document_begin_);
    hashes.resize(hash_mark_);
    line_number_ = line_base_;
    return;
  }
  document = {text.data() + document_begin_, text.size() - document_begin_};
  const Hash128 hash = hash128(document.data(), document.size(), kDocumentSeed);
  if (options_.dedup && whole) {
    hashes.push_back({hash.high, static_cast<uint32_t>(hash.low),
                      kDocumentMark | static_cast<uint32_t>(documents.size())});
  }
  if (options_.collect_characters) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(document.data());
    for (size_t at = 0; at < document.size();) {
      const Decoded next = decode_utf8(bytes + at, document.size() - at);
      characters[next.code >> 6] |= uint64_t{1} << (next.code & 63);
      at += next.size;
    }
  }
  documents.push_back(
      {input_index, ordinal, document_begin_, text.size(), hash.low, hash.high, line_base_, flags});
}

void BlockCleaner::add_documents(std::string_view block, std::span<const DocumentRow> rows) {
  text.reserve(block.size());
  for (const DocumentRow& row : rows) {
    add_document(block.substr(row.begin, row.end - row.begin), row.input_index, row.ordinal,
                 row.flags);
  }
  finish();
}

void BlockCleaner::finish() {
  compose_ = nullptr;
  rules_.reset();
  std::array<uint64_t, 256> next{};
  for (const HashRow& row : hashes) ++radix_ends[row.high >> 56];
  uint64_t total = 0;
  for (size_t value = 0; value < 256; ++value) {
    next[value] = total;
    total += radix_ends[value];
    radix_ends[value] = total;
  }
  std::vector<HashRow> sorted(hashes.size());
  for (const HashRow& row : hashes) sorted[next[row.high >> 56]++] = row;
  hashes.swap(sorted);
}

}  // namespace lowtide
