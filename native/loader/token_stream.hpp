// Many shard files read as one stream of tokens, window by window, into batches.
//
// Windows are read with pread into one small buffer and widened from there. Memory-mapping the files
// was measured too (64 windows of 1024, page cache warm): 59 us a batch with a permanent mapping, 86
// us with pread, 130 us with a mapping released after each batch. pread is fastest if memory must
// stay flat, needs no address space for thousands of shards, and makes a file truncated during
// training an error instead of a SIGBUS.
//
// Memory: one window per call, and at most `max_open_files` descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lowtide {

// The kind and position of an error; the caller makes the message.
struct ReadFailure {
  enum class Kind { kOpen, kRead, kTooShort, kIdTooLarge, kDocuments };
  Kind kind;
  std::string path;
  // kIdTooLarge: token in the shard; kTooShort: bytes the file has; kDocuments: which document
  uint64_t position = 0;
  // kOpen, kRead: errno; kIdTooLarge: the id; kTooShort: bytes expected; kDocuments: where it ends
  uint64_t value = 0;
};

struct ShardFile {
  std::string path;
  uint64_t byte_offset = 0;  // where its tokens begin
  uint64_t num_tokens = 0;
  std::string documents_path;  // uint64 offsets where documents end; empty if unknown
  uint64_t num_documents = 0;
  bool begins_document = false;  // a document left open by the shard before does not go on here
};

// Descriptors of the files used last; a file in use stays open after it leaves the cache.
class OpenFiles {
 public:
  explicit OpenFiles(size_t limit) : limit_(limit) {}

  class File {
   public:
    explicit File(int descriptor) : descriptor_(descriptor) {}
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File();
    int descriptor() const { return descriptor_; }

   private:
    int descriptor_;
  };

  // Throws ReadFailure when the file cannot be opened or has fewer than `expected_bytes`.
  std::shared_ptr<File> get(uint64_t key, const std::string& path, uint64_t expected_bytes);
  size_t size() const;

 private:
  using Entry = std::pair<uint64_t, std::shared_ptr<File>>;

  mutable std::mutex mutex_;
  std::list<Entry> recent_;  // most recent first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_key_;
  size_t limit_;
};

class TokenStream {
 public:
  // Tokens are little-endian, of `item_bytes` each; an id of `id_limit` or more is a failure.
  TokenStream(std::vector<ShardFile> shards, int item_bytes, uint64_t id_limit,
              size_t max_open_files);

  uint64_t num_tokens() const { return ends_.empty() ? 0 : ends_.back(); }

  // Reads `length + 1` tokens from each start; row rows[i] of `inputs` gets the first `length`, the
  // same row of `targets` the last; without `rows`, window i is written to row i. Starts must leave
  // room for the window (checked).
  template <typename Out>
  void gather(const uint64_t* starts, const uint64_t* rows, size_t count, size_t length,
              Out* inputs, Out* targets);

  // Reads tokens first .. first + count into `out`.
  template <typename Out>
  void read(uint64_t first, size_t count, Out* out);

  // Moves each start to the first document that begins within `reach` tokens of it, if one does.
  void align_to_documents(uint64_t* starts, size_t count, uint64_t reach);

  // For each token: the number of its document within the window, and its position in the document.
  void segments(const uint64_t* starts, const uint64_t* rows, size_t count, size_t length,
                int32_t* segment_ids, int32_t* positions);

 private:
  size_t shard_of(uint64_t position) const;
  // The last shard read in a call, kept open because the next window is often in it too.
  struct Current {
    size_t shard = SIZE_MAX;
    std::shared_ptr<OpenFiles::File> file;
  };
  void read_bytes(uint64_t first, size_t count, std::byte* out, Current& current);
  void check_ids(const std::byte* tokens, uint64_t first, size_t count) const;
  template <typename Out>
  void widen(const std::byte* tokens, size_t count, Out* out) const;
  template <typename Work>
  void with_type(const std::byte* tokens, Work work) const;
  [[noreturn]] void throw_id_too_large(uint64_t position, uint64_t id) const;
  // Calls visit(position) for each document start in (after, before], in order, until it is false.
  template <typename Visit>
  void visit_document_starts(uint64_t after, uint64_t before, Visit visit);

  std::vector<ShardFile> shards_;
  std::vector<uint64_t> ends_;  // in the stream
  int item_bytes_;
  uint64_t id_limit_;
  OpenFiles files_;
};

}  // namespace lowtide
