// Encode many texts, or a file of any size, on several threads.
//
// In:      texts in memory, or a file read through windows
// Out:     ids in the order of the text, in memory or in a file of raw little-endian ids
// Memory:  per thread one encoder's caches, one window and its ids; only one window at a time without
//          a token border; texts in memory: their ids
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/encoding/encoder.hpp"

namespace lowtide {

// Encoders that are kept between calls, so that their caches stay warm; one per active thread.
class EncoderPool {
 public:
  EncoderPool(std::shared_ptr<const Vocabulary> vocabulary, size_t cache_bytes)
      : vocabulary_(std::move(vocabulary)), cache_bytes_(cache_bytes) {}
  ~EncoderPool();
  EncoderPool(const EncoderPool&) = delete;
  EncoderPool& operator=(const EncoderPool&) = delete;

  class Lease {
   public:
    explicit Lease(EncoderPool& pool) : pool_(pool), encoder_(pool.take()) {}
    ~Lease() { pool_.give(std::move(encoder_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Encoder* operator->() { return encoder_.get(); }

   private:
    EncoderPool& pool_;
    std::unique_ptr<Encoder> encoder_;
  };

  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }

 private:
  std::unique_ptr<Encoder> take();
  void give(std::unique_ptr<Encoder> encoder);

  std::shared_ptr<const Vocabulary> vocabulary_;
  const size_t cache_bytes_;
  // Places without a lock: a child made by fork would wait for one that another thread held.
  std::array<std::atomic<Encoder*>, 256> free_{};
};

// The concatenated ids of all texts, and the end of each text's ids.
struct EncodedTexts {
  std::vector<uint32_t> ids;
  std::vector<uint64_t> ends;
};
EncodedTexts encode_texts(EncoderPool& pool, const std::vector<std::string_view>& texts,
                          bool specials, size_t num_threads);

// Encodes a file of `end` bytes from `begin` (0, or the end of an earlier part) to the first cut at
// or after `stop`, into `output_file` (a descriptor) from `output_offset` on, as uint16 or uint32.
struct FileEncoding {
  std::string input_path, output_path;
  uint64_t begin, stop, end;
  int output_file;
  uint64_t output_offset;
  size_t id_bytes;
  bool specials;
  size_t num_threads, window_bytes;
  // Text without a place to cut is refused (std::length_error) beyond this many bytes.
  size_t largest_window = size_t{1} << 31;
};
// Returns the number of ids written, and the start of the next part.
std::pair<uint64_t, uint64_t> encode_file(EncoderPool& pool, const FileEncoding& job);

}  // namespace lowtide
