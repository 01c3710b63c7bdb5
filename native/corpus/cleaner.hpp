// Cleaning and filtering: raw documents in, clean text, counts and line hashes out.
//
// A document is processed line by line. One scan of a line (line_scan) finds its end and whether
// cleaning would change it at all: most lines are plain ASCII with single spaces, and are copied
// unchanged. Only the others are decoded character by character, between ranges that can be copied.
// The clean line is filtered (length, words, repetition) and hashed in place in `text`; if it is
// removed, `text` is truncated to where the line began. At a document's end rules and models are
// applied to all of it, and `text` is truncated to where the document began if it is removed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "corpus/cleaning_rules.hpp"
#include "corpus/line_scan.hpp"
#include "corpus/text_hash.hpp"
#include "quality/fasttext_model.hpp"
#include "quality/masks.hpp"
#include "quality/rules.hpp"
#include "text/nfc.hpp"

namespace lowtide {

// Models that judge documents; null if there is none.
struct ModelOptions {
  std::shared_ptr<const FastTextModel> language, score;
  std::vector<uint8_t> wanted;  // by label of the language model; empty: all
  double min_language_score = 0, keep_above = 0;
  size_t score_label = 0;
  // By rank: documents whose key is at least `cut` are kept; while keys are collected, none is
  // kept.
  bool by_rank = false, collect_keys = false;
  uint64_t cut = 0;
};

struct CleanOptions {
#define LOWTIDE_OPTION(type, name, value) type name = value;
#include "corpus/cleaning_rules.inc"
  QualityOptions quality;
  ModelOptions models;
  std::shared_ptr<ComposedParts> composed = std::make_shared<ComposedParts>();  // by all threads
};

constexpr uint64_t kDocumentFirst = 1;  // the document begins here
constexpr uint64_t kDocumentLast = 2;   // and ends here; else it is a part of a larger one

// One document of a block, as stored in work files.
struct DocumentRow {
  uint64_t input_index;
  uint64_t ordinal;
  uint64_t begin;  // of its text in the block's text
  uint64_t end;
  uint64_t hash_low;
  uint64_t hash_high;
  uint64_t line_base;  // index of its first line within the block
  uint64_t flags;
};

// A part of a block that comes from one input.
struct Segment {
  uint64_t input_index;
  uint64_t offset;  // of its beginning in the input
  uint64_t begin;   // in the block
  uint64_t end;
};

// A line or document that may be a duplicate, as stored in work files: 96 bits of hash.
struct HashRow {
  uint64_t high;
  uint32_t low;
  uint32_t line;  // kDocumentMark + row of the document, or the line's number
};
constexpr uint32_t kDocumentMark = 0x80000000u;
// More marks among lines to leave out: lines with text of an evaluation; documents that are near
// copies of another one, or have text of an evaluation.
constexpr uint32_t kCutMark = 0x40000000u, kNearCopyMark = 0xC0000000u,
                   kContaminatedMark = 0xE0000000u;

constexpr size_t kNotCounted = ~size_t{0};

class BlockCleaner {
 public:
  // `compose` is called for the rare line that is not NFC (or, lower-casing, not ASCII).
  using Compose = std::function<std::string(const std::string&)>;

  BlockCleaner(const CleanOptions& options, const Compose& compose);

  // Cleans the documents of a block at the positions in `rows`, and finishes.
  void add_documents(std::string_view block, std::span<const DocumentRow> rows);
  // The same with the documents of segments, each of which ends at a separator or with its segment.
  // The first one may continue a document of the block before, the last one may be continued.
  void add_segments(std::string_view block, std::span<const Segment> segments,
                    std::span<const std::string_view> separators, bool continues, bool continued);
  void add_document(std::string_view raw, uint64_t input_index, uint64_t ordinal, uint64_t flags);
  // Drop `compose`, and sort the hashes by their first byte; `radix_ends` then has the end of each
  // value's rows.
  void finish();

  std::string text;
  std::vector<DocumentRow> documents;
  std::vector<HashRow> hashes;
  std::array<uint64_t, 256> radix_ends{};
  std::array<RuleCount, kNumRules> counts{};
  std::vector<Sample> samples;
  std::vector<RuleCount> languages;  // documents judged, by label of the language model
  std::vector<uint64_t> characters;  // a bit per code point, when collected
  std::vector<uint64_t> score_keys;  // of documents judged, when collected
  uint64_t documents_in = 0, bytes_in = 0, lines_in = 0;

 private:
  void add_line(const char* begin, const LineScan& line);
  void add_unicode_line(const unsigned char* begin, const unsigned char* end,
                        bool ends_with_newline);
  void add_exact_line(const unsigned char* begin, const unsigned char* end, bool ends_with_newline);
  // `repeated`: bytes equal to the one before, if the line is unchanged since they were counted.
  void end_line(bool newline, bool unstable, bool ascii, size_t repeated = kNotCounted);
  bool is_worth_hashing(std::string_view line) const;
  bool keep_line(std::string_view line, size_t repeated);
  // Mask personal data in the current line; returns whether there was any.
  bool mask_personal_data();
  // True if the rules and models, if any, keep the current document.
  bool is_good(bool whole);
  bool has_language(std::string_view document);
  bool has_score(std::string_view document);
  bool meets_rules(std::string_view document);
  void hash_line(std::string_view line);
  void replace_document(std::string_view document);
  void end_document(uint64_t input_index, uint64_t ordinal, uint64_t flags);
  bool keep_document(std::string_view document, bool whole);
  void drop(Rule rule, std::string_view what);

  CleanOptions options_;
  const Compose* compose_;
  std::unique_ptr<QualityRules> rules_;
  std::string masked_;
  FastTextModel::Scratch language_scratch_, score_scratch_;  // each keeps sums of its model's words
  std::vector<float> scores_;
  size_t document_begin_ = 0, line_begin_ = 0, hash_mark_ = 0;
  uint64_t line_number_ = 0, line_base_ = 0;
  uint32_t empty_lines_ = 0;
  std::array<uint32_t, kNumRules> num_samples_{};
};

}  // namespace lowtide
