// The kinds of removals and changes by cleaning and quality rules, and their counters.
#pragma once

#include <cstdint>
#include <string>

namespace lowtide {

// Why something was removed or changed.
enum Rule : uint32_t {
#define LOWTIDE_RULE(enumerator, name, text) kRule##enumerator,
#include "corpus/cleaning_rules.inc"
  kNumRules,
};

struct RuleCount {
  uint64_t count = 0;
  uint64_t bytes = 0;
};

struct Sample {
  uint32_t rule;
  std::string text;
};

}  // namespace lowtide
