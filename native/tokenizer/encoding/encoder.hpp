// Encode text into token ids, one Encoder per thread.
//
// In:      bytes (any bytes)
// Out:     ids, the same as merging each piece by rank
// Memory:  `cache_bytes` for the caches; scratch of a few MiB, whatever the length of a piece
//
// Most pieces were seen before, and are in one of three caches (piece_cache.hpp). Pieces in none of
// them are merged.
//
// A batch of pieces is processed in passes; the passes over all pieces have no unpredictable branches:
// compute the keys and prefetch their cache lines; compare, and list the misses; look these up in the
// other caches, after prefetching all their cache lines; merge the rest, several at a time; write the
// ids of all.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/encoding/long_merge.hpp"
#include "tokenizer/encoding/piece_cache.hpp"
#include "tokenizer/encoding/piece_merge.hpp"
#include "tokenizer/encoding/vocabulary.hpp"

namespace lowtide {

// Encodes into ids of one width: 16 bits if the vocabulary fits, else 32.
template <typename Id>
class TextEncoder {
 public:
  TextEncoder(const Vocabulary& vocabulary, size_t cache_bytes);

  // Calls sink(ids, count) batch by batch.
  template <typename Sink>
  void encode(std::string_view text, bool specials, bool is_first, const Sink& sink);

 private:
  using Set = typename PieceCache<Id>::Set;
  using WideSlot = typename WidePieceCache<Id>::Slot;
  static constexpr size_t kBatch = 256;
  static constexpr size_t kReadIds = kReadBytes / sizeof(Id);
  // Consecutive pieces: piece i ends at text[ends[i]], the first begins at text[begin].
  struct Batch {
    const uint8_t* text;
    size_t length, begin;
    const uint32_t* ends;
    size_t count;
    size_t begin_of(size_t i) const { return i == 0 ? begin : ends[i - 1]; }
    const uint8_t* piece(size_t i) const { return text + begin_of(i); }
    size_t length_of(size_t i) const { return ends[i] - begin_of(i); }
    const uint8_t* text_end() const { return text + length; }
  };
  struct Found {
    const Id* ids;
    uint32_t count;
  };
  // A piece that is not in the first cache.
  struct Probe {
    uint32_t i;
    bool is_long;     // looked up in the last cache, else in the second
    uint64_t hash;    // of a long one
    WideSlot* slots;  // of another one
    WideKey key;
  };
  struct Merged {
    uint32_t i, num_ids;
    uint32_t* ids;
  };

  // Text between added tokens for a SentencePiece vocabulary: replaces blanks and may put one
  // before it.
  template <typename Sink>
  void encode_stretch(std::string_view text, bool is_begin, bool is_first, const Sink& sink);
  template <typename Sink>
  void encode_text(const uint8_t* text, size_t length, const Sink& sink);
  template <typename Sink>
  void encode_part(const uint8_t* text, size_t length, const Sink& sink);
  // The ends of pieces, or of their parts in text that is cut.
  std::span<const uint32_t> cut_pieces(const uint8_t* text, size_t begin, size_t count);
  // The same for pieces some of which are very long: these do not use the scratch.
  template <typename Sink>
  void encode_long_batch(const Batch& batch, const Sink& sink);
  Id* encode_batch(const Batch& batch, Id* out);
  template <bool kInside>
  void make_keys(const Batch& batch);
  size_t find_slots(size_t count);
  // Looks up `count` pieces in the other caches; returns how many of them are to be merged.
  size_t find_others(const Batch& batch, size_t count);
  bool find_long(const Batch& batch, const Probe& probe);
  void merge_missing(const Batch& batch, size_t count);
  void keep_merged(const Batch& batch, size_t count);
  uint32_t whole_piece(const uint8_t* piece, size_t length) const {
    return vocabulary_.whole_piece({reinterpret_cast<const char*>(piece), length});
  }

  const Vocabulary& vocabulary_;
  SplitFunction split_;
  PieceMerger merger_;
  LongPieceMerger long_merger_;
  PieceCache<Id> cache_;
  WidePieceCache<Id> wide_cache_;
  LongPieceCache<Id> long_cache_;
  std::vector<uint32_t> ends_;
  std::vector<uint32_t> parts_;          // the same for parts of pieces
  bool is_cut_ = false;                  // the text has such parts
  std::vector<Id> scratch_;              // the ids of the pieces that end at `ends_`
  std::vector<uint32_t> merge_scratch_;  // ids of the pieces of a batch that are merged
  std::vector<Id> fresh_;                // the same with the width of an id
  std::string stretch_;                  // text with replaced blanks
  // Of the pieces of a batch:
  std::array<PieceKey, kBatch> keys_;
  std::array<const Set*, kBatch> sets_;
  std::array<Found, kBatch> found_;
  std::array<uint32_t, kBatch>
      missing_;  // those without ids, first of all caches, then of the first
  std::array<Probe, kBatch> probes_;
  std::array<Merged, kBatch> merged_;
  std::array<PieceToMerge, kBatch> to_merge_;
};

class Encoder {
 public:
  Encoder(std::shared_ptr<const Vocabulary> vocabulary, size_t cache_bytes);

  // Appends the ids of `text`; special tokens in it are ordinary text.
  void encode_ordinary(std::string_view text, std::vector<uint32_t>& ids);
  // Appends the ids of `text`; special tokens in it become their ids.
  void encode_with_specials(std::string_view text, std::vector<uint32_t>& ids);
  // The same for text that may continue other text (`is_first` false).
  void encode_pieces(std::string_view text, bool specials, bool is_first,
                     std::vector<uint32_t>& ids);
  // The same into 16 bits an id; the vocabulary must fit.
  void encode_ordinary(std::string_view text, std::vector<uint16_t>& ids);
  void encode_with_specials(std::string_view text, std::vector<uint16_t>& ids);

  // Calls sink(ids, count) part by part, so that not all ids are held at once.
  template <typename Id>
  void encode_in_parts(std::string_view text, bool specials,
                       const std::function<void(const Id*, size_t)>& sink);

  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::variant<TextEncoder<uint16_t>, TextEncoder<uint32_t>> encoder_;
};

}  // namespace lowtide
