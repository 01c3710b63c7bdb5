#include "tokenizer/encoding/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>

#include "tokenizer/encoding/piece_merge.hpp"

namespace lowtide {

namespace {

std::vector<std::string> bytes_of(const std::vector<Vocabulary::Special>& specials) {
  std::vector<std::string> bytes;
  for (const Vocabulary::Special& special : specials) bytes.push_back(special.bytes);
  return bytes;
}

// Special and added tokens are not part of ordinary text, so no pair of tokens merges into one. In
// SentencePiece's vocabularies (`are_both`) they may be: merges are given there.
template <typename Token>
void leave_out(const std::vector<Token>& specials, std::vector<std::string_view>& ordinary,
               bool are_both) {
  for (const Token& special : specials) {
    if (special.id >= ordinary.size()) throw std::invalid_argument("special token beyond the ids");
    if (!are_both) ordinary[special.id] = {};
  }
}

// Bytes that never occur in UTF-8. Vocabularies learned from UTF-8 text may lack them.
bool is_never_in_utf8(unsigned byte) { return byte == 0xC0 || byte == 0xC1 || byte >= 0xF5; }

// The id of each single byte; the first of equal tokens is used. A byte that never occurs in UTF-8
// and has no token is mapped to the first byte of U+FFFD, which alone is decoded as U+FFFD, like
// the byte itself.
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

// Merges the bytes of tokens, one token at a time.
class TokenMerger {
 public:
  explicit TokenMerger(const MergeTable& table) : table_(table) {}
  // The number of tokens that the bytes of `token` merge into; see ids().
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

// Of all pairs that spell a token only one ever merges into it: when the token's bytes are merged
// to two tokens, their context had no influence, so they are the result of merging the bytes alone.
// This pair is found by merging the bytes with the rules of lower rank. A token whose bytes do not
// merge to two tokens is `unreached`; it gets all its pairs. Returns false if two tokens are equal.
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

using Rules = std::span<const MergeRule>;

// The rules from `begin` on that make the same token.
Rules run_at(Rules rules, size_t begin) {
  size_t end = begin;
  while (end < rules.size() && rules[end].token == rules[begin].token) ++end;
  return rules.subspan(begin, end - begin);
}

// The last two tokens that a token's bytes merge into, if they do.
std::optional<std::pair<uint32_t, uint32_t>> last_pair(const MergeTable& table,
                                                       std::string_view token) {
  std::vector<uint32_t> ids;
  for (const char byte : token) ids.push_back(table.byte_id(static_cast<uint8_t>(byte)));
  while (ids.size() > 2) {
    size_t at = 0;
    uint32_t best = MergeTable::kNoRank;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const uint32_t rank = table.rank(ids[i], ids[i + 1]);
      if (rank < best) best = rank, at = i;
    }
    if (best == MergeTable::kNoRank) return std::nullopt;
    ids[at] = table.token(best);
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  if (table.rank(ids[0], ids[1]) == MergeTable::kNoRank) return std::nullopt;
  return std::pair{ids[0], ids[1]};
}

// The same for explicit rules, if all rules that make a token are consecutive, in the order of the
// ids: files made from .tiktoken (Llama 3) list every pair that spells a token. Returns the only
// rule of each token that is ever applied, with its id as the rank, so that no table from ranks to
// tokens is needed. Returns nothing for other rules.
std::optional<std::vector<MergeRule>> one_rule_a_token(
    const std::array<uint32_t, 256>& byte_ids, const std::vector<std::string_view>& ordinary,
    Rules rules) {
  MergeTable table(byte_ids, ordinary.size());
  TokenMerger merger(table);
  std::vector<MergeRule> kept;
  std::vector<uint32_t> unreached;
  for (size_t begin = 0; begin < rules.size();) {
    const Rules run = run_at(rules, begin);
    const uint32_t token = run[0].token;
    if (begin > 0 && token <= rules[begin - 1].token) return std::nullopt;
    begin += run.size();
    const size_t count = merger.merge(ordinary[token]);
    if (count > 2) {
      unreached.push_back(token);
      for (const MergeRule& rule : run) table.add(rule);
      continue;
    }
    const auto last = std::find_if(run.begin(), run.end(), [&](const MergeRule& rule) {
      return rule.left == merger.ids()[0] && rule.right == merger.ids()[1];
    });
    if (count != 2 || last == run.end()) return std::nullopt;
    table.add(*last);
    kept.push_back({last->left, last->right, token, token});
  }
  for (const uint32_t token : unreached) {
    if (const auto pair = last_pair(table, ordinary[token])) {
      kept.push_back({pair->first, pair->second, token, token});
    }
  }
  return kept;
}

// True if, for all rules in the order of their ranks, the token is the concatenation of its two
// halves.
bool are_spelled(const std::vector<std::string_view>& ordinary, Rules rules) {
  uint32_t next = 0;
  return std::all_of(rules.begin(), rules.end(), [&](const MergeRule& rule) {
    const std::string_view token = ordinary[rule.token];
    const std::string_view left = ordinary[rule.left], right = ordinary[rule.right];
    return rule.rank == next++ && !left.empty() && !right.empty() &&
           token.size() == left.size() + right.size() && token.starts_with(left) &&
           token.ends_with(right);
  });
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
      characters_(tokens_, merges_),
      cuts_(tokens_, whole_pieces_) {
  if (tokens_.size() > kMaxTokens) throw std::invalid_argument("more than 2^24 tokens");
  for (const std::string& token : tokens_) longest_ = std::max(longest_, token.size());
  std::vector<std::string_view> ordinary(tokens_.begin(), tokens_.end());
  leave_out(specials_, ordinary, false);
  leave_out(added, ordinary, halves_.first != kNoToken);
  const std::array<uint32_t, 256> byte_ids = find_byte_ids(ordinary);
  merges_ = MergeTable(byte_ids, merges ? 0 : size());
  std::vector<uint32_t> unreached;
  if (!merges && add_rules_by_rank(merges_, ordinary, unreached)) {
    if (whole_pieces) {
      for (const uint32_t id : unreached) add_whole_piece(id);
    }
    return;
  }
  std::vector<MergeRule> rules = merges ? *merges : rules_by_rank(ordinary);
  check_rules(rules);
  std::vector<bool> is_reached(size());
  if (rules.size() > size() && are_spelled(ordinary, rules)) {
    if (auto kept = one_rule_a_token(byte_ids, ordinary, rules)) {
      rules = std::move(*kept);
      for (const MergeRule& rule : rules) is_reached[rule.token] = true;
    }
  }
  merges_ = MergeTable(byte_ids, rules.size());
  for (const MergeRule& rule : rules) merges_.add(rule);
  if (whole_pieces) find_whole_pieces(ordinary, is_reached);
}

void Vocabulary::check_rules(const std::vector<MergeRule>& rules) const {
  if (rules.size() >= MergeTable::kNoRank) throw std::invalid_argument("more than 2^26 merges");
  for (const MergeRule& rule : rules) {
    if (rule.left >= size() || rule.right >= size() || rule.token >= size()) {
      throw std::invalid_argument("merge of a token beyond the ids");
    }
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
  for (uint32_t from = count, to = total; from-- > 0;) {  // from the end: nothing is overwritten
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

void Vocabulary::find_whole_pieces(const std::vector<std::string_view>& ordinary,
                                   const std::vector<bool>& is_reached) {
  TokenMerger merger(merges_);
  for (uint32_t id = 0; id < ordinary.size(); ++id) {
    if (ordinary[id].empty() || is_reached[id]) continue;
    // A lower id is an equal token, and the first of these is used.
    if (merger.merge(ordinary[id]) != 1 || merger.ids()[0] > id) {
      add_whole_piece(id);
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
