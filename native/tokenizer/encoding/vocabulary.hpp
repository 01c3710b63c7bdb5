// A vocabulary: the bytes of every token, and which pairs of tokens merge into which, in which order.
//
// Built once, then read by any number of threads.
// Memory:  the tokens' bytes, and what MergeTable and SolidCharacters need
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/encoding/added_tokens.hpp"
#include "tokenizer/encoding/merge_table.hpp"
#include "tokenizer/encoding/piece_cuts.hpp"
#include "tokenizer/encoding/solid_characters.hpp"
#include "tokenizer/splitting/specials.hpp"
#include "tokenizer/splitting/splitter.hpp"

namespace lowtide {

constexpr uint32_t kNoToken = 0xFFFFFFFF;

// For a SentencePiece vocabulary, where merges start from characters: characters are assembled from
// bytes by merges before all others, and ids from `first` on are parts of characters without a
// token, which become bytes again. `before` decides when a blank is put before a text, or a part of
// it between added tokens.
enum class BlankBefore : uint8_t { kNever, kEach, kEachWithout, kFirstWithout };
struct Halves {
  uint32_t first = kNoToken;
  BlankBefore before = BlankBefore::kNever;
};

class Vocabulary {
 public:
  struct Special {
    std::string bytes;
    uint32_t id;
  };
  // `tokens`: bytes by id, empty where an id is not used. Every single byte must be a token.
  // `merges`: none: the vocabulary is ordered by rank (rules_by_rank).
  // `whole_pieces`: a piece that is a token is that token, whatever the merges say.
  // `added`: all special and added tokens, if any has rules of its own; `compose`: for text that
  // has to be in NFC.
  Vocabulary(Pattern pattern, std::vector<std::string> tokens,
             const std::optional<std::vector<MergeRule>>& merges, std::vector<Special> specials,
             bool whole_pieces, const std::vector<AddedToken>& added = {}, Compose compose = {},
             Halves halves = {});

  // Merge rules of a vocabulary that is ordered by rank, like .tiktoken files: every pair of tokens
  // that together spell a token merges into it, in the order of the ids.
  static std::vector<MergeRule> rules_by_rank(const std::vector<std::string_view>& tokens);

  const MergeTable& merges() const { return merges_; }
  const SolidCharacters& characters() const { return characters_; }
  const PieceCuts& cuts() const { return cuts_; }
  // The token of a whole piece if merging would give other ids; else kNoToken.
  uint32_t whole_piece(std::string_view piece) const {
    if (!whole_marks_[mark_of(piece)]) return kNoToken;
    const auto found = whole_pieces_.find(piece);
    return found == whole_pieces_.end() ? kNoToken : found->second;
  }

  const Halves& halves() const { return halves_; }
  // Replaces partial characters among `count` ids by the tokens of their bytes, in place: there
  // must be room for one id per byte. Returns the new number of ids.
  uint32_t expand_halves(uint32_t* ids, uint32_t count) const;
  uint32_t count_expanded(const uint32_t* ids, uint32_t count) const;  // without doing it

  Pattern pattern() const { return pattern_; }
  size_t size() const { return tokens_.size(); }
  size_t longest() const { return longest_; }  // bytes of a token
  const std::string& token(uint32_t id) const { return tokens_[id]; }
  const SpecialFinder& special_finder() const { return finder_; }
  const AddedTokens& added() const { return added_; }
  // The tokens that cuts of a text must not cross.
  const SpecialFinder& cut_finder(bool specials) const {
    static const SpecialFinder none;
    if (!added_.empty()) return added_.all();
    return specials ? finder_ : none;
  }
  uint32_t special_id(size_t index) const { return specials_[index].id; }

 private:
  // Whole pieces are few, so one bit excludes nearly all others.
  static constexpr unsigned kMarkBits = 14;
  static size_t mark_of(std::string_view piece) {
    const auto byte = [&](size_t i) { return uint32_t{static_cast<uint8_t>(piece[i])}; };
    const size_t last = piece.size() - 1;
    const uint32_t ends = byte(0) | byte(last / 2) << 8 | byte(last) << 16;
    return (ends ^ static_cast<uint32_t>(last) << 24) * 0x9E3779B1u >> (32 - kMarkBits);
  }
  void add_whole_piece(uint32_t id) {
    whole_pieces_.emplace(tokens_[id], id);
    whole_marks_.set(mark_of(tokens_[id]));
  }

  void check_rules(const std::vector<MergeRule>& rules) const;
  // Tokens with `is_reached` are known not to be whole pieces.
  void find_whole_pieces(const std::vector<std::string_view>& ordinary,
                         const std::vector<bool>& is_reached);

  Pattern pattern_;
  std::vector<std::string> tokens_;
  size_t longest_ = 1;
  std::vector<Special> specials_;
  SpecialFinder finder_;
  AddedTokens added_;
  Halves halves_;
  MergeTable merges_;
  PieceCuts::WholePieces whole_pieces_;  // refer to tokens_
  std::bitset<1 << kMarkBits> whole_marks_;
  SolidCharacters characters_;  // refers to tokens_ and merges_
  PieceCuts cuts_;              // refers to tokens_ and whole_pieces_
};

}  // namespace lowtide
