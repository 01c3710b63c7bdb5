#include "loader/token_stream.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace lowtide {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 56;  // tokens and bytes: sums of them fit 64 bits

void pread_fully(const OpenFiles::File& file, const std::string& path, std::byte* out, size_t bytes,
                 uint64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        ::pread(file.descriptor(), out + done, bytes - done, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      throw ReadFailure{ReadFailure::Kind::kTooShort, path, offset + done, offset + bytes};
    } else if (errno != EINTR) {
      throw ReadFailure{ReadFailure::Kind::kRead, path, offset + done,
                        static_cast<uint64_t>(errno)};
    }
  }
}

// A separate loop over pointers that do not alias, which the compiler vectorizes. As part of a
// lambda that captured its pointers it stayed scalar, and took 110 us per batch instead of 22.
template <typename In, typename Out>
void copy_ids(const In* __restrict ids, size_t count, Out* __restrict out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(ids[i]);
}

#if defined(__x86_64__)
// The most common types of datasets and models, with the one instruction that baseline x86-64
// lacks: 16 us per batch. AVX-512 was no better (18 us), non-temporal stores worse (51 us).
__attribute__((target("avx2"))) void copy_ids_avx2(const uint16_t* ids, size_t count,
                                                   int64_t* out) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(ids + i));
    const __m256i low = _mm256_cvtepu16_epi64(eight);
    const __m256i high = _mm256_cvtepu16_epi64(_mm_srli_si128(eight, 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 4), high);
  }
  for (; i < count; ++i) out[i] = ids[i];
}

void copy_ids(const uint16_t* ids, size_t count, int64_t* out) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return copy_ids_avx2(ids, count, out);
  copy_ids<uint16_t, int64_t>(ids, count, out);
}
#endif

int open_for_reading(const std::string& path) {
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace

OpenFiles::File::~File() { ::close(descriptor_); }

size_t OpenFiles::size() const {
  const std::lock_guard lock(mutex_);
  return recent_.size();
}

std::shared_ptr<OpenFiles::File> OpenFiles::get(uint64_t key, const std::string& path,
                                                uint64_t expected_bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second);
    return recent_.front().second;
  }
  int descriptor = open_for_reading(path);
  while (descriptor < 0 && (errno == EMFILE || errno == ENFILE) && !recent_.empty()) {
    by_key_.erase(recent_.back().first);
    recent_.pop_back();
    limit_ = std::max<size_t>(1, recent_.size());  // others need descriptors too: stay below this
    descriptor = open_for_reading(path);
  }
  if (descriptor < 0) {
    throw ReadFailure{ReadFailure::Kind::kOpen, path, 0, static_cast<uint64_t>(errno)};
  }
  auto file = std::make_shared<File>(descriptor);
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    throw ReadFailure{ReadFailure::Kind::kOpen, path, 0, static_cast<uint64_t>(errno)};
  }
  if (static_cast<uint64_t>(status.st_size) < expected_bytes) {
    throw ReadFailure{ReadFailure::Kind::kTooShort, path, static_cast<uint64_t>(status.st_size),
                      expected_bytes};
  }
  recent_.emplace_front(key, file);
  by_key_[key] = recent_.begin();
  while (recent_.size() > limit_) {
    by_key_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return file;
}

TokenStream::TokenStream(std::vector<ShardFile> shards, int item_bytes, uint64_t id_limit,
                         size_t max_open_files)
    : shards_(std::move(shards)),
      item_bytes_(item_bytes),
      id_limit_(id_limit),
      files_(std::max<size_t>(1, max_open_files)) {
  if (item_bytes != 1 && item_bytes != 2 && item_bytes != 4 && item_bytes != 8) {
    throw std::invalid_argument("ids are stored in 1, 2, 4 or 8 bytes");
  }
  // Shards without tokens would make the search below ambiguous, and have nothing to read.
  std::erase_if(shards_, [](const ShardFile& shard) { return shard.num_tokens == 0; });
  uint64_t end = 0;
  ends_.reserve(shards_.size());
  for (const ShardFile& shard : shards_) {
    if (shard.num_tokens > kMost - end || shard.byte_offset > kMost ||
        shard.num_documents > kMost / sizeof(uint64_t)) {
      throw std::invalid_argument("a shard is larger than any disk");
    }
    ends_.push_back(end += shard.num_tokens);
  }
}

size_t TokenStream::shard_of(uint64_t position) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) -
                             ends_.begin());
}

void TokenStream::read_bytes(uint64_t first, size_t count, std::byte* out, Current& current) {
  for (size_t shard = shard_of(first); count > 0; ++shard) {
    const ShardFile& info = shards_[shard];
    const uint64_t begin = ends_[shard] - info.num_tokens;
    const size_t here = static_cast<size_t>(std::min<uint64_t>(count, ends_[shard] - first));
    if (current.shard != shard) {
      current.file = files_.get(shard, info.path, info.byte_offset + info.num_tokens * item_bytes_);
      current.shard = shard;
    }
    pread_fully(*current.file, info.path, out, here * item_bytes_,
                info.byte_offset + (first - begin) * item_bytes_);
    out += here * item_bytes_;
    first += here;
    count -= here;
  }
}

void TokenStream::throw_id_too_large(uint64_t position, uint64_t id) const {
  const size_t shard = shard_of(position);
  const uint64_t begin = ends_[shard] - shards_[shard].num_tokens;
  throw ReadFailure{ReadFailure::Kind::kIdTooLarge, shards_[shard].path, position - begin, id};
}

// Calls work(ids) with a pointer to the type the ids are stored in, as unsigned numbers.
template <typename Work>
void TokenStream::with_type(const std::byte* tokens, Work work) const {
  if (item_bytes_ == 1) work(reinterpret_cast<const uint8_t*>(tokens));
  if (item_bytes_ == 2) work(reinterpret_cast<const uint16_t*>(tokens));
  if (item_bytes_ == 4) work(reinterpret_cast<const uint32_t*>(tokens));
  if (item_bytes_ == 8) work(reinterpret_cast<const uint64_t*>(tokens));
}

void TokenStream::check_ids(const std::byte* tokens, uint64_t first, size_t count) const {
  with_type(tokens, [&]<typename In>(const In* ids) {
    In largest = 0;
    for (size_t i = 0; i < count; ++i) largest = std::max(largest, ids[i]);
    if (largest < id_limit_) return;
    const In* bad = std::find_if(ids, ids + count, [&](In id) { return id >= id_limit_; });
    throw_id_too_large(first + static_cast<uint64_t>(bad - ids), *bad);
  });
}

template <typename Out>
void TokenStream::widen(const std::byte* tokens, size_t count, Out* out) const {
  with_type(tokens, [&]<typename In>(const In* ids) { copy_ids(ids, count, out); });
}

template <typename Out>
void TokenStream::gather(const uint64_t* starts, const uint64_t* rows, size_t count, size_t length,
                         Out* inputs, Out* targets) {
  if (count == 0) return;
  if (length > num_tokens()) throw std::out_of_range("a window is longer than all tokens");
  for (size_t i = 0; i < count; ++i) {
    if (starts[i] > num_tokens() || num_tokens() - starts[i] < length + 1) {
      throw std::out_of_range("a window reaches past the end of the tokens");
    }
  }
  // In the order of the files, so that each is opened once per batch, and read forwards.
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return starts[a] < starts[b]; });
  std::vector<uint64_t> window(((length + 1) * item_bytes_ + 7) / 8);  // aligned for any id
  std::byte* tokens = reinterpret_cast<std::byte*>(window.data());
  Current current;
  for (const size_t i : order) {
    read_bytes(starts[i], length + 1, tokens, current);
    check_ids(tokens, starts[i], length + 1);
    const size_t row = (rows == nullptr ? i : static_cast<size_t>(rows[i])) * length;
    widen(tokens, length, inputs + row);
    widen(tokens + item_bytes_, length, targets + row);
  }
}

template <typename Out>
void TokenStream::read(uint64_t first, size_t count, Out* out) {
  if (first > num_tokens() || num_tokens() - first < count) {
    throw std::out_of_range("the range reaches past the end of the tokens");
  }
  constexpr size_t kChunk = 1 << 16;
  std::vector<uint64_t> buffer((std::min(count, kChunk) * item_bytes_ + 7) / 8);
  std::byte* tokens = reinterpret_cast<std::byte*>(buffer.data());
  Current current;
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t here = std::min(kChunk, count - done);
    read_bytes(first + done, here, tokens, current);
    check_ids(tokens, first + done, here);
    widen(tokens, here, out + done);
  }
}

template <typename Visit>
void TokenStream::visit_document_starts(uint64_t after, uint64_t before, Visit visit) {
  constexpr size_t kBlock = 256;
  uint64_t ends[kBlock];
  uint64_t last = after;
  for (size_t shard = shard_of(after); shard < shards_.size(); ++shard) {
    const ShardFile& info = shards_[shard];
    const uint64_t begin = ends_[shard] - info.num_tokens;
    if (info.begins_document && begin > last && begin <= before && begin < num_tokens()) {
      if (!visit(begin)) return;
    }
    if (begin >= before) return;
    if (info.num_documents == 0) continue;
    const auto file = files_.get(shards_.size() + shard, info.documents_path,
                                 info.num_documents * sizeof(uint64_t));
    const auto read_ends = [&](uint64_t first, size_t count) {
      pread_fully(*file, info.documents_path, reinterpret_cast<std::byte*>(ends),
                  count * sizeof(uint64_t), first * sizeof(uint64_t));
    };
    uint64_t low = 0, high = info.num_documents;  // the first end beyond `after` is in [low, high]
    while (high - low > kBlock) {
      const uint64_t middle = low + (high - low) / 2;
      read_ends(middle, 1);
      if (begin + ends[0] > after) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    uint64_t last_end = 0;
    for (uint64_t next = low; next < info.num_documents; next += kBlock) {
      const size_t here =
          static_cast<size_t>(std::min<uint64_t>(kBlock, info.num_documents - next));
      read_ends(next, here);
      for (size_t i = 0; i < here; ++i) {
        const uint64_t start = begin + ends[i];
        // Document ends that decrease, or exceed the shard, would be written outside of the batch.
        if (ends[i] > info.num_tokens || ends[i] < last_end) {
          throw ReadFailure{ReadFailure::Kind::kDocuments, info.documents_path, next + i, ends[i]};
        }
        last_end = ends[i];
        if (start <= after) continue;
        // no document begins at the end of the last one
        if (start > before || start >= num_tokens() || !visit(start)) return;
        last = start;
      }
    }
  }
}

void TokenStream::align_to_documents(uint64_t* starts, size_t count, uint64_t reach) {
  reach = std::min(reach, num_tokens());
  for (size_t i = 0; i < count; ++i) {
    if (starts[i] == 0 || starts[i] > num_tokens()) continue;  // the stream begins with a document
    const uint64_t from = starts[i] - 1;
    visit_document_starts(from, from + reach, [&](uint64_t start) {
      starts[i] = start;
      return false;
    });
  }
}

void TokenStream::segments(const uint64_t* starts, const uint64_t* rows, size_t count,
                           size_t length, int32_t* segment_ids, int32_t* positions) {
  for (size_t i = 0; i < count; ++i) {
    if (starts[i] > num_tokens() || num_tokens() - starts[i] < length) {
      throw std::out_of_range("a window reaches past the end of the tokens");
    }
    const size_t row = (rows == nullptr ? i : static_cast<size_t>(rows[i])) * length;
    int32_t* ids = segment_ids + row;
    int32_t* places = positions + row;
    size_t filled = 0;
    int32_t segment = 0;
    const auto fill_until = [&](size_t end) {
      std::fill(ids + filled, ids + end, segment++);
      std::iota(places + filled, places + end, 0);
      filled = end;
    };
    if (length > 1) {
      visit_document_starts(starts[i], starts[i] + length - 1, [&](uint64_t start) {
        fill_until(static_cast<size_t>(start - starts[i]));
        return true;
      });
    }
    fill_until(length);
  }
}

#define LOWTIDE_INSTANTIATE(Out)                                                                 \
  template void TokenStream::gather<Out>(const uint64_t*, const uint64_t*, size_t, size_t, Out*, \
                                         Out*);                                                  \
  template void TokenStream::read<Out>(uint64_t, size_t, Out*);
LOWTIDE_INSTANTIATE(int64_t)
LOWTIDE_INSTANTIATE(int32_t)
LOWTIDE_INSTANTIATE(uint16_t)
LOWTIDE_INSTANTIATE(uint32_t)
#undef LOWTIDE_INSTANTIATE

}  // namespace lowtide
