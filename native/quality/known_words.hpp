// Exceptions to the rules of word splitting: contractions with and without an apostrophe, times,
// abbreviations, a few emoticons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "quality/words.hpp"

namespace lowtide {

constexpr size_t kMostKnownBytes = 16;

class KnownWords {
 public:
  static const KnownWords& get();

  // The sizes, in characters, of the words that `word` is split into, 0 after the last; nullptr:
  // not known.
  const uint8_t* find(std::string_view word) const {
    if (word.size() > kMostKnownBytes || word.empty() || !has_ends(word)) return nullptr;
    return find(word, hash_word(word));
  }

  // False for nearly all hashes of words that are not known.
  bool may_be(uint64_t hash) const { return filter_[hash >> 6 & 1023] >> (hash & 63) & 1; }

  // The same, for a word whose hash is already computed.
  const uint8_t* find(std::string_view word, uint64_t hash) const {
    if (!may_be(hash)) return nullptr;
    for (size_t at = hash >> 32 & (kSlots - 1);; at = (at + 1) & (kSlots - 1)) {
      if (slots_[at].text.empty()) return nullptr;
      if (slots_[at].text == word) return slots_[at].sizes.data();
    }
  }

 private:
  static constexpr size_t kSlots = 4096, kMostParts = 4;
  struct Entry {
    std::string text;
    std::array<uint8_t, kMostParts + 1> sizes{};
  };

  KnownWords();
  void add_pronouns();
  void add_question_words();
  void add_verbs();
  void add_single_words();
  void add_faces();
  // "word'll" and "wordll", and both with 've.
  void contract(const char* word, const std::string& ending);
  void contract_once(const char* word, const std::string& ending);
  // As given, and capitalized.
  void both(std::initializer_list<std::string> parts);
  void add(const std::vector<std::string>& parts);
  void add_exact(const std::vector<std::string>& parts);
  // True if a known word begins and ends with these bytes; checked before hashing.
  bool has_ends(std::string_view word) const {
    const auto last = static_cast<unsigned char>(word.back());
    return ends_[static_cast<unsigned char>(word.front())][last >> 6] >> (last & 63) & 1;
  }

  std::array<uint64_t, 1024> filter_{};
  std::array<std::array<uint64_t, 4>, 256> ends_{};
  std::vector<Entry> slots_;
};

}  // namespace lowtide
