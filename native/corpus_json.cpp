#include "corpus_json.hpp"

#include "json_cursor.hpp"

namespace lowtide {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Append the value of `field` to `text`; true when the row is an object that has it as a string.
bool read_field(std::string_view row, std::string_view field, std::string& text) {
  if (row.starts_with(kByteOrderMark)) row.remove_prefix(kByteOrderMark.size());
  JsonCursor cursor(row);
  const size_t begin = text.size();
  bool found = false;
  cursor.skip_blanks();
  const bool good = cursor.read_members([&](std::string_view key) {
    if (key != field) return cursor.skip_value();
    text.resize(begin);  // of equal keys the last counts, as in Python
    found = cursor.sees('"');
    return found ? cursor.read_string(&text) : cursor.skip_value();
  });
  return good && found && cursor.ends();
}

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
