#include "tokenizer/learning/word_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "system/nameless_file.hpp"

namespace lowtide {

template <typename Symbol>
WordFile<Symbol>::WordFile(const std::string& folder) : folder_(folder) {
  file_ = open_nameless_file(folder.c_str());
  if (file_ < 0 && errno != ENOENT) {  // a system or a file system without unnamed files
    std::string name = folder + "/.words_XXXXXX";
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ >= 0) ::unlink(name.c_str());
  }
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), folder);
}

template <typename Symbol>
WordFile<Symbol>::~WordFile() {
  if (file_ >= 0) ::close(file_);
}

template <typename Symbol>
void WordFile<Symbol>::begin_word(uint64_t count) {
  word_begin_ = out_.size();
  word_symbols_ = 0;
  for (; count >= kMore; count >>= kCountBits) out_.push_back(static_cast<Symbol>(count | kMore));
  out_.push_back(static_cast<Symbol>(count));
}

template <typename Symbol>
void WordFile<Symbol>::end_word() {
  if (word_symbols_ < 2) {
    out_.resize(word_begin_);
    return;
  }
  out_.push_back(kEnd);
  if (out_.size() >= kBlock) flush();
}

template <typename Symbol>
void WordFile<Symbol>::flush() {
  const char* data = reinterpret_cast<const char*>(out_.data());
  size_t left = out_.size() * sizeof(Symbol);
  while (left > 0) {
    const ssize_t written = ::pwrite(file_, data, left, static_cast<off_t>(write_at_));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::system_error(errno, std::generic_category(), folder_);
    data += written;
    left -= static_cast<size_t>(written);
    write_at_ += static_cast<uint64_t>(written);
  }
  end_ = std::max(end_, write_at_);
  out_.clear();
}

template <typename Symbol>
void WordFile<Symbol>::rewind() {
  flush();
  write_at_ = 0;
}

template <typename Symbol>
size_t WordFile<Symbol>::read(uint64_t& at, Symbol* units, size_t most) {
  char* data = reinterpret_cast<char*>(units);
  size_t wanted = static_cast<size_t>(std::min<uint64_t>(most * sizeof(Symbol), end_ - at));
  const size_t got = wanted / sizeof(Symbol);
  while (wanted > 0) {
    const ssize_t taken = ::pread(file_, data, wanted, static_cast<off_t>(at));
    if (taken < 0 && errno == EINTR) continue;
    if (taken == 0) errno = EBADMSG;  // shorter than written
    if (taken <= 0) throw std::system_error(errno, std::generic_category(), folder_);
    data += taken;
    wanted -= static_cast<size_t>(taken);
    at += static_cast<uint64_t>(taken);
  }
  return got;
}

template <typename Symbol>
void WordFile<Symbol>::cut() {
  flush();
  end_ = write_at_;
  if (::ftruncate(file_, static_cast<off_t>(end_)) != 0) {
    throw std::system_error(errno, std::generic_category(), folder_);
  }
}

template class WordFile<uint16_t>;
template class WordFile<uint32_t>;

}  // namespace lowtide
