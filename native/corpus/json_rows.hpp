// Extract one text field from every row of a jsonl block, without parsing rows into objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

struct JsonRows {
  std::string text;                   // the fields' values, one after the other, as UTF-8
  std::vector<uint64_t> ends;         // where each ends in `text`
  std::vector<uint64_t> offsets;      // where its row starts in the block
  std::vector<uint64_t> bad_offsets;  // rows that are not a JSON object with text in that field
};

// `field` is compared with the key as it would read without escapes.
JsonRows extract_jsonl(std::string_view block, std::string_view field);

// The same of one row of any size that lies in a file: its text goes to another file, from its
// beginning. Returns the bytes of the text, or -1 where the row has none.
// Memory:  about 2 MiB
int64_t extract_long_row(int row_file, std::string_view field, int text_file);

}  // namespace lowtide
