// Words with their counts in an unnamed file, read from the front and rewritten in place.
//
// In:      words, in sequence
// Out:     the same stream of units, block by block; shorter words may be written back meanwhile
// Memory:  two blocks
//
// A word is its count (15 or 31 bits per unit, the lowest first, the top bit set if more follow),
// its symbols, and kEnd. There is one read and one write per block; pages of the file in the page
// cache do not count as the process's memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lowtide {

template <typename Symbol>
class WordFile {
 public:
  static constexpr Symbol kEnd = static_cast<Symbol>(-1);
  static constexpr int kCountBits = sizeof(Symbol) * 8 - 1;
  static constexpr Symbol kMore = Symbol{1} << kCountBits;

  explicit WordFile(const std::string& folder);
  ~WordFile();
  WordFile(const WordFile&) = delete;
  WordFile& operator=(const WordFile&) = delete;

  // Appends a word to those put since the last rewind; one of less than two symbols is dropped.
  void begin_word(uint64_t count);
  void put(Symbol symbol) {
    out_.push_back(symbol);
    if (++word_symbols_ >= 2 && out_.size() >= kBlock) flush();
  }
  void end_word();

  void rewind();  // the next word is put at the front, over the words read there
  void cut();     // after the last word put
  // Reads from `at`, in bytes, and advances it; 0 at the end.
  size_t read(uint64_t& at, Symbol* units, size_t most);

  uint64_t bytes() const { return end_ + out_.size() * sizeof(Symbol); }

  void flush();  // before reading words that were put

 private:
  static constexpr size_t kBlock = size_t{1} << 17;

  std::string folder_;
  int file_ = -1;
  std::vector<Symbol> out_;
  size_t word_begin_ = 0, word_symbols_ = 0;
  uint64_t write_at_ = 0, end_ = 0;  // in bytes
};

}  // namespace lowtide
