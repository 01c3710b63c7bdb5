#include "quality/masks.hpp"

#include <algorithm>
#include <cstring>

namespace lowtide {
namespace {

constexpr std::string_view kTexts[kNumMasks] = {"[email]", "[ip]", "[phone]", "[iban]", "[card]"};
constexpr size_t kMostCard = 19, kMostPhone = 15, kMostIban = 34;

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }
bool is_upper(char byte) { return byte >= 'A' && byte <= 'Z'; }
bool is_letter(char byte) { return is_upper(static_cast<char>(byte & ~0x20)); }
bool is_word(char byte) { return is_digit(byte) || is_letter(byte) || (byte & 0x80) != 0; }

int hex_value(char byte) {
  if (is_digit(byte)) return byte - '0';
  const char small = static_cast<char>(byte | 0x20);
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

// Digits at the beginning of `text`, with one of `separators` allowed between them. `size` is their
// length; `same`: separators have to be equal, one at a time.
struct Digits {
  char digits[kMostCard + 1];
  size_t count = 0, size = 0, separators = 0;
};

Digits read_digits(std::string_view text, std::string_view separators, size_t most, bool same) {
  Digits found;
  char separator = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char byte = text[at];
    if (is_digit(byte)) {
      if (found.count == most) return found.count = most + 1, found;  // a longer number
      found.digits[found.count++] = byte;
      found.size = at + 1;
    } else if (separators.find(byte) != std::string_view::npos && at > 0) {
      const bool twice = !is_digit(text[at - 1]);
      if (same && (twice || (separator != 0 && byte != separator))) break;
      if (at >= found.size + 2) break;
      separator = byte;
      ++found.separators;
    } else {
      break;
    }
  }
  return found;
}

bool passes_luhn(const Digits& number) {
  int sum = 0;
  for (size_t at = 0; at < number.count; ++at) {
    int digit = number.digits[number.count - 1 - at] - '0';
    if (at % 2 == 1 && (digit *= 2) > 9) digit -= 9;
    sum += digit;
  }
  return sum % 10 == 0;
}

// True if an issuer has numbers with this prefix and length.
bool is_issued(const Digits& number) {
  int first = 0;
  for (size_t at = 0; at < 4; ++at) first = first * 10 + (number.digits[at] - '0');
  const size_t size = number.count;
  const int two = first / 100, three = first / 10;
  if (two / 10 == 4) return size == 13 || size == 16 || size == 19;  // Visa
  if ((two >= 51 && two <= 55) || (first >= 2221 && first <= 2720))
    return size == 16;                            // Mastercard
  if (two == 34 || two == 37) return size == 15;  // Amex
  if (first == 6011 || (three >= 644 && three <= 649) || two == 65) return size >= 16;  // Discover
  if ((three >= 300 && three <= 305) || two == 36 || two == 38 || two == 39) return size >= 14;
  if (first >= 3528 && first <= 3589) return size >= 16;  // JCB
  return two == 62 && size >= 16;                         // UnionPay
}

// In groups, or as one run of digits, after which another number may follow.
size_t card_size(std::string_view text) {
  for (const std::string_view separators : {" -", ""}) {
    const Digits number = read_digits(text, separators, kMostCard, true);
    if (number.count < 13 || number.count > kMostCard) continue;
    if (number.size < text.size() && is_word(text[number.size])) continue;
    if (is_issued(number) && passes_luhn(number)) return number.size;
  }
  return 0;
}

struct IbanCountry {
  char code[3];
  uint8_t size;
};
constexpr IbanCountry kIbanCountries[] = {
    {"AD", 24}, {"AE", 23}, {"AL", 28}, {"AT", 20}, {"AZ", 28}, {"BA", 20}, {"BE", 16}, {"BG", 22},
    {"BH", 22}, {"BI", 27}, {"BR", 29}, {"BY", 28}, {"CH", 21}, {"CR", 22}, {"CY", 28}, {"CZ", 24},
    {"DE", 22}, {"DJ", 27}, {"DK", 18}, {"DO", 28}, {"EE", 20}, {"EG", 29}, {"ES", 24}, {"FI", 18},
    {"FK", 18}, {"FO", 18}, {"FR", 27}, {"GB", 22}, {"GE", 22}, {"GI", 23}, {"GL", 18}, {"GR", 27},
    {"GT", 28}, {"HR", 21}, {"HU", 28}, {"IE", 22}, {"IL", 23}, {"IQ", 23}, {"IS", 26}, {"IT", 27},
    {"JO", 30}, {"KW", 30}, {"KZ", 20}, {"LB", 28}, {"LC", 32}, {"LI", 21}, {"LT", 20}, {"LU", 20},
    {"LV", 21}, {"LY", 25}, {"MC", 27}, {"MD", 24}, {"ME", 22}, {"MK", 19}, {"MN", 20}, {"MR", 27},
    {"MT", 31}, {"MU", 30}, {"NI", 28}, {"NL", 18}, {"NO", 15}, {"OM", 23}, {"PK", 24}, {"PL", 28},
    {"PS", 29}, {"PT", 25}, {"QA", 29}, {"RO", 24}, {"RS", 22}, {"RU", 33}, {"SA", 24}, {"SC", 31},
    {"SD", 18}, {"SE", 24}, {"SI", 19}, {"SK", 24}, {"SM", 27}, {"SO", 23}, {"ST", 25}, {"SV", 28},
    {"TL", 23}, {"TN", 24}, {"TR", 26}, {"UA", 29}, {"VA", 22}, {"VG", 24}, {"XK", 20}, {"YE", 30}};

// As one word, or in groups of four separated by single blanks.
size_t iban_size(std::string_view text) {
  if (text.size() < 15 || !is_upper(text[1]) || !is_digit(text[2]) || !is_digit(text[3])) return 0;
  size_t wanted = 0;
  for (const IbanCountry& country : kIbanCountries) {
    if (country.code[0] == text[0] && country.code[1] == text[1]) wanted = country.size;
  }
  char signs[kMostIban];
  size_t count = 0, at = 0;
  const bool grouped = text[4] == ' ';
  for (; count < wanted && at < text.size(); ++at) {
    if (grouped && count > 0 && count % 4 == 0 && text[at] == ' ' && text[at - 1] != ' ') continue;
    if (!is_upper(text[at]) && !is_digit(text[at])) return 0;
    signs[count++] = text[at];
  }
  if (wanted == 0 || count < wanted || (at < text.size() && is_word(text[at]))) return 0;
  uint32_t rest = 0;
  for (size_t place = 0; place < count; ++place) {
    const char sign = signs[(place + 4) % count];
    rest = is_digit(sign) ? (rest * 10 + static_cast<uint32_t>(sign - '0')) % 97
                          : (rest * 100 + static_cast<uint32_t>(sign - 'A' + 10)) % 97;
  }
  return rest == 1 ? at : 0;
}

// Addresses that are routed on the internet, because others do not identify a machine.
bool is_global(const uint32_t (&parts)[4]) {
  const uint32_t first = parts[0], second = parts[1];
  if (first == 0 || first == 10 || first == 127 || first >= 224) return false;
  if (first == 100 && second >= 64 && second < 128) return false;
  if (first == 169 && second == 254) return false;
  if (first == 172 && second >= 16 && second < 32) return false;
  if (first == 192 && (second == 168 || (second == 0 && (parts[2] == 0 || parts[2] == 2))))
    return false;
  if (first == 198 && (second == 18 || second == 19 || (second == 51 && parts[2] == 100)))
    return false;
  return !(first == 203 && second == 0 && parts[2] == 113);
}

size_t ipv4_size(std::string_view text) {
  uint32_t parts[4] = {};
  size_t at = 0;
  for (size_t part = 0; part < 4; ++part) {
    if (part > 0 && (at >= text.size() || text[at++] != '.')) return 0;
    const size_t begin = at;
    while (at < text.size() && at < begin + 4 && is_digit(text[at])) {
      parts[part] = parts[part] * 10 + static_cast<uint32_t>(text[at++] - '0');
    }
    if (at == begin || parts[part] > 255 || (text[begin] == '0' && at > begin + 1)) return 0;
  }
  if (at < text.size() && is_word(text[at])) return 0;
  if (at + 1 < text.size() && (text[at] == '.' || text[at] == '-') && is_digit(text[at + 1]))
    return 0;
  return is_global(parts) ? at : 0;
}

// Global unicast, 2000::/3, which excludes times, hardware addresses and C++ names.
size_t ipv6_size(std::string_view text) {
  if (text.size() < 6 || (text[0] != '2' && text[0] != '3') || text[4] != ':') return 0;
  size_t groups = 0, at = 0;
  bool gap = false;
  while (at < text.size() && groups < 8) {
    const size_t begin = at;
    while (at < text.size() && at < begin + 4 && hex_value(text[at]) >= 0) ++at;
    if (at == begin || (groups == 0 && at != 4)) break;
    ++groups;
    if (groups == 8 || at >= text.size() || text[at] != ':') break;
    if (at + 1 < text.size() && text[at + 1] == ':') {
      if (gap) return 0;
      gap = true;
      at += 2;
    } else if (at + 1 < text.size() && hex_value(text[at + 1]) >= 0) {
      ++at;
    } else {
      break;
    }
  }
  if (at < text.size() && (is_word(text[at]) || text[at] == ':')) return 0;
  return groups == 8 ? (gap ? 0 : at) : gap ? at : 0;
}

// +, a country code and 8 to 15 digits; or three, three and four digits with marks between them.
size_t phone_size(std::string_view text) {
  if (text[0] == '+') {
    if (text.size() < 9 || text[1] < '1' || text[1] > '9') return 0;
    const Digits number = read_digits(text.substr(1), " .-()/", kMostPhone, false);
    const size_t size = number.size + 1;
    if (number.count < 8 || number.count > kMostPhone) return 0;
    return size < text.size() && is_word(text[size]) ? 0 : size;
  }
  size_t at = 0;
  const bool bracket = text[0] == '(';
  at += bracket;
  const auto digits = [&](size_t count) {
    for (size_t end = at + count; at < end; ++at) {
      if (at >= text.size() || !is_digit(text[at])) return false;
    }
    return true;
  };
  if (text.size() < 12 || text[at] < '2' || !digits(3)) return 0;
  if (bracket) {
    if (text[at++] != ')') return 0;
    if (at < text.size() && text[at] == ' ') ++at;
  }
  const char mark = bracket ? 0 : text[at++];
  if (!bracket && mark != '-' && mark != '.') return 0;
  if (at >= text.size() || text[at] < '2' || !digits(3) || at >= text.size()) return 0;
  const char second = text[at++];
  if (bracket ? second != '-' && second != '.' && second != ' ' : second != mark) return 0;
  if (!digits(4)) return 0;
  if (at < text.size() && (is_word(text[at]) || text[at] == '-')) return 0;
  return at;
}

bool is_atom(char byte) {
  return is_digit(byte) || is_letter(byte) ||
         (byte != 0 && std::strchr(".!#$%&'*+/=?^_`{|}~-", byte) != nullptr);
}

// The end of the domain after an @: labels separated by dots, the last one of letters.
size_t domain_size(std::string_view text) {
  size_t at = 0, label = 0, end = 0, labels = 0;
  for (;; ++at) {
    if (at < text.size() && (is_digit(text[at]) || is_letter(text[at]) || text[at] == '-'))
      continue;
    size_t stop = at;
    while (stop > label && text[stop - 1] == '-') --stop;
    if (stop == label || text[label] == '-') break;
    ++labels;
    const bool letters = std::all_of(text.begin() + label, text.begin() + stop, is_letter);
    if (labels > 1 && letters && stop - label >= 2) end = stop;
    if (at >= text.size() || text[at] != '.' || stop != at) break;
    label = at + 1;
  }
  if (end < text.size() && (text[end] & 0x80)) return 0;
  return end;
}

// The email address around the @ at line[at]: begin and size; it begins at or after `from`.
std::pair<size_t, size_t> find_email(std::string_view line, size_t at, size_t from) {
  size_t begin = at;
  while (begin > from && is_atom(line[begin - 1])) --begin;
  while (begin < at && !is_digit(line[begin]) && !is_letter(line[begin]) && line[begin] != '_')
    ++begin;
  const std::string_view local = line.substr(begin, at - begin);
  if (local.empty() || local.size() > 64 || local.back() == '.') return {0, 0};
  if (local.find("..") != std::string_view::npos) return {0, 0};
  const size_t domain = domain_size(line.substr(at + 1));
  return {begin, domain == 0 ? 0 : at + 1 + domain - begin};
}

class LineMasker {
 public:
  LineMasker(std::string_view line, uint64_t kinds, std::string& out, MaskCounts& counts)
      : line_(line), kinds_(kinds), out_(out), counts_(counts) {}

  bool run() {
    const uint64_t digits = count_digits();
    const bool emails = wants(kMaskEmail) && line_.find('@') != std::string_view::npos;
    // The shortest of the others has eight digits, except IPv4 with four and IBAN with two.
    const bool numbers = digits >= 2 && (kinds_ & ~(uint64_t{1} << kMaskEmail)) != 0;
    if (!emails && !numbers) return false;
    for (size_t at = 0; at < line_.size();) {
      const char byte = line_[at];
      if (byte == '@' && emails) {
        const auto [begin, size] = find_email(line_, at, copied_);
        if (size > 0) {
          replace(kMaskEmail, begin, size);
          at = copied_;
          continue;
        }
      } else if (numbers && (at == 0 || !is_word(line_[at - 1])) && (at >= copied_)) {
        if (replace_number(byte, at)) {
          at = copied_;
          continue;
        }
      }
      ++at;
    }
    if (copied_ > 0) out_.append(line_, copied_);
    return copied_ > 0;
  }

 private:
  bool wants(Mask kind) const { return (kinds_ >> kind & 1) != 0; }

  uint64_t count_digits() const {
    uint64_t digits = 0;
    for (const char byte : line_) digits += is_digit(byte);
    return digits;
  }

  bool replace_number(char byte, size_t at) {
    const std::string_view rest = line_.substr(at);
    if (is_upper(byte)) return wants(kMaskIban) && try_one(kMaskIban, at, iban_size(rest));
    const char before = at > 0 ? line_[at - 1] : ' ';
    if (byte == '+' || byte == '(')
      return wants(kMaskPhone) && try_one(kMaskPhone, at, phone_size(rest));
    if (!is_digit(byte) || before == '.' || before == '-' || before == '+') return false;
    return (wants(kMaskCard) && try_one(kMaskCard, at, card_size(rest))) ||
           (wants(kMaskIp) &&
            (try_one(kMaskIp, at, ipv6_size(rest)) || try_one(kMaskIp, at, ipv4_size(rest)))) ||
           (wants(kMaskPhone) && try_one(kMaskPhone, at, phone_size(rest)));
  }

  bool try_one(Mask kind, size_t at, size_t size) {
    if (size > 0) replace(kind, at, size);
    return size > 0;
  }

  void replace(Mask kind, size_t begin, size_t size) {
    if (copied_ == 0) out_.clear();
    out_.append(line_, copied_, begin - copied_);
    out_.append(kTexts[kind]);
    copied_ = begin + size;
    ++counts_.count[kind];
    counts_.bytes[kind] += size;
  }

  std::string_view line_;
  uint64_t kinds_;
  std::string& out_;
  MaskCounts& counts_;
  size_t copied_ = 0;  // end of the processed part of the line
};

}  // namespace

bool mask_line(std::string_view line, uint64_t kinds, std::string& out, MaskCounts& counts) {
  return LineMasker(line, kinds, out, counts).run();
}

}  // namespace lowtide
