#include "text/nfc.hpp"

#include <algorithm>
#include <cstring>

#include "text/code_points.hpp"

namespace lowtide {

namespace {

const unsigned char* bytes_at(std::string_view text, size_t at) {
  return reinterpret_cast<const unsigned char*>(text.data()) + at;
}

// kClassUnstable, or the combining class of a character. Other classes are independent of NFC,
// which changes two of the blanks: U+2000 and U+2001 become U+2002 and U+2003.
uint8_t combining_class(uint32_t code) {
  const uint8_t kind = classify_code_point(code);
  if (kind <= 240 || kind == kClassUnstable) return kind;
  return code == 0x2000 || code == 0x2001 ? kClassUnstable : 0;
}

// A character that NFC does not change, regardless of the text before it: text can be composed up
// to it.
bool is_border(std::string_view text, size_t at) {
  return combining_class(decode_utf8(bytes_at(text, at), text.size() - at).code) == 0;
}

// The first character from `at` on that NFC may change, or that is out of order; npos if none.
// `border` is set to the last border before it.
size_t find_unstable(std::string_view text, size_t at, size_t* border) {
  uint8_t last_class = 0;
  while (at < text.size()) {
    const unsigned char* const p = bytes_at(text, at);
    if (text.size() - at >= 8) {  // ASCII, eight bytes at a time
      uint64_t bytes;
      std::memcpy(&bytes, p, 8);
      if ((bytes & 0x8080808080808080ull) == 0) {
        *border = at + 7;
        at += 8;
        last_class = 0;
        continue;
      }
    }
    if (*p < 0x80) {
      *border = at++;
      last_class = 0;
      continue;
    }
    const Decoded next = decode_utf8(p, text.size() - at);
    const uint8_t kind = combining_class(next.code);
    if (kind == kClassUnstable || (kind != 0 && kind < last_class)) return at;
    if (kind == 0) *border = at;
    last_class = kind;
    at += next.size;
  }
  return std::string_view::npos;
}

}  // namespace

std::string_view normalize_nfc(std::string_view text, const Compose& compose, std::string& room,
                               size_t stretch_bytes) {
  size_t border = 0;
  size_t at = find_unstable(text, 0, &border);
  if (at == std::string_view::npos) return text;
  room.clear();
  size_t done = 0;
  while (at != std::string_view::npos) {
    size_t end = std::min(text.size(), at + stretch_bytes);
    while (end < text.size() && ((text[end] & 0xC0) == 0x80 || !is_border(text, end))) ++end;
    room.append(text, done, border - done);
    room += compose(text.substr(border, end - border));
    done = border = end;
    at = find_unstable(text, end, &border);
  }
  room.append(text, done);
  return room;
}

std::string ComposedParts::compose(std::string_view part, const Compose& ask) {
  std::string key(part);
  {
    const std::shared_lock hold(mutex_);
    const auto found = parts_.find(key);
    if (found != parts_.end()) return found->second;
  }
  std::string made = ask(part);
  const std::lock_guard hold(mutex_);
  if (parts_.size() < kMostParts && part.size() <= kLongestPart) {
    parts_.emplace(std::move(key), made);
  }
  return made;
}

std::string ComposedParts::compose_line(std::string_view line, const Compose& ask) {
  std::string room;
  const auto look_up = [&](std::string_view part) { return compose(part, ask); };
  return std::string(normalize_nfc(line, look_up, room, 1));
}

}  // namespace lowtide
