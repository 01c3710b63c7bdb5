#include "quality/eval_grams.hpp"

#include <algorithm>
#include <bit>

#include "corpus/text_hash.hpp"

namespace lowtide {
namespace {

constexpr size_t kPartBytes = 1 << 15;  // so that few words are held at a time
constexpr uint64_t kBase = 0x9E3779B97F4A7C15ULL;
constexpr size_t kFilterBits = 32;  // per n-gram, two of which are set, in one word

constexpr std::array<uint64_t, kLongestEvalGram + 1> make_powers() {
  std::array<uint64_t, kLongestEvalGram + 1> powers{1};
  for (size_t at = 1; at < powers.size(); ++at) powers[at] = powers[at - 1] * kBase;
  return powers;
}
constexpr auto kPowers = make_powers();

// Finds the lines of increasing positions.
struct LineCounter {
  std::string_view text;
  uint32_t line = 0;
  size_t place = 0;

  uint32_t advance(size_t to) {
    line += static_cast<uint32_t>(std::count(text.begin() + static_cast<ptrdiff_t>(place),
                                             text.begin() + static_cast<ptrdiff_t>(to), '\n'));
    place = to;
    return line;
  }
};

}  // namespace

size_t EvalGrams::Words::append(std::string_view text, size_t base) {
  const size_t kept = std::min(words.size(), kLongestEvalGram - 1);
  words.erase(words.begin(), words.end() - static_cast<ptrdiff_t>(kept));
  splitter.split(text, base, SIZE_MAX, words);
  before.resize(words.size() + 1);
  before[0] = 0;
  size_t count = 0;
  uint64_t all = 0;
  for (size_t at = 0; at < words.size(); ++at) {  // no branch, because marks are frequent
    const Word word = words[at];
    const bool real = (word.facts & kWordReal) != 0;
    words[count] = word;
    all = real ? all * kBase + word.hash : all;
    count += real;
    before[count] = all;
  }
  words.resize(count);
  return kept;
}

uint64_t EvalGrams::Words::hash(size_t first, size_t count) const {
  return scatter64(before[first + count] - before[first] * kPowers[count] + count);
}

inline uint32_t EvalGrams::Words::hash_head(size_t first) const {
  constexpr uint64_t kPower = kPowers[kShortestEvalGram];
  const uint64_t hash = before[first + kShortestEvalGram] - before[first] * kPower;
  return static_cast<uint32_t>(fold_multiply(hash, kBase));
}

size_t EvalGrams::add(std::string_view text, uint32_t item) {
  Words words;
  words.append(text, 0);
  const size_t length = std::min(words.words.size(), kLongestEvalGram);
  if (length < kShortestEvalGram) return 0;
  lengths_[length] = true;
  const size_t count = words.words.size() - length + 1;
  for (size_t at = 0; at < count; ++at) {
    grams_.push_back({words.hash(at, length), item, words.hash_head(at)});
  }
  return count;
}

void EvalGrams::finish() {
  std::sort(grams_.begin(), grams_.end(), [](const Gram& a, const Gram& b) {
    return a.hash != b.hash ? a.hash < b.hash : a.item < b.item;
  });
  const auto end = std::unique(grams_.begin(), grams_.end(),
                               [](const Gram& a, const Gram& b) { return a.hash == b.hash; });
  grams_.erase(end, grams_.end());
  grams_.shrink_to_fit();
  const size_t filter = std::bit_ceil(std::max<size_t>(grams_.size() * kFilterBits / 64, 1));
  filter_.assign(filter, 0);
  for (const Gram& gram : grams_) filter_[filter_word(gram.head)] |= filter_bits(gram.head);
}

std::vector<uint32_t> EvalGrams::items() const {
  std::vector<uint32_t> items;
  items.reserve(grams_.size());
  for (const Gram& gram : grams_) items.push_back(gram.item);
  return items;
}

size_t EvalGrams::find(uint64_t hash) const {
  size_t first = 0;  // no branch, because the half is unpredictable
  for (size_t left = grams_.size(); left > 1;) {
    const size_t half = left / 2;
    first += grams_[first + half - 1].hash < hash ? half : 0;
    left -= half;
  }
  return first < grams_.size() && grams_[first].hash == hash ? first : grams_.size();
}

void EvalGrams::find_heads(Words& words, size_t first) const {
  words.heads.clear();
  const size_t end = words.words.size() + 1 - std::min(words.words.size() + 1, kShortestEvalGram);
  for (size_t at = first; at < end; ++at) {
    const uint32_t head = words.hash_head(at);
    const uint64_t bits = filter_bits(head);
    if ((filter_[filter_word(head)] & bits) == bits) words.heads.push_back(at);
  }
}

bool EvalGrams::scan(std::string_view text, std::span<const DocumentRow> documents,
                     std::vector<EvalHit>& hits) const {
  Words words;
  if (filter_.empty()) return true;
  for (size_t row = 0; row < documents.size(); ++row) {
    const DocumentRow& source = documents[row];
    if (source.begin > source.end || source.end > text.size()) return false;
    const std::string_view document = text.substr(source.begin, source.end - source.begin);
    const uint64_t line_end =
        row + 1 < documents.size() ? documents[row + 1].line_base : uint64_t{kDocumentMark};
    const auto base = static_cast<uint32_t>(source.line_base);
    std::array<LineCounter, kLongestEvalGram + 1> firsts, lasts;
    firsts.fill({document, base});
    lasts.fill({document, base});
    words.words.clear();
    for (size_t begin = 0; begin < document.size();) {
      const size_t blank =
          document.find_first_of(" \n", std::min(begin + kPartBytes, document.size()));
      const size_t end = std::min(blank, document.size());
      const size_t kept = words.append(document.substr(begin, end - begin), begin);
      begin = end;
      find_heads(words, kept - std::min(kept, kLongestEvalGram - 1));
      for (size_t length = kShortestEvalGram; length <= kLongestEvalGram; ++length) {
        if (!lengths_[length]) continue;
        for (const size_t at : words.heads) {
          // N-grams that end in the words before were already found.
          if (at + length <= kept || at + length > words.words.size()) continue;
          const size_t gram = find(words.hash(at, length));
          if (gram == grams_.size()) continue;
          hits.push_back({static_cast<uint32_t>(row), static_cast<uint32_t>(gram),
                          firsts[length].advance(words.words[at].begin),
                          lasts[length].advance(words.words[at + length - 1].begin) + 1, base,
                          static_cast<uint32_t>(line_end),
                          uint32_t{source.flags == (kDocumentFirst | kDocumentLast)}});
        }
      }
    }
  }
  return true;
}

}  // namespace lowtide
