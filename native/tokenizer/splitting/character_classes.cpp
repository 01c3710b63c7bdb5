#include "tokenizer/splitting/character_classes.hpp"

#include <cstring>

namespace lowtide {

namespace {
struct Range {
  uint32_t first, last;
  CharClass cls;
};
constexpr Range kRanges[] = {
#include "tokenizer/splitting/character_ranges.inc"
};

constexpr std::array<uint8_t, 128> make_ascii() {
  std::array<uint8_t, 128> table{};
  for (const Range& range : kRanges) {
    for (uint32_t code = range.first; code <= range.last && code < 128; ++code) {
      table[code] = range.cls;
    }
  }
  return table;
}
}  // namespace

constexpr std::array<uint8_t, 128> kAsciiTable = make_ascii();
const std::array<uint8_t, 128> kAsciiClass = kAsciiTable;

ClassTable::ClassTable() {
  size_t used = 0;
  const Range* range = kRanges;
  const Range* const ranges_end = kRanges + sizeof(kRanges) / sizeof(kRanges[0]);
  for (uint32_t block = 0; block < block_of_.size(); ++block) {
    std::array<uint8_t, 256> classes{};
    const uint32_t first = block << 8, last = first + 255;
    while (range != ranges_end && range->last < first) ++range;
    for (const Range* r = range; r != ranges_end && r->first <= last; ++r) {
      const uint32_t from = r->first > first ? r->first : first;
      const uint32_t to = r->last < last ? r->last : last;
      for (uint32_t code = from; code <= to; ++code) classes[code - first] = r->cls;
    }
    size_t index = 0;
    while (index < used && blocks_[index] != classes) ++index;
    if (index == used) blocks_[used++] = classes;
    block_of_[block] = static_cast<uint8_t>(index);
  }
}

const ClassTable& ClassTable::get() {
  static const ClassTable table;
  return table;
}

Char decode_multibyte(const uint8_t* p, const uint8_t* end) {
  static const ClassTable& table = ClassTable::get();
  const uint32_t a = p[0];
  const size_t left = static_cast<size_t>(end - p);
  const auto follows = [&](size_t i) { return i < left && (p[i] & 0xC0) == 0x80; };
  if (a >= 0xC2 && a <= 0xDF && follows(1)) {
    return {table((a & 0x1F) << 6 | (p[1] & 0x3Fu)), 2};
  }
  if (a >= 0xE0 && a <= 0xEF && follows(1) && follows(2)) {
    const uint32_t code = (a & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) return {table(code), 3};
  }
  if (a >= 0xF0 && a <= 0xF4 && follows(1) && follows(2) && follows(3)) {
    const uint32_t code =
        (a & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    if (code >= 0x10000 && code <= 0x10FFFF) return {table(code), 4};
  }
  return {kOther, 1};
}

}  // namespace lowtide
