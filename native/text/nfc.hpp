// Normalize text to Unicode NFC: text that is already NFC is not changed, and only other parts are
// passed to a callback.
#pragma once

#include <cstddef>
#include <functional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lowtide {

// Returns text in NFC; called only for text that may not be NFC already, which is rare.
using Compose = std::function<std::string(std::string_view)>;

// Returns `text` in NFC: itself if it is NFC already, else the contents of `room`. `compose` is called
// with `stretch_bytes` from the first character on that may change, up to the next point where NFC can
// be cut: composing text that is NFC already does no harm, and calls cost more than bytes.
std::string_view normalize_nfc(std::string_view text, const Compose& compose, std::string& room,
                               size_t stretch_bytes = 4096);

// A cache of normalized parts of a few characters: the same few occur again and again, and each call
// waits for the interpreter lock. Thread-safe.
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
