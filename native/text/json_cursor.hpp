// A cursor in JSON text that skips or reads strings and values, without building objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/code_points.hpp"

namespace lowtide {

// Text that is not in memory as a whole: the source of more text, and the destination of a long
// string while it is read.
class JsonSource {
 public:
  virtual ~JsonSource() = default;
  // Returns `rest`, the unread text in memory, followed by more text if there is any.
  virtual std::string_view refill(std::string_view rest) = 0;
  // Takes the string's text so far, and clears it.
  virtual void take(std::string& text) = 0;
};

// Accepts the same as Python's json.loads (including NaN and Infinity); every function returns
// false if the text is not JSON.
class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text, JsonSource* source = nullptr)
      : at_(text.data()), end_(text.data() + text.size()), source_(source) {}

  const char* at() const { return at_; }
  bool sees(char wanted) { return has(1) && *at_ == wanted; }

  void skip_blanks() {
    while (has(1) && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }

  // True if only blanks follow.
  bool ends() {
    skip_blanks();
    return at_ == end_;
  }

  bool take(char wanted) {
    if (!has(1) || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  // Appends a string to `out`, or skips it if that is null.
  bool read_string(std::string* out) {
    if (!take('"')) return false;
    while (has(1)) {
      const char* run = at_;
      while (at_ < end_ && *at_ != '"' && *at_ != '\\' && static_cast<uint8_t>(*at_) >= ' ') ++at_;
      if (out != nullptr) {
        out->append(run, at_);
        if (source_ != nullptr && out->size() >= kLongString) source_->take(*out);
      }
      if (at_ == end_) continue;
      if (take('"')) return true;
      if (!take('\\') || !read_escape(out)) return false;
    }
    return false;
  }

  // Calls item() at each item of the list or object at the cursor, with brackets `open` and
  // `close`.
  template <typename Item>
  bool read_items(char open, char close, const Item& item) {
    if (!take(open)) return false;
    skip_blanks();
    if (take(close)) return true;
    do {
      skip_blanks();
      if (!item()) return false;
      skip_blanks();
    } while (take(','));
    return take(close);
  }

  // Calls member(key) at the value of each member of the object at the cursor.
  template <typename Member>
  bool read_members(const Member& member) {
    std::string key;
    return read_items('{', '}', [&] {
      key.clear();
      if (!read_string(&key)) return false;
      skip_blanks();
      if (!take(':')) return false;
      skip_blanks();
      return member(key);
    });
  }

  // `open_` holds the closing bracket of every list and object around the cursor.
  bool skip_value() {
    open_.clear();
    while (true) {
      skip_blanks();
      if (take('{')) {
        skip_blanks();
        if (!take('}')) {
          if (open_.size() >= kDeepest) return false;
          open_.push_back('}');
          if (!skip_key()) return false;
          continue;
        }
      } else if (take('[')) {
        skip_blanks();
        if (!take(']')) {
          if (open_.size() >= kDeepest) return false;
          open_.push_back(']');
          continue;
        }
      } else if (!skip_scalar()) {
        return false;
      }
      do {  // a value has ended, and maybe the lists or objects around it
        if (open_.empty()) return true;
        skip_blanks();
      } while (close());
      if (!take(',')) return false;
      if (open_.back() == '}' && !skip_key()) return false;
    }
  }

 private:
  static constexpr size_t kLongString = 1 << 20;
  static constexpr size_t kDeepest = 1 << 20;  // nested lists; Python fails at far fewer

  // True if this many bytes are available.
  bool has(size_t count) {
    if (static_cast<size_t>(end_ - at_) >= count) return true;
    if (source_ == nullptr) return false;
    const std::string_view text = source_->refill({at_, static_cast<size_t>(end_ - at_)});
    at_ = text.data();
    end_ = at_ + text.size();
    return text.size() >= count;
  }

  bool read_hex(uint32_t& code) {
    if (!has(4)) return false;
    code = 0;
    for (int digit = 0; digit < 4; ++digit) {
      const char c = *at_++;
      const int value = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (value < 0) return false;
      code = code << 4 | static_cast<uint32_t>(value);
    }
    return true;
  }

  bool read_escape(std::string* out) {
    if (!has(1)) return false;
    const char kind = *at_++;
    static constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (const size_t which = kNames.find(kind); which != std::string_view::npos) {
      if (out != nullptr) out->push_back(kValues[which]);
      return true;
    }
    uint32_t code = 0;
    if (kind != 'u' || !read_hex(code)) return false;
    if (code >= 0xD800 && code <= 0xDBFF && has(6) && at_[0] == '\\' && at_[1] == 'u') {
      const char* const before = at_;  // not moved, because six bytes are available
      uint32_t low = 0;
      at_ += 2;
      if (read_hex(low) && low >= 0xDC00 && low <= 0xDFFF) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = before;
      }
    }
    if (code >= 0xD800 && code <= 0xDFFF) code = 0xFFFD;  // an unpaired surrogate
    if (out != nullptr) append_utf8(*out, code);
    return true;
  }

  bool take_word(std::string_view word) {
    if (!has(word.size()) || !std::string_view(at_, end_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool take_digits() {
    if (!has(1) || !is_digit(*at_)) return false;
    while (has(1) && is_digit(*at_)) ++at_;
    return true;
  }

  bool skip_number() {
    take('-');
    if (take_word("Infinity")) return true;
    if (!take('0') && !take_digits()) return false;
    if (take('.') && !take_digits()) return false;
    if (!take('e') && !take('E')) return true;
    if (!take('+')) take('-');
    return take_digits();
  }

  bool skip_scalar() {
    if (sees('"')) return read_string(nullptr);
    return take_word("true") || take_word("false") || take_word("null") || take_word("NaN") ||
           skip_number();
  }

  bool skip_key() {
    skip_blanks();
    if (!read_string(nullptr)) return false;
    skip_blanks();
    return take(':');
  }

  bool close() {
    if (!take(open_.back())) return false;
    open_.pop_back();
    return true;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  const char* at_;
  const char* end_;
  JsonSource* source_;
  std::string open_;
};

}  // namespace lowtide
