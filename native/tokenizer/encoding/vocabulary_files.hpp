// Read and write byte-level vocabulary files without an object for each token.
//
// In:      the text of vocab.json or of a section of tokenizer.json, and of the merges
// Out:     tokens and merges by id; or the same texts
// Memory:  a few times the text
//
// Only files of the expected form are read here: for others the functions return nothing, and the
// caller's slower way reports the error.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lowtide {

struct ByteLevelVocabulary {
  std::vector<std::string> tokens;   // by id; special tokens are left empty
  std::vector<int64_t> special_ids;  // of each requested special token; -1: not in the vocabulary
  std::vector<uint32_t> merges;      // rows (left, right, token)
};

struct JsonSections {
  std::string_view vocab, merges;
};

// The positions of the two large sections of a tokenizer.json's model.
std::optional<JsonSections> find_json_sections(std::string_view text);

// `merges` is a JSON array of pairs, or the lines of a merges.txt without its first.
std::optional<ByteLevelVocabulary> read_byte_level(std::string_view vocab, std::string_view merges,
                                                   bool merges_are_json,
                                                   const std::vector<std::string>& specials);

struct SpecialText {
  uint32_t id;
  std::string text, json;  // as text, and in quotation marks
};

// A JSON object of token texts with their ids; the first of equal tokens is used.
std::optional<std::string> write_vocab_json(const std::vector<std::string_view>& tokens,
                                            const std::vector<SpecialText>& specials,
                                            std::string_view between, std::string_view colon);

// Merges as a JSON array of pairs, one per line, or as the lines of a merges.txt.
std::optional<std::string> write_merges(const std::vector<std::string_view>& tokens,
                                        std::span<const uint32_t> rows,
                                        const std::vector<SpecialText>& specials, bool as_json);

}  // namespace lowtide
