#include "vocabulary.hpp"

#include <stdexcept>

namespace lowtide {

namespace {
std::vector<std::string> bytes_of(const std::vector<Vocabulary::Special>& specials) {
  std::vector<std::string> bytes;
  for (const Vocabulary::Special& special : specials) bytes.push_back(special.bytes);
  return bytes;
}
}  // namespace

Vocabulary::Vocabulary(Pattern pattern, std::vector<std::string> tokens,
                       std::vector<MergeRule> merges, std::vector<Special> specials,
                       bool whole_pieces)
    : pattern_(pattern),
      whole_pieces_(whole_pieces),
      tokens_(std::move(tokens)),
      specials_(std::move(specials)),
      finder_(bytes_of(specials_)) {
  if (tokens_.size() > kMaxTokens) throw std::invalid_argument("more than 2^24 tokens");
  byte_ids_.fill(kNoToken);
  std::vector<bool> is_special(tokens_.size());
  for (const Special& special : specials_) {
    if (special.id >= tokens_.size()) throw std::invalid_argument("special token beyond the ids");
    is_special[special.id] = true;
  }
  for (uint32_t id = 0; id < tokens_.size(); ++id) {
    if (is_special[id] || tokens_[id].empty()) continue;
    if (tokens_[id].size() == 1) {
      uint32_t& byte_id = byte_ids_[static_cast<uint8_t>(tokens_[id][0])];
      if (byte_id == kNoToken) byte_id = id;
    }
    if (whole_pieces_) by_bytes_.emplace(tokens_[id], id);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (byte_ids_[byte] == kNoToken) {
      throw std::invalid_argument("no token for byte " + std::to_string(byte));
    }
  }
  size_t capacity = 16;
  while (capacity < merges.size() * 2 + 2) capacity *= 2;  // so that no slot looks empty
  slots_.assign(capacity, kNoToken);
  mask_ = capacity - 1;
  tag_mask_ = ~static_cast<uint32_t>(capacity / 2 - 1);  // rules are at most half the slots
  for (const MergeRule& rule : merges) {
    if (rule.left >= size() || rule.right >= size() || rule.token >= size()) {
      throw std::invalid_argument("merge of a token beyond the ids");
    }
    const uint64_t hash = hash_pair(rule.left, rule.right);
    size_t i = hash & mask_;
    const auto same = [&](uint32_t slot) {
      const Sides& sides = sides_[slot & ~tag_mask_];
      return sides.left == rule.left && sides.right == rule.right;
    };
    while (slots_[i] != kNoToken && !same(slots_[i])) i = (i + 1) & mask_;
    const uint32_t index = static_cast<uint32_t>(sides_.size());  // of equal rules the last counts
    slots_[i] = (static_cast<uint32_t>(hash >> 32) & tag_mask_) | index;
    sides_.push_back({rule.left, rule.right});
    results_.push_back({rule.rank, rule.token});
  }
  byte_pairs_.resize(256 * 256);
  for (unsigned left = 0; left < 256; ++left) {
    for (unsigned right = 0; right < 256; ++right) {
      byte_pairs_[left << 8 | right] = merge(byte_ids_[left], byte_ids_[right]);
    }
  }
}

std::vector<Vocabulary::MergeRule> Vocabulary::rules_by_rank(
    const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, uint32_t> ids;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], id);
  }
  std::vector<MergeRule> rules;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right != ids.end()) rules.push_back({left->second, right->second, id, id});
    }
  }
  return rules;
}

}  // namespace lowtide
