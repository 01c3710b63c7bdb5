#include "corpus/json_rows.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "text/json_cursor.hpp"

namespace lowtide {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Append the value of `field` to `text`; true if the row is an object that has it as a string, or as
// null, which is an empty document, as in parquet. reset() drops the appended text.
template <typename Reset>
bool read_field(JsonCursor& cursor, std::string_view field, std::string& text, const Reset& reset) {
  bool found = false;
  cursor.skip_blanks();
  const bool good = cursor.read_members([&](std::string_view key) {
    if (key != field) return cursor.skip_value();
    reset();  // the last of equal keys is used, as in Python
    const bool is_text = cursor.sees('"');
    found = is_text || cursor.sees('n');
    return is_text ? cursor.read_string(&text) : cursor.skip_value();
  });
  return good && found && cursor.ends();
}

bool read_field(std::string_view row, std::string_view field, std::string& text) {
  JsonCursor cursor(row);
  const size_t begin = text.size();
  return read_field(cursor, field, text, [&] { text.resize(begin); });
}

[[noreturn]] void fail() { throw std::system_error(errno, std::generic_category()); }

// A row in a file, and the output file of its text.
class RowFile : public JsonSource {
 public:
  RowFile(int row_file, int text_file) : row_file_(row_file), text_file_(text_file) {}

  std::string_view refill(std::string_view rest) override {
    std::string next(rest);
    next.resize(rest.size() + kBufferBytes);
    const ssize_t got = ::pread(row_file_, next.data() + rest.size(), kBufferBytes, read_);
    if (got < 0) fail();
    read_ += got;
    next.resize(rest.size() + static_cast<size_t>(got));
    buffer_ = std::move(next);
    return buffer_;
  }
  void take(std::string& given) override {
    if (&given != &text) return given.resize(kBufferBytes);  // a long key: its beginning is enough
    for (size_t done = 0; done < given.size();) {
      const ssize_t wrote =
          ::pwrite(text_file_, given.data() + done, given.size() - done, written_);
      if (wrote < 0) fail();
      done += static_cast<size_t>(wrote);
      written_ += wrote;
    }
    given.clear();
  }
  void reset() {
    text.clear();
    written_ = 0;
  }
  int64_t written() const { return written_; }

  std::string text;

 private:
  static constexpr size_t kBufferBytes = 1 << 18;
  const int row_file_, text_file_;
  off_t read_ = 0, written_ = 0;
  std::string buffer_;
};

}  // namespace

int64_t extract_long_row(int row_file, std::string_view field, int text_file) {
  RowFile file(row_file, text_file);
  std::string_view head = file.refill({});
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  JsonCursor cursor(head, &file);
  if (!read_field(cursor, field, file.text, [&] { file.reset(); })) return -1;
  file.take(file.text);
  return file.written();
}

JsonRows extract_jsonl(std::string_view block, std::string_view field) {
  JsonRows rows;
  rows.text.reserve(block.size());
  for (size_t at = 0; at < block.size();) {
    const size_t newline = block.find('\n', at);
    const size_t end = newline == std::string_view::npos ? block.size() : newline;
    std::string_view row = block.substr(at, end - at);
    if (row.starts_with(kByteOrderMark)) row.remove_prefix(kByteOrderMark.size());
    if (row.find_first_not_of(" \t\r") != std::string_view::npos) {
      const size_t mark = rows.text.size();
      if (read_field(row, field, rows.text)) {
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
