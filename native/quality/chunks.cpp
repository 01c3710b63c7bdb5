// Words of the chunks that the fast path of quality/words.cpp does not handle: character by
// character, known words first, then marks at both ends, then marks within.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "quality/known_words.hpp"
#include "quality/word_hash.hpp"
#include "quality/words.hpp"

namespace lowtide {
namespace {

constexpr size_t kMostChunk = 1 << 16;  // bytes; a longer one is one word

bool is_ascii_digit(uint32_t code) { return code - '0' < 10; }

// In Latin-1, where a byte is a character.
constexpr const char* kUnits[] = {
    "km",     "km\xB2", "km\xB3", "m",      "m\xB2",  "m\xB3", "dm",    "dm\xB2", "dm\xB3", "cm",
    "cm\xB2", "cm\xB3", "mm",     "mm\xB2", "mm\xB3", "ha",    "\xB5m", "nm",     "yd",     "in",
    "ft",     "kg",     "g",      "mg",     "\xB5g",  "t",     "lb",    "oz",     "m/s",    "km/h",
    "kmh",    "mph",    "hPa",    "Pa",     "mbar",   "mb",    "MB",    "kb",     "KB",     "gb",
    "GB",     "tb",     "TB",     "T",      "G",      "M",     "K",     "%"};
constexpr size_t kMostUnit = 4;  // characters

constexpr std::array<uint32_t, std::size(kUnits)> pack_units() {
  std::array<uint32_t, std::size(kUnits)> packed{};
  for (size_t row = 0; row < packed.size(); ++row) {
    for (const char* at = kUnits[row]; *at != 0; ++at) {
      packed[row] = packed[row] << 8 | static_cast<unsigned char>(*at);
    }
  }
  return packed;
}
constexpr auto kPackedUnits = pack_units();

// Units contain no digit, so a unit can only follow the last digit. code_before(1) is the last
// character.
template <typename CodeBefore>
size_t unit_size(size_t size, const CodeBefore& code_before) {
  uint32_t packed = 0;
  for (size_t length = 1; length <= kMostUnit && length < size; ++length) {
    const uint32_t next = code_before(length);
    if (next == 0 || next > 0xFF) return 0;
    packed |= next << (8 * (length - 1));
    if (!is_ascii_digit(code_before(length + 1))) continue;
    uint32_t found = 0;
    for (const uint32_t unit : kPackedUnits) found |= unit == packed;
    return found != 0 ? length : 0;
  }
  return 0;
}

constexpr uint32_t kEllipsis = 0x2026, kEnDash = 0x2013, kEmDash = 0x2014;

}  // namespace

WordSplitter::Characters WordSplitter::decode_chunk(const char* begin, const char* end) {
  const auto most = static_cast<size_t>(end - begin);
  if (flags_.size() < most) codes_.resize(most), places_.resize(most + 1), flags_.resize(most);
  constexpr uint16_t kNoLetter = kTextIcon | kTextPunct | kTextQuote | kTextCurrency;
  size_t count = 0;
  uint16_t any = 0, all = kTextAlpha;
  for (const char* at = begin; at < end; ++count) {
    const Decoded next =
        decode_utf8(reinterpret_cast<const unsigned char*>(at), static_cast<size_t>(end - at));
    const uint16_t flags = text_flags(next.code);
    codes_[count] = next.code;
    places_[count] = static_cast<uint32_t>(at - text_);
    flags_[count] = flags;
    any |= flags;
    all &= flags;
    at += next.size;
  }
  places_[count] = static_cast<uint32_t>(end - text_);
  return {count, all != 0 && (any & kNoLetter) == 0};
}

void WordSplitter::split_chunk(const char* begin, const char* end, std::vector<Word>& words) {
  if (end - begin >
      static_cast<ptrdiff_t>(kMostChunk)) {  // no word; the following arrays are per character
    const std::string_view word(begin, static_cast<size_t>(end - begin));
    const auto chars = static_cast<uint32_t>(count_code_points(word.data(), word.size()));
    words.push_back({hash_word(word), static_cast<uint32_t>(begin - text_ + base_),
                     chars << kWordCharsShift | kWordAlpha | kWordReal});
    return;
  }
  const auto [num_codes, letters] = decode_chunk(begin, end);
  size_t first = 0, last = num_codes;
  const uint8_t* known = known_word(first, last);
  if (letters && known == nullptr) return add(first, last, words);
  const size_t first_word = words.size();
  infixes_.clear();
  std::vector<std::pair<uint32_t, uint32_t>>& suffixes = infixes_;  // in turn, from the end
  for (size_t before = 0; known == nullptr && first < last && last - first != before;) {
    before = last - first;
    const size_t prefix = prefix_size(first, last);
    if (prefix > 0 && first + prefix < last &&
        (known = known_word(first + prefix, last)) != nullptr) {
      add(first, first + prefix, words);
      first += prefix;
      break;
    }
    const size_t suffix = suffix_size(first + prefix, last);
    if (suffix > 0 && first + suffix < last &&
        (known = known_word(first, last - suffix)) != nullptr) {
      suffixes.emplace_back(last - suffix, last);
      last -= suffix;
      break;
    }
    if (prefix > 0) {
      add(first, first + prefix, words);
      first += prefix;
    }
    if (suffix > 0) {
      suffixes.emplace_back(last - suffix, last);
      last -= suffix;
    }
    if (prefix + suffix > 0 && first < last) known = known_word(first, last);
  }
  const size_t num_suffixes = suffixes.size();
  if (known != nullptr) {
    add_known(first, known, words);
  } else if (first < last) {
    split_middle(first, last, words);
  }
  for (size_t at = num_suffixes; at-- > 0;) add(infixes_[at].first, infixes_[at].second, words);
  if (words.size() > first_word + 1) join_known(first_word, end, words);
}

void WordSplitter::join_known(size_t first_word, const char* end, std::vector<Word>& words) const {
  size_t kept = first_word;
  for (size_t at = first_word; at < words.size(); ++at) {
    words[kept++] = words[at];
    if (at + 1 == words.size()) break;
    const Word& next = words[at + 1];
    if ((next.facts & (kWordAlpha | kWordReal)) || next.chars() > 1) continue;
    const uint32_t begin = words[at].begin - static_cast<uint32_t>(base_);
    const uint32_t after = at + 2 < words.size()
                               ? words[at + 2].begin - static_cast<uint32_t>(base_)
                               : static_cast<uint32_t>(end - text_);
    if (after - begin > kMostKnownBytes) continue;
    const std::string_view both(text_ + begin, after - begin);
    const uint8_t* const sizes = known_.find(both);
    if (sizes == nullptr || sizes[1] != 0) continue;
    Word& word = words[kept - 1];
    word.facts = (word.facts & next.facts & kWordMarks) | (word.facts & (kWordAlpha | kWordReal)) |
                 uint32_t{sizes[0]} << kWordCharsShift;
    word.hash = hash_word(both);
    ++at;
  }
  words.resize(kept);
}

void WordSplitter::split_middle(size_t first, size_t last, std::vector<Word>& words) {
  const size_t mark = infixes_.size();
  for (size_t at = first; at < last;) {
    if ((flags_[at] & (kTextAlpha | kTextIcon)) == kTextAlpha || is_ascii_digit(codes_[at])) {
      ++at;
      continue;
    }
    const size_t size = infix_size(at, first, last);
    if (size > 0 && at > first) infixes_.emplace_back(at, at + size);
    at += size > 0 ? size : 1;
  }
  if (infixes_.size() == mark || is_url(first, last)) return add(first, last, words);
  size_t start = first;
  for (size_t infix = mark; infix < infixes_.size(); ++infix) {
    const auto [begin, end] = infixes_[infix];
    if (begin > start) add(start, begin, words);
    add(begin, end, words);
    start = end;
  }
  if (start < last) add(start, last, words);
}

const uint8_t* WordSplitter::known_word(size_t first, size_t last) const {
  if (last - first > kMostKnownBytes) return nullptr;
  return known_.find({text_ + places_[first], places_[last] - places_[first]});
}

void WordSplitter::add(size_t first, size_t last, std::vector<Word>& words) const {
  uint16_t any = 0, all = kTextMark | kTextPunctuation;
  for (size_t at = first; at < last; ++at) any |= flags_[at], all &= flags_[at];
  uint32_t facts = (any & kTextLetter ? kWordAlpha : 0) | (all & kTextMark ? 0 : kWordReal) |
                   (all & kTextPunctuation ? kWordMarks : 0);
  if (last - first == 1 && (flags_[first] & kTextEnd)) facts |= kWordEnd;
  const uint64_t hash =
      hash_word_before(text_ + places_[first], places_[last] - places_[first], text_end_);
  words.push_back({hash, static_cast<uint32_t>(places_[first] + base_),
                   static_cast<uint32_t>(last - first) << kWordCharsShift | facts});
}

void WordSplitter::add_known(size_t first, const uint8_t* sizes, std::vector<Word>& words) const {
  for (; *sizes != 0; ++sizes) {
    add(first, first + *sizes, words);
    first += *sizes;
  }
}

size_t WordSplitter::prefix_size(size_t first, size_t last) const {
  const uint32_t code = codes_[first];
  if (flags_[first] & (kTextPunct | kTextQuote | kTextCurrency | kTextIcon)) return 1;
  if (code == 0xA7 || code == '%' || code == '=' || code == kEnDash || code == kEmDash) return 1;
  if (code == '+') return first + 1 < last && is_ascii_digit(codes_[first + 1]) ? 0 : 1;
  if (code == '.') {
    size_t end = first;
    while (end < last && codes_[end] == '.') ++end;
    return end - first >= 2 ? end - first : 0;
  }
  if ((code == 'C' || code == 'A') && first + 1 < last && codes_[first + 1] == '$') return 2;
  if (code == 'U' && first + 2 < last && codes_[first + 1] == 'S' && codes_[first + 2] == '$') {
    return 3;
  }
  return 0;
}

size_t WordSplitter::suffix_size(size_t first, size_t last) const {
  if (first >= last) return 0;
  const size_t size = last - first;
  const uint32_t code = codes_[last - 1];
  const uint16_t flags = flags_[last - 1];
  const uint32_t before = size >= 2 ? codes_[last - 2] : 0;
  const uint16_t before_flags = size >= 2 ? flags_[last - 2] : 0;
  if (code == '.') {
    size_t begin = last;
    while (begin > first && codes_[begin - 1] == '.') --begin;
    if (last - begin >= 2) return last - begin;
    const uint32_t degree = before & ~0x20u;
    if (size >= 3 && codes_[last - 3] == 0xB0 &&
        (degree == 'F' || degree == 'C' || degree == 'K')) {
      return 1;
    }
    if (before == 0) return 0;
    if (is_ascii_digit(before) || (before_flags & (kTextLower | kTextPunct | kTextQuote)) ||
        before == '%' || before == 0xB2 || before == '-' || before == '+' || before == '|') {
      return 1;
    }
    return size >= 3 && (before_flags & kTextUpper) && (flags_[last - 3] & kTextUpper) ? 1 : 0;
  }
  if (code == kEllipsis) return before == kEllipsis ? 2 : 1;
  if (flags & (kTextPunct | kTextQuote | kTextIcon)) return 1;
  if (code == kEnDash || code == kEmDash) return 1;
  if ((code == 's' || code == 'S') && (before == '\'' || before == 0x2019)) return 2;
  if (code == '+') return is_ascii_digit(before) ? 1 : 0;
  const auto follows_digit = [&](size_t length) {
    return size > length && is_ascii_digit(codes_[last - length - 1]);
  };
  if (flags & kTextCurrency) {
    if (code == '$' && follows_digit(3) && before == 'S' && codes_[last - 3] == 'U') return 3;
    if (code == '$' && follows_digit(2) && (before == 'C' || before == 'A')) return 2;
    return follows_digit(1) ? 1 : 0;
  }
  return unit_size(size, [&](size_t place) { return codes_[last - place]; });
}

size_t WordSplitter::ascii_unit_size(const char* first, const char* last) {
  return unit_size(static_cast<size_t>(last - first), [&](size_t place) -> uint32_t {
    return static_cast<unsigned char>(*(last - place));
  });
}

size_t WordSplitter::infix_size(size_t at, size_t first, size_t last) const {
  const uint32_t code = codes_[at];
  if (code == kEllipsis || (flags_[at] & kTextIcon)) return 1;
  const auto flags_at = [&](size_t place) -> uint16_t {
    return place >= first && place < last ? flags_[place] : uint16_t{0};
  };
  const auto code_at = [&](size_t place) {
    return place >= first && place < last ? codes_[place] : 0;
  };
  const uint16_t before = at > first ? flags_[at - 1] : uint16_t{0};
  const uint32_t before_code = at > first ? codes_[at - 1] : 0;
  const bool after_digit = is_ascii_digit(before_code);
  const bool after_word = after_digit || (before & kTextAlpha);
  switch (code) {
    case '.': {
      size_t end = at;
      while (end < last && codes_[end] == '.') ++end;
      if (end - at >= 2) return end - at;
      return (before & (kTextLower | kTextQuote)) && (flags_at(at + 1) & (kTextUpper | kTextQuote));
    }
    case ',':
      return (before & kTextAlpha) && (flags_at(at + 1) & kTextAlpha);
    case '+':
    case '*':
    case '^':
      return after_digit && (is_ascii_digit(code_at(at + 1)) || code_at(at + 1) == '-');
    case ':':
    case '<':
    case '>':
    case '=':
    case '/':
      return after_word && (flags_at(at + 1) & kTextAlpha);
    case '~':
    case kEnDash:
      return after_word && (flags_at(at + 1) & kTextAlpha);
    case kEmDash:
      if (!after_word) return 0;
      if (flags_at(at + 1) & kTextAlpha) return 1;
      return code_at(at + 1) == kEmDash && (flags_at(at + 2) & kTextAlpha) ? 2 : 0;
    case '-':
      if (after_digit && (is_ascii_digit(code_at(at + 1)) || code_at(at + 1) == '-')) return 1;
      if (!after_word) return 0;
      for (size_t length = 1; length <= 3; ++length) {
        if (flags_at(at + length) & kTextAlpha) return length;
        if (code_at(at + length) != '-') return 0;
      }
      return 0;
    default:
      return 0;
  }
}

// A host name with the rest of an address around it stays one word.
bool WordSplitter::is_url(size_t first, size_t last) const {
  for (size_t at = first + 2; at + 2 < last; ++at) {
    if (codes_[at] != ':' || codes_[at + 1] != '/' || codes_[at + 2] != '/') continue;
    bool scheme = true;
    for (size_t place = first; place < at; ++place) {
      const uint32_t code = codes_[place];
      scheme &= (flags_[place] & kTextWordChar) || code == '+' || code == '-' || code == '.';
    }
    if (scheme) first = at + 3;
    break;
  }
  for (size_t at = last; at-- > first + 1;) {
    if (codes_[at] == '@' && at + 1 < last) {
      first = at + 1;
      break;
    }
  }
  const auto in_label = [&](size_t at) {
    const uint32_t code = codes_[at];
    return is_ascii_digit(code) || (code | 0x20) - 'a' < 26 || (code >= 0xA1 && code <= 0xFFFF);
  };
  size_t at = first, label = first, dots = 0;
  for (; at < last; ++at) {
    if (codes_[at] == '.') {
      if (at == label || !in_label(label) || !in_label(at - 1)) return false;
      label = at + 1;
      ++dots;
    } else if (!in_label(at) && codes_[at] != '-' && codes_[at] != '_') {
      break;
    }
  }
  if (dots == 0 || at < label + 2) return false;
  size_t numbers = 0;
  for (size_t place = label; place < at; ++place) {
    if (is_ascii_digit(codes_[place])) {
      ++numbers;
    } else if (!(flags_[place] & kTextLower)) {
      return false;
    }
  }
  if (numbers > 0 && !(dots == 3 && numbers == at - label)) return false;
  if (at < last && codes_[at] == ':') {
    size_t digits = at + 1;
    while (digits < last && is_ascii_digit(codes_[digits])) ++digits;
    if (digits - at < 3 || digits - at > 6) return false;
    at = digits;
  }
  return at == last || codes_[at] == '/' || codes_[at] == '?' || codes_[at] == '#';
}

}  // namespace lowtide
