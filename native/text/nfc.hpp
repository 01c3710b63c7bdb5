// Text in Unicode's NFC: what is so already is left alone, and the rest asked for part by part.
#pragma once

#include <cstddef>
#include <functional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lowtide {

// Gives text in NFC; asked for the rare text that may not be.
using Compose = std::function<std::string(std::string_view)>;

// `text` in NFC: itself where it is so already, else what is then in `room`. Stretches that are asked
// for have so many bytes from the first character on that may change, and end where NFC can be cut:
// composing text that needs none does no harm, and calls cost more than bytes.
std::string_view normalize_nfc(std::string_view text, const Compose& compose, std::string& room,
                               size_t stretch_bytes = 4096);

// Remembers what parts of a few characters become: the same few come again and again, and asking for
// each means to wait for the interpreter. Any thread may use it.
class ComposedParts {
 public:
  std::string compose_line(std::string_view line, const Compose& ask);

 private:
  static constexpr size_t kMostParts = 8192, kLongestPart = 64;
  std::string compose(std::string_view part, const Compose& ask);

  std::shared_mutex mutex_;
  std::unordered_map<std::string, std::string> parts_;
};

}  // namespace lowtide
