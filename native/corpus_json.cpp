#include "corpus_json.hpp"

#include "corpus_unicode.hpp"

namespace lowtide {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Walks over one row and accepts what Python's json.loads accepts (NaN and Infinity among it); every
// function returns false where the row is not JSON.
class RowReader {
 public:
  explicit RowReader(std::string_view row) : at_(row.data()), end_(row.data() + row.size()) {
    if (row.starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
  }

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
        if (found ? !read_string(&text) : !skip_value()) return false;
      } else if (!skip_value()) {
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
      while (at_ < end_ && *at_ != '"' && *at_ != '\\' && static_cast<uint8_t>(*at_) >= ' ') ++at_;
      if (out != nullptr) out->append(run, at_);
      if (take('"')) return true;
      if (!take('\\') || !read_escape(out)) return false;
    }
    return false;
  }

  bool take_word(std::string_view word) {
    if (!std::string_view(at_, end_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool take_digits() {
    const char* const begin = at_;
    while (at_ < end_ && is_digit(*at_)) ++at_;
    return at_ > begin;
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
    if (at_ < end_ && *at_ == '"') return read_string(nullptr);
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

  // `open_` holds the closing bracket of every list and object around the place we are at.
  bool skip_value() {
    open_.clear();
    while (true) {
      skip_blanks();
      if (take('{')) {
        skip_blanks();
        if (!take('}')) {
          open_.push_back('}');
          if (!skip_key()) return false;
          continue;
        }
      } else if (take('[')) {
        skip_blanks();
        if (!take(']')) {
          open_.push_back(']');
          continue;
        }
      } else if (!skip_scalar()) {
        return false;
      }
      do {  // a value has ended, and with it perhaps what is around it
        if (open_.empty()) return true;
        skip_blanks();
      } while (close());
      if (!take(',')) return false;
      if (open_.back() == '}' && !skip_key()) return false;
    }
  }

  const char* at_;
  const char* end_;
  std::string key_;
  std::string open_;
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
