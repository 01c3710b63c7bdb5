// Arguments of the tokenizer's bindings: names of patterns and instructions, lists of bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/splitting/splitter.hpp"

namespace lowtide {

namespace nb = nanobind;

inline Pattern pattern_named(const std::string& name) {
  if (name == "gpt2") return Pattern::kGpt2;
  if (name == "cl100k") return Pattern::kCl100k;
  if (name == "o200k") return Pattern::kO200k;
  if (name == "qwen2") return Pattern::kQwen2;
  if (name == "qwen35") return Pattern::kQwen35;
  if (name == "digits") return Pattern::kDigits;
  if (name == "tekken") return Pattern::kTekken;
  if (name == "spaces") return Pattern::kSpaces;
  throw std::invalid_argument("unknown pattern: " + name);
}

inline std::vector<std::string> as_strings(const std::vector<nb::bytes>& list) {
  std::vector<std::string> strings;
  strings.reserve(list.size());
  for (const nb::bytes& item : list) strings.emplace_back(item.c_str(), item.size());
  return strings;
}

inline std::string_view view(const nb::bytes& text) {
  return {static_cast<const char*>(text.data()), text.size()};
}

inline std::vector<std::string_view> as_views(const std::vector<nb::bytes>& list) {
  std::vector<std::string_view> views;
  views.reserve(list.size());
  for (const nb::bytes& item : list) views.push_back(view(item));
  return views;
}

inline Instructions instructions_named(const std::string& name) {
  if (name == "scalar") return Instructions::kScalar;
  if (name == "avx2") return Instructions::kAvx2;
  if (name == "avx512") return Instructions::kAvx512;
  throw std::invalid_argument("unknown instructions: " + name);
}

}  // namespace lowtide
