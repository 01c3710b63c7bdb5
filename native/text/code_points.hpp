// Properties of code points for cleaning, and UTF-8 decoding that accepts any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lowtide {

// Values above the canonical combining classes (1 to 240); 0 is an ordinary character.
enum : uint8_t {
  kClassBlank = 241,
  kClassDrop = 242,
  kClassNewline = 243,
  kClassUnstable = 244,  // NFC may change it, or join it to the character before
};

#include "text/code_points.inc"

inline uint8_t classify_code_point(uint32_t code) {
  if (code > 0x10FFFF) return 0;
  return kUnicodePages[kUnicodePageIndex[code >> 7]][code & 127];
}

struct Decoded {
  uint32_t code;
  uint32_t size;  // bytes consumed; for an invalid sequence its longest valid prefix
  bool valid;     // else `code` is U+FFFD
};

// Decode one character; `size` is at least 1.
inline Decoded decode_utf8(const unsigned char* bytes, size_t size) {
  constexpr uint32_t kReplacement = 0xFFFD;
  const unsigned char lead = bytes[0];
  if (lead < 0x80) return {lead, 1, true};
  uint32_t length, code, low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2, code = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3, code = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;   // overlong forms
    if (lead == 0xED) high = 0x9F;  // surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4, code = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // past U+10FFFF
  } else {
    return {kReplacement, 1, false};
  }
  for (uint32_t at = 1; at < length; ++at) {
    if (at >= size || bytes[at] < low || bytes[at] > high) return {kReplacement, at, false};
    code = code << 6 | (bytes[at] & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {code, length, true};
}

inline void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text.push_back(static_cast<char>(0xC0 | code >> 6));
    text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | code >> 12));
    text.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    text.push_back(static_cast<char>(0xF0 | code >> 18));
    text.push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    text.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

inline size_t count_code_points(const char* bytes, size_t size) {
  size_t count = 0;
  for (size_t begin = 0; begin < size; begin += 128) {
    uint8_t found = 0;  // narrow, so that 16 of them are counted at a time
    const size_t end = size - begin < 128 ? size : begin + 128;
    for (size_t at = begin; at < end; ++at) found += (bytes[at] & 0xC0) != 0x80;
    count += found;
  }
  return count;
}

}  // namespace lowtide
