#include "tokenizer/encoding/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "tokenizer/encoding/piece_merge.hpp"

namespace lowtide {

namespace {

std::vector<std::string> bytes_of(const std::vector<Vocabulary::Special>& specials) {
  std::vector<std::string> bytes;
  for (const Vocabulary::Special& special : specials) bytes.push_back(special.bytes);
  return bytes;
}

// Special and added tokens are no part of ordinary text, so no pair of tokens merges into one.
template <typename Token>
void leave_out(const std::vector<Token>& specials, std::vector<std::string_view>& ordinary) {
  for (const Token& special : specials) {
    if (special.id >= ordinary.size()) throw std::invalid_argument("special token beyond the ids");
    ordinary[special.id] = {};
  }
}

// Bytes that no UTF-8 text has. Vocabularies that were learned from such text may lack them.
bool is_never_in_utf8(unsigned byte) { return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5; }

// The id of each single byte; of equal tokens the first counts. A byte that is in no UTF-8 text and
// has no token becomes the first byte of U+FFFD, which alone is decoded as that, as the byte is.
std::array<uint32_t, 256> find_byte_ids(const std::vector<std::string_view>& ordinary) {
  std::array<uint32_t, 256> byte_ids;
  byte_ids.fill(kNoToken);
  for (uint32_t id = 0; id < ordinary.size(); ++id) {
    if (ordinary[id].size() != 1) continue;
    uint32_t& byte_id = byte_ids[static_cast<uint8_t>(ordinary[id][0])];
    if (byte_id == kNoToken) byte_id = id;
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (byte_ids[byte] != kNoToken) continue;
    if (!is_never_in_utf8(byte) || byte_ids[MergeTable::kReplacement] == kNoToken) {
      throw std::invalid_argument("no token for byte " + std::to_string(byte));
    }
    byte_ids[byte] = byte_ids[MergeTable::kReplacement];
  }
  return byte_ids;
}

using IdsByBytes = std::unordered_map<std::string_view, uint32_t>;

IdsByBytes first_ids(const std::vector<std::string_view>& tokens) {
  IdsByBytes ids;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], id);
  }
  return ids;
}

// Calls add(left, right) for every two tokens that together spell `token`.
template <typename Add>
void visit_splits(std::string_view token, const IdsByBytes& ids, const Add& add) {
  for (size_t cut = 1; cut < token.size(); ++cut) {
    const auto left = ids.find(token.substr(0, cut));
    if (left == ids.end()) continue;
    const auto right = ids.find(token.substr(cut));
    if (right != ids.end()) add(left->second, right->second);
  }
}

// Merges the bytes of one token after the other.
class TokenMerger {
 public:
  explicit TokenMerger(const MergeTable& table) : table_(table) {}
  // How many tokens the bytes of `token` become; see ids().
  size_t merge(std::string_view token) {
    if (ids_.size() < token.size()) ids_.resize(token.size());
    uint32_t num_ids;
    merger_.merge(table_, {reinterpret_cast<const uint8_t*>(token.data()), token.size(),
                           ids_.data(), &num_ids});
    return num_ids;
  }
  const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  const MergeTable& table_;
  const PieceMerger merger_;
  std::vector<uint32_t> ids_;
};

// Of all pairs that spell a token only one ever merges into it: whenever the token's bytes are down to
// two tokens, nothing around them had a part in it, so they are what the bytes alone come down to.
// This one is found by merging the bytes with the rules of lower rank. A token they do not bring down
// to two is `unreached`; it has all its pairs. Returns false if two tokens are equal.
bool add_rules_by_rank(MergeTable& table, const std::vector<std::string_view>& ordinary,
                       std::vector<uint32_t>& unreached) {
  TokenMerger merger(table);
  IdsByBytes ids;
  for (uint32_t id = 0; id < ordinary.size(); ++id) {
    const std::string_view token = ordinary[id];
    if (token.size() < 2) continue;
    const size_t count = merger.merge(token);
    if (count == 1) return false;
    if (count == 2) {
      table.add({merger.ids()[0], merger.ids()[1], id, id});
      continue;
    }
    unreached.push_back(id);
    if (ids.empty()) ids = first_ids(ordinary);
    visit_splits(token, ids,
                 [&](uint32_t left, uint32_t right) { table.add({left, right, id, id}); });
  }
  return true;
}

}  // namespace

Vocabulary::Vocabulary(Pattern pattern, std::vector<std::string> tokens,
                       const std::optional<std::vector<MergeRule>>& merges,
                       std::vector<Special> specials, bool whole_pieces,
                       const std::vector<AddedToken>& added, Compose compose, Halves halves)
    : pattern_(pattern),
      tokens_(std::move(tokens)),
      specials_(std::move(specials)),
      finder_(bytes_of(specials_)),
      added_(added, std::move(compose)),
      halves_(halves),
      characters_(tokens_, merges_) {
  if (tokens_.size() > kMaxTokens) throw std::invalid_argument("more than 2^24 tokens");
  for (const std::string& token : tokens_) longest_ = std::max(longest_, token.size());
  std::vector<std::string_view> ordinary(tokens_.begin(), tokens_.end());
  leave_out(specials_, ordinary);
  leave_out(added, ordinary);
  const std::array<uint32_t, 256> byte_ids = find_byte_ids(ordinary);
  merges_ = MergeTable(byte_ids, merges ? merges->size() : tokens_.size());
  std::vector<uint32_t> unreached;
  if (!merges && add_rules_by_rank(merges_, ordinary, unreached)) {
    if (whole_pieces) {
      for (const uint32_t id : unreached) whole_pieces_.emplace(tokens_[id], id);
    }
    return;
  }
  if (!merges) merges_ = MergeTable(byte_ids, tokens_.size());
  add_rules(merges ? *merges : rules_by_rank(ordinary));
  if (whole_pieces) find_whole_pieces(ordinary);
}

void Vocabulary::add_rules(const std::vector<MergeRule>& rules) {
  if (rules.size() >= MergeTable::kNoRank) throw std::invalid_argument("more than 2^26 merges");
  for (const MergeRule& rule : rules) {
    if (rule.left >= size() || rule.right >= size() || rule.token >= size()) {
      throw std::invalid_argument("merge of a token beyond the ids");
    }
    merges_.add(rule);
  }
}

uint32_t Vocabulary::count_expanded(const uint32_t* ids, uint32_t count) const {
  uint32_t total = count;
  for (uint32_t i = 0; i < count; ++i) {
    if (ids[i] >= halves_.first) total += static_cast<uint32_t>(tokens_[ids[i]].size()) - 1;
  }
  return total;
}

uint32_t Vocabulary::expand_halves(uint32_t* ids, uint32_t count) const {
  const uint32_t total = count_expanded(ids, count);
  if (total == count) return count;
  for (uint32_t from = count, to = total; from-- > 0;) {  // from behind: nothing is written over
    const uint32_t id = ids[from];
    if (id < halves_.first) {
      ids[--to] = id;
      continue;
    }
    const std::string& bytes = tokens_[id];
    for (size_t j = bytes.size(); j-- > 0;) {
      ids[--to] = merges_.byte_id(static_cast<uint8_t>(bytes[j]));
    }
  }
  return total;
}

void Vocabulary::find_whole_pieces(const std::vector<std::string_view>& ordinary) {
  TokenMerger merger(merges_);
  for (uint32_t id = 0; id < ordinary.size(); ++id) {
    if (ordinary[id].empty()) continue;
    // One lower id: an equal token, and of these the first counts.
    if (merger.merge(ordinary[id]) != 1 || merger.ids()[0] > id) {
      whole_pieces_.emplace(tokens_[id], id);
    }
  }
}

std::vector<MergeRule> Vocabulary::rules_by_rank(const std::vector<std::string_view>& tokens) {
  const IdsByBytes ids = first_ids(tokens);
  std::vector<MergeRule> rules;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    visit_splits(tokens[id], ids,
                 [&](uint32_t left, uint32_t right) { rules.push_back({left, right, id, id}); });
  }
  return rules;
}

}  // namespace lowtide
