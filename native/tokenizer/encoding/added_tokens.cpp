#include "tokenizer/encoding/added_tokens.hpp"

#include <algorithm>
#include <cstring>

#include "text/code_points.hpp"
#include "tokenizer/splitting/character_classes.hpp"

namespace lowtide {

namespace {

bool is_blank(CharClass cls) { return cls == kSpace || cls == kNewline; }

std::vector<std::string> bytes_of(const std::vector<AddedToken>& tokens) {
  std::vector<std::string> bytes;
  for (const AddedToken& token : tokens) bytes.push_back(token.bytes);
  return bytes;
}

std::vector<AddedToken> those(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> found;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) found.push_back(token);
  }
  return found;
}

const unsigned char* bytes_at(std::string_view text, size_t at) {
  return reinterpret_cast<const unsigned char*>(text.data()) + at;
}

}  // namespace

AddedGroup::AddedGroup(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), finder_(bytes_of(tokens_)) {
  for (const AddedToken& token : tokens_) has_plain_ |= !token.special;
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, Compose compose)
    : is_empty_(tokens.empty() && !compose),
      raw_(those(tokens, false)),
      normalized_(those(tokens, true)),
      all_(bytes_of(tokens),
           std::any_of(tokens.begin(), tokens.end(),
                       [](const AddedToken& token) { return token.lstrip || token.rstrip; })),
      compose_(std::move(compose)) {}

size_t blanks_before(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t at = begin - 1;
    while (at > 0 && begin - at < 4 && (text[at] & 0xC0) == 0x80) --at;
    const Char c = char_at(bytes_at(text, at), bytes_at(text, begin));
    if (at + c.length != begin || !is_blank(c.cls)) break;
    begin = at;
  }
  return begin;
}

size_t blanks_behind(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Char c = char_at(bytes_at(text, at), bytes_at(text, text.size()));
    if (!is_blank(c.cls)) break;
    at += c.length;
  }
  return at;
}

}  // namespace lowtide
