// Find personal data in lines by patterns: addresses, numbers with check digits, telephone numbers.
//
// A match depends on the line alone, and every kind has one replacement text, so the result does not
// depend on any order. Kinds that are not requested are not searched for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lowtide {

enum Mask : uint32_t {
  kMaskEmail,
  kMaskIp,
  kMaskPhone,
  kMaskIban,
  kMaskCard,
  kNumMasks,
};

struct MaskCounts {
  std::array<uint64_t, kNumMasks> count{};
  std::array<uint64_t, kNumMasks> bytes{};
};

// Write the line to `out` with data of the `kinds` (bits) replaced, and count it; false if there is
// none, and `out` is not written.
bool mask_line(std::string_view line, uint64_t kinds, std::string& out, MaskCounts& counts);

}  // namespace lowtide
