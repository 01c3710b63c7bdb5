// Personal data in lines, by its form: addresses, numbers with check digits, telephone numbers.
//
// What is found depends on the line alone, and every kind has one text that it is replaced by, so
// the result depends on no order. Kinds that are not asked for are not looked for.
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

// Write the line to `out` with what the bits of `kinds` name replaced, and count it; false: there is
// nothing of it, and `out` is not written.
bool mask_line(std::string_view line, uint64_t kinds, std::string& out, MaskCounts& counts);

}  // namespace lowtide
