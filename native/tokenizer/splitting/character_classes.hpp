// The character classes of UTF-8 text that the split patterns distinguish.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lowtide {

enum CharClass : uint8_t {
  kOther = 0,
  kUpper,    // Lu, Lt
  kLower,    // Ll
  kLetter,   // Lm, Lo
  kMark,     // M
  kNumber,   // N
  kNewline,  // \r \n
  kSpace,    // \s, newlines apart
};

// Two-stage lookup: 256-code-point blocks, equal blocks stored once (about 20 KB in all).
class ClassTable {
 public:
  static const ClassTable& get();
  CharClass operator()(uint32_t code) const {
    return static_cast<CharClass>(blocks_[block_of_[code >> 8]][code & 0xFF]);
  }

 private:
  ClassTable();
  std::array<uint8_t, 0x1100> block_of_{};
  std::array<std::array<uint8_t, 256>, 256> blocks_{};
};

extern const std::array<uint8_t, 128> kAsciiClass;

struct Char {
  CharClass cls;
  uint8_t length;
};

// Decodes the character at `p`; a byte that is not part of valid UTF-8 is one character of kOther.
Char decode_multibyte(const uint8_t* p, const uint8_t* end);

inline Char char_at(const uint8_t* p, const uint8_t* end) {
  if (*p < 0x80) return {static_cast<CharClass>(kAsciiClass[*p]), 1};
  return decode_multibyte(p, end);
}

}  // namespace lowtide
