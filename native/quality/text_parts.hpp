// Split text into lines, words and characters with the same results as Python's str.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "corpus/line_scan.hpp"
#include "quality/words.hpp"

namespace lowtide {

// Number of non-overlapping occurrences of `wanted` in the text.
inline uint64_t count_text(std::string_view text, std::string_view wanted) {
  uint64_t count = 0;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); (at = find_bytes(at, end, wanted)) != nullptr; ++count) {
    at += wanted.size();
  }
  return count;
}

// The character that begins at `text[at]`.
inline Decoded decode_at(std::string_view text, size_t at) {
  return decode_utf8(reinterpret_cast<const unsigned char*>(text.data()) + at, text.size() - at);
}

// The start of the last character; the text must not be empty.
inline size_t last_place(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

inline uint32_t last_code(std::string_view text) {
  return text.empty() ? 0 : decode_at(text, last_place(text)).code;
}

inline std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const Decoded next = decode_at(text, 0);
    if (!(text_flags(next.code) & kTextSpace)) break;
    text.remove_prefix(next.size);
  }
  while (!text.empty() && (text_flags(last_code(text)) & kTextSpace)) {
    text = text.substr(0, last_place(text));
  }
  return text;
}

inline bool is_blank(std::string_view text) { return strip(text).empty(); }

// Parts between single `mark`s, one more than there are marks.
template <typename Found>
void for_each_part(std::string_view text, char mark, const Found& found) {
  for (size_t at = 0;;) {
    const size_t next = text.find(mark, at);
    if (next == std::string_view::npos) return found(text.substr(at));
    found(text.substr(at, next - at));
    at = next + 1;
  }
}

// Parts between runs of at least `least` newlines; text that begins or ends with such a run has an
// empty part there.
template <typename Found>
void for_each_run(std::string_view text, size_t least, const Found& found) {
  size_t begin = 0;
  for (size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at)) {
    size_t end = at;
    while (end < text.size() && text[end] == '\n') ++end;
    if (end - at >= least) {
      found(text.substr(begin, at - begin));
      begin = end;
    }
    at = end;
  }
  found(text.substr(begin));
}

// Lines as by str.splitlines if only newlines end them: nothing follows the last end.
template <typename Found>
void for_each_newline(std::string_view text, const Found& found) {
  for (size_t at = 0; at < text.size();) {
    const size_t next = std::min(text.find('\n', at), text.size());
    found(text.substr(at, next - at));
    at = next + 1;
  }
}

// Lines as by str.splitlines, which other characters end too.
template <typename Found>
void for_each_line(std::string_view text, const Found& found) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte > 0x1E && byte != 0xC2 && byte != 0xE2) {
      ++at;
      continue;
    }
    const Decoded next = decode_at(text, at);
    if (!(text_flags(next.code) & kTextBreak)) {
      at += next.size;
      continue;
    }
    found(text.substr(begin, at - begin));
    at += next.code == '\r' && at + 1 < text.size() && text[at + 1] == '\n' ? 2 : next.size;
    begin = at;
  }
  if (begin < text.size()) found(text.substr(begin));
}

// Words between whitespace; stops when `found` returns false.
template <typename Found>
void for_each_word(std::string_view text, const Found& found) {
  size_t begin = 0, chars = 0;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte > ' ' && byte < 0x7F) {
      ++chars, ++at;
      continue;
    }
    const Decoded next = decode_at(text, at);
    if (text_flags(next.code) & kTextSpace) {
      if (chars > 0 && !found(text.substr(begin, at - begin), chars)) return;
      begin = at + next.size, chars = 0;
    } else {
      ++chars;
    }
    at += next.size;
  }
  if (chars > 0) found(text.substr(begin), chars);
}

}  // namespace lowtide
