// Cleaning of text whose documents separators end.
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "corpus/cleaner.hpp"
#include "corpus/line_scan.hpp"

namespace lowtide {
namespace {

// Calls take(begin, end) for the documents of a segment in order. The text after the last separator
// is one if it is not empty. No list of them is made: there may be one for each byte.
template <typename Take>
void visit_documents(std::string_view text, const Segment& segment,
                     std::span<const std::string_view> separators, const Take& take) {
  struct Search {
    std::string_view separator;
    const char* next;  // null if there are no more
  };
  const char* const end = text.data() + segment.end;
  const char* begin = text.data() + segment.begin;
  std::vector<Search> searches;
  for (const std::string_view separator : separators) {
    searches.push_back({separator, find_bytes(begin, end, separator)});
  }
  while (true) {
    const Search* nearest = nullptr;
    for (Search& search : searches) {
      if (search.next == nullptr) continue;
      if (search.next < begin) search.next = find_bytes(begin, end, search.separator);
      if (search.next == nullptr) continue;
      if (nearest == nullptr || search.next < nearest->next) nearest = &search;
    }
    if (nearest == nullptr) break;
    take(begin, nearest->next);
    begin = nearest->next + nearest->separator.size();
  }
  if (begin < end) take(begin, end);
}

}  // namespace

void BlockCleaner::add_segments(std::string_view block, std::span<const Segment> segments,
                                std::span<const std::string_view> separators, bool continues,
                                bool continued) {
  text.reserve(block.size());
  uint64_t flags = continues ? kDocumentLast : kDocumentFirst | kDocumentLast;
  struct Found {
    std::string_view raw;
    uint64_t input_index, ordinal;
  };
  std::optional<Found> last;  // whether it is continued is known once no other one follows
  for (const Segment& segment : segments) {
    visit_documents(block, segment, separators, [&](const char* begin, const char* end) {
      if (last) {
        add_document(last->raw, last->input_index, last->ordinal, flags);
        flags = kDocumentFirst | kDocumentLast;
      }
      const auto place = static_cast<uint64_t>(begin - block.data());
      // Unsigned: may wrap around.
      last = {{begin, end}, segment.input_index, place + (segment.offset - segment.begin)};
    });
  }
  if (continued) flags &= ~kDocumentLast;
  if (last) add_document(last->raw, last->input_index, last->ordinal, flags);
  finish();
}

}  // namespace lowtide
