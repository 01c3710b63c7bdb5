// Extract one text field from every row of a jsonl block, without parsing rows into objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

struct JsonRows {
  std::string text;                   // the fields' values, concatenated, as UTF-8
  std::vector<uint64_t> ends;         // where each ends in `text`
  std::vector<uint64_t> offsets;      // where its row starts in the block
  std::vector<uint64_t> bad_offsets;  // rows that are not a JSON object with text in that field
};

// `field` is compared with the unescaped key.
JsonRows extract_jsonl(std::string_view block, std::string_view field);

// The same for one row of any size in a file: its text is written to another file, from its
// beginning. Returns the bytes of the text, or -1 if the row has none.
// Memory:  about 2 MiB
int64_t extract_long_row(int row_file, std::string_view field, int text_file);

}  // namespace lowtide
