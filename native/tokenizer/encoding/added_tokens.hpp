// Match added tokens by the rules of Hugging Face's tokenizers, with NFC between them.
//
// In:   text
// Out:  the normalized text between added tokens, to be split and merged, and the ids of these tokens
//
// Tokens that are not `normalized` are matched in the original text; the text between them is
// normalized, and the others are matched in the result. Of two tokens at one position the longest
// wins. A special token that counts as text is skipped as a whole: no token is matched inside it. A
// token with `lstrip` or `rstrip` includes the spaces beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/nfc.hpp"
#include "tokenizer/splitting/specials.hpp"

namespace lowtide {

struct AddedToken {
  std::string bytes;
  uint32_t id;
  bool special, lstrip, rstrip, normalized;
};

// Tokens that are searched in the same text.
class AddedGroup {
 public:
  AddedGroup() = default;
  explicit AddedGroup(std::vector<AddedToken> tokens);

  // Calls take_text(part) and take_token(id) in the order of the text.
  template <typename TakeText, typename TakeToken>
  void split(std::string_view text, bool specials, const TakeText& take_text,
             const TakeToken& take_token) const;

 private:
  bool any(bool specials) const { return specials ? !tokens_.empty() : has_plain_; }

  std::vector<AddedToken> tokens_;
  SpecialFinder finder_;
  bool has_plain_ = false;  // one that is not special
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `compose` is empty for a vocabulary without a normalizer.
  AddedTokens(const std::vector<AddedToken>& tokens, Compose compose);

  bool empty() const { return is_empty_; }
  // All tokens, which cuts of the text must not cross.
  const SpecialFinder& all() const { return all_; }

  template <typename TakeText, typename TakeToken>
  void split(std::string_view text, bool specials, const TakeText& take_text,
             const TakeToken& take_token) const {
    std::string room;
    raw_.split(
        text, specials,
        [&](std::string_view part) {
          const std::string_view normal = compose_ ? normalize_nfc(part, compose_, room) : part;
          normalized_.split(normal, specials, take_text, take_token);
        },
        take_token);
  }

 private:
  bool is_empty_ = true;
  AddedGroup raw_, normalized_;
  SpecialFinder all_;
  Compose compose_;
};

// The start of the blanks at the end of a text; and the end of those at its beginning.
size_t blanks_before(std::string_view text);
size_t blanks_behind(std::string_view text);

template <typename TakeText, typename TakeToken>
void AddedGroup::split(std::string_view text, bool specials, const TakeText& take_text,
                       const TakeToken& take_token) const {
  const uint8_t* const data = reinterpret_cast<const uint8_t*>(text.data());
  size_t done = 0;
  for (size_t at = 0; any(specials) && at < text.size();) {
    const SpecialFinder::Match match = finder_.find(data, text.size(), at);
    if (match.begin == SpecialFinder::npos) break;
    at = match.begin + match.length;
    const AddedToken& token = tokens_[match.index];
    if (token.special && !specials) continue;
    size_t begin = match.begin, end = at;
    if (token.lstrip) begin = std::max(done, blanks_before(text.substr(0, begin)));
    if (token.rstrip) end += blanks_behind(text.substr(end));
    if (done < begin) take_text(text.substr(done, begin - done));
    if (begin >= end) continue;  // a blank that the token before it includes
    take_token(token.id);
    done = end;
  }
  if (done < text.size()) take_text(text.substr(done));
}

}  // namespace lowtide
