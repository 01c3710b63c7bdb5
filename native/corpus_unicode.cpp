#include "corpus_unicode.hpp"

namespace lowtide {
namespace {
#include "corpus_unicode.inc"
}  // namespace

uint8_t classify_code_point(uint32_t code) {
  if (code > 0x10FFFF) return 0;
  return kUnicodePages[kUnicodePageIndex[code >> 7]][code & 127];
}

}  // namespace lowtide
