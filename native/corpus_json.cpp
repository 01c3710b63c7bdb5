#include "corpus_json.hpp"

#include <cstring>

#include "corpus_unicode.hpp"

namespace lowtide {
namespace {

constexpr int kMaxDepth = 256;

// Walks over one row; every function returns false where the row is not JSON.
class RowReader {
 public:
  explicit RowReader(std::string_view row) : at_(row.data()), end_(row.data() + row.size()) {}

  // Append the value of `field` to `text`; true when the row is an object that has it as a string.
  bool read_field(std::string_view field, std::string& text) {
    const size_t begin = text.size();
    bool found = false;
    skip_blanks();
    if (!take('{')) return false;
    skip_blanks();
    if (take('}')) return false;
    do {
      key_.clear();
      skip_blanks();
      if (!read_string(&key_)) return false;
      skip_blanks();
      if (!take(':')) return false;
      skip_blanks();
      if (key_ == field) {
        text.resize(begin);  // of equal keys the last counts, as in Python
        found = at_ < end_ && *at_ == '"';
        if (found ? !read_string(&text) : !skip_value(0)) return false;
      } else if (!skip_value(0)) {
        return false;
      }
      skip_blanks();
    } while (take(','));
    if (!take('}')) return false;
    skip_blanks();
    return found && at_ == end_;
  }

 private:
  void skip_blanks() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }

  bool take(char wanted) {
    if (at_ >= end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  bool read_hex(uint32_t& code) {
    if (end_ - at_ < 4) return false;
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
    if (at_ >= end_) return false;
    const char kind = *at_++;
    static constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (const size_t which = kNames.find(kind); which != std::string_view::npos) {
      if (out != nullptr) out->push_back(kValues[which]);
      return true;
    }
    uint32_t code = 0;
    if (kind != 'u' || !read_hex(code)) return false;
    if (code >= 0xD800 && code <= 0xDBFF && end_ - at_ >= 6 && at_[0] == '\\' && at_[1] == 'u') {
      const char* const before = at_;
      uint32_t low = 0;
      at_ += 2;
      if (read_hex(low) && low >= 0xDC00 && low <= 0xDFFF) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = before;
      }
    }
    if (code >= 0xD800 && code <= 0xDFFF) code = 0xFFFD;  // half a pair says nothing
    if (out != nullptr) append_utf8(*out, code);
    return true;
  }

  bool read_string(std::string* out) {
    if (!take('"')) return false;
    while (at_ < end_) {
      const char* run = at_;
      while (at_ < end_ && *at_ != '"' && *at_ != '\\') ++at_;
      if (out != nullptr) out->append(run, at_);
      if (at_ >= end_) return false;
      if (*at_++ == '"') return true;
      if (!read_escape(out)) return false;
    }
    return false;
  }

  bool skip_value(int depth) {
    if (at_ >= end_ || depth > kMaxDepth) return false;
    if (*at_ == '"') return read_string(nullptr);
    if (*at_ == '{' || *at_ == '[') {
      const char close = *at_ == '{' ? '}' : ']';
      ++at_;
      skip_blanks();
      if (take(close)) return true;
      do {
        skip_blanks();
        if (close == '}') {
          if (!read_string(nullptr)) return false;
          skip_blanks();
          if (!take(':')) return false;
          skip_blanks();
        }
        if (!skip_value(depth + 1)) return false;
        skip_blanks();
      } while (take(','));
      return take(close);
    }
    const char* begin = at_;
    while (at_ < end_ && std::strchr(",]} \t\r\n", *at_) == nullptr) ++at_;
    return at_ > begin;
  }

  const char* at_;
  const char* end_;
  std::string key_;
};

}  // namespace

JsonRows extract_jsonl(std::string_view block, std::string_view field) {
  JsonRows rows;
  rows.text.reserve(block.size());
  for (size_t at = 0; at < block.size();) {
    const size_t newline = block.find('\n', at);
    const size_t end = newline == std::string_view::npos ? block.size() : newline;
    const std::string_view row = block.substr(at, end - at);
    if (row.find_first_not_of(" \t\r") != std::string_view::npos) {
      const size_t mark = rows.text.size();
      if (RowReader(row).read_field(field, rows.text)) {
        rows.ends.push_back(rows.text.size());
        rows.offsets.push_back(at);
      } else {
        rows.text.resize(mark);
        rows.bad_offsets.push_back(at);
      }
    }
    at = end + 1;
  }
  return rows;
}

}  // namespace lowtide
