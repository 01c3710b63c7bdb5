#include "tokenizer/encoding/vocabulary_files.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "text/json_cursor.hpp"
#include "tokenizer/encoding/vocabulary.hpp"
#include "tokenizer/splitting/pieces.hpp"

namespace lowtide {
namespace {

// The character for each byte in byte-level files: itself if it is printable Latin-1, else one from
// U+0100 on.
struct ByteCharacters {
  static constexpr size_t kNumCodes = 0x100 + 68;
  std::array<std::string, 256> plain, json;
  std::array<int16_t, kNumCodes> bytes;  // by code point; -1 for none

  ByteCharacters() {
    bytes.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool kept = (byte >= 0x21 && byte < 0x7F) || (byte >= 0xA1 && byte != 0xAD);
      const uint32_t code = kept ? byte : next++;
      append_utf8(plain[byte], code);
      json[byte] = (byte == '"' || byte == '\\' ? "\\" : "") + plain[byte];
      bytes[code] = static_cast<int16_t>(byte);
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters characters;
  return characters;
}

// Appends the bytes of a byte-level text; false if it is invalid.
bool append_bytes(std::string_view text, std::string& bytes) {
  const ByteCharacters& characters = byte_characters();
  for (size_t at = 0; at < text.size();) {
    uint32_t code = static_cast<unsigned char>(text[at]);
    if (code < 0x80) {
      ++at;
    } else {
      const Decoded next =
          decode_utf8(reinterpret_cast<const unsigned char*>(text.data()) + at, text.size() - at);
      code = next.valid ? next.code : UINT32_MAX;
      at += next.size;
    }
    if (code >= ByteCharacters::kNumCodes || characters.bytes[code] < 0) return false;
    bytes.push_back(static_cast<char>(characters.bytes[code]));
  }
  return true;
}

// Ids by token: an open-addressing table of ids, compared by the tokens themselves.
class TokenIds {
 public:
  explicit TokenIds(size_t count) {
    size_t capacity = 16;
    while (capacity < 2 * count + 2) capacity *= 2;
    slots_.assign(capacity, kNoToken);
  }
  // The slot of a token: contains its id, or kNoToken if it can be inserted there.
  template <typename Tokens>
  uint32_t& place(std::string_view token, const Tokens& tokens) {
    const size_t mask = slots_.size() - 1;
    const auto* bytes = reinterpret_cast<const uint8_t*>(token.data());
    size_t at = hash_bytes(bytes, token.size()) & mask;
    while (slots_[at] != kNoToken && tokens[slots_[at]] != token) at = (at + 1) & mask;
    return slots_[at];
  }

 private:
  std::vector<uint32_t> slots_;
};

bool read_id(JsonCursor& cursor, uint32_t& id) {
  const char* const begin = cursor.at();
  if (!cursor.skip_value()) return false;
  const std::string_view digits(begin, static_cast<size_t>(cursor.at() - begin));
  if (digits.empty() || digits.size() > 8 || (digits[0] == '0' && digits.size() > 1)) return false;
  id = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return false;
    id = 10 * id + static_cast<uint32_t>(digit - '0');
  }
  return id < kMaxTokens;
}

bool read_vocab(std::string_view text, const std::vector<std::string>& specials,
                ByteLevelVocabulary& result) {
  std::unordered_map<std::string_view, size_t> special_places;
  for (size_t place = 0; place < specials.size(); ++place) {
    special_places.emplace(specials[place], place);
  }
  // Tokens are separated by commas, which limits their number: an id far beyond it would make a
  // nearly empty table. The same check as `require_dense` in vocabulary.py.
  const size_t commas = static_cast<size_t>(std::count(text.begin(), text.end(), ','));
  const size_t largest_id = 4 * (commas + 1) + (1 << 18);
  std::vector<bool> used;
  std::string token;
  JsonCursor cursor(text);
  cursor.skip_blanks();
  const bool good = cursor.read_members([&](std::string_view key) {
    token.clear();
    uint32_t id = 0;
    if (key.empty() || !read_id(cursor, id) || id >= largest_id) return false;
    if (id >= used.size()) used.resize(std::max<size_t>(id + 1, 2 * used.size()));
    if (used[id]) return false;
    used[id] = true;
    const auto special = special_places.find(key);
    if (special != special_places.end()) {
      int64_t& known = result.special_ids[special->second];
      if (known >= 0) return false;
      known = id;
      return true;
    }
    if (!append_bytes(key, token)) return false;
    if (id >= result.tokens.size()) result.tokens.resize(id + 1);
    result.tokens[id] = token;
    return true;
  });
  return good && cursor.ends();
}

// Adds a merge of two byte-level texts to `merges`.
class MergeReader {
 public:
  MergeReader(const std::vector<std::string>& tokens, TokenIds& ids, std::vector<uint32_t>& merges)
      : tokens_(tokens), ids_(ids), merges_(merges) {}

  bool add(std::string_view left, std::string_view right) {
    bytes_.clear();
    if (left.empty() || right.empty() || !append_bytes(left, bytes_)) return false;
    const size_t middle = bytes_.size();
    if (!append_bytes(right, bytes_)) return false;
    const std::string_view whole = bytes_;
    for (const std::string_view part : {whole.substr(0, middle), whole.substr(middle), whole}) {
      const uint32_t id = ids_.place(part, tokens_);
      if (id == kNoToken) return false;
      merges_.push_back(id);
    }
    return true;
  }

  // The two parts separated by a blank, as "a b".
  bool add_line(std::string_view line) {
    const size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos) {
      return false;
    }
    return add(line.substr(0, blank), line.substr(blank + 1));
  }

 private:
  const std::vector<std::string>& tokens_;
  TokenIds& ids_;
  std::vector<uint32_t>& merges_;
  std::string bytes_;
};

bool read_merge_lines(std::string_view text, MergeReader& merges) {
  if (text.find('\r') != std::string_view::npos) return false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at && !merges.add_line(text.substr(at, end - at))) return false;
    at = end + 1;
  }
  return true;
}

bool read_merge_rows(std::string_view text, MergeReader& merges) {
  std::string left, right;
  JsonCursor cursor(text);
  cursor.skip_blanks();
  const bool good = cursor.read_items('[', ']', [&] {
    left.clear();
    right.clear();
    if (!cursor.sees('[')) return cursor.read_string(&left) && merges.add_line(left);
    int parts = 0;
    const bool pair = cursor.read_items(
        '[', ']', [&] { return ++parts <= 2 && cursor.read_string(parts == 1 ? &left : &right); });
    return pair && parts == 2 && merges.add(left, right);
  });
  return good && cursor.ends();
}

// The special token of each id, or null.
std::vector<const SpecialText*> specials_by_id(const std::vector<SpecialText>& specials,
                                               size_t size) {
  std::vector<const SpecialText*> by_id(size);
  for (const SpecialText& special : specials) {
    if (special.id < size) by_id[special.id] = &special;
  }
  return by_id;
}

}  // namespace

std::optional<JsonSections> find_json_sections(std::string_view text) {
  JsonSections found;
  JsonCursor cursor(text);
  const auto skip = [&](std::string_view& section) {
    if (!section.empty()) return false;  // given twice
    const char* const begin = cursor.at();
    if (!cursor.skip_value()) return false;
    section = {begin, static_cast<size_t>(cursor.at() - begin)};
    return true;
  };
  bool has_model = false;
  cursor.skip_blanks();
  const bool good = cursor.read_members([&](std::string_view key) {
    if (key != "model" || !cursor.sees('{')) return cursor.skip_value();
    if (has_model) return false;
    has_model = true;
    return cursor.read_members([&](std::string_view name) {
      if (name == "vocab") return skip(found.vocab);
      if (name == "merges") return skip(found.merges);
      return cursor.skip_value();
    });
  });
  if (!good || found.vocab.empty() || found.merges.empty()) return std::nullopt;
  return found;
}

std::optional<ByteLevelVocabulary> read_byte_level(std::string_view vocab, std::string_view merges,
                                                   bool merges_are_json,
                                                   const std::vector<std::string>& specials) {
  ByteLevelVocabulary result;
  result.special_ids.assign(specials.size(), -1);
  if (!read_vocab(vocab, specials, result)) return std::nullopt;
  TokenIds ids(result.tokens.size());
  for (uint32_t id = 0; id < result.tokens.size(); ++id) {
    if (result.tokens[id].empty()) continue;
    uint32_t& place = ids.place(result.tokens[id], result.tokens);
    if (place != kNoToken) return std::nullopt;  // the same text twice
    place = id;
  }
  MergeReader reader(result.tokens, ids, result.merges);
  if (!(merges_are_json ? read_merge_rows(merges, reader) : read_merge_lines(merges, reader))) {
    return std::nullopt;
  }
  return result;
}

std::optional<std::string> write_vocab_json(const std::vector<std::string_view>& tokens,
                                            const std::vector<SpecialText>& specials,
                                            std::string_view between, std::string_view colon) {
  const ByteCharacters& characters = byte_characters();
  const auto by_id = specials_by_id(specials, tokens.size());
  TokenIds ids(tokens.size());
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (by_id[id] != nullptr || tokens[id].empty()) continue;
    uint32_t& place = ids.place(tokens[id], tokens);
    if (place == kNoToken) place = id;
  }
  std::string written = "{", bytes;
  for (const SpecialText& special : specials) {  // an ordinary token must not have the same text
    bytes.clear();
    if (append_bytes(special.text, bytes) && ids.place(bytes, tokens) != kNoToken) {
      return std::nullopt;
    }
  }
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    const SpecialText* const special = by_id[id];
    const std::string_view token = special != nullptr ? special->text : tokens[id];
    if (token.empty() || (special == nullptr && ids.place(token, tokens) != id)) continue;
    if (written.size() > 1) written += between;
    if (special != nullptr) {
      written += special->json;
    } else {
      written.push_back('"');
      for (const char byte : token) written += characters.json[static_cast<unsigned char>(byte)];
      written.push_back('"');
    }
    written += colon;
    written += std::to_string(id);
  }
  written.push_back('}');
  return written;
}

std::optional<std::string> write_merges(const std::vector<std::string_view>& tokens,
                                        std::span<const uint32_t> rows,
                                        const std::vector<SpecialText>& specials, bool as_json) {
  const ByteCharacters& characters = byte_characters();
  const auto& table = as_json ? characters.json : characters.plain;
  const auto by_id = specials_by_id(specials, tokens.size());
  std::string written;
  const auto add = [&](uint32_t id) {
    if (id >= tokens.size() || by_id[id] != nullptr) return false;
    for (const char byte : tokens[id]) written += table[static_cast<unsigned char>(byte)];
    return true;
  };
  if (as_json) written.push_back('[');
  for (size_t row = 0; row + 2 < rows.size(); row += 3) {
    if (as_json) written += row > 0 ? ",\n[\"" : "[\"";
    if (!add(rows[row])) return std::nullopt;
    written += as_json ? "\", \"" : " ";
    if (!add(rows[row + 1])) return std::nullopt;
    written += as_json ? "\"]" : "\n";
  }
  if (as_json) written.push_back(']');
  return written;
}

}  // namespace lowtide
