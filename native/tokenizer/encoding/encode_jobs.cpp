#include "tokenizer/encoding/encode_jobs.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "system/threads.hpp"
#include "tokenizer/splitting/windows.hpp"

namespace lowtide {

EncoderPool::~EncoderPool() {
  for (std::atomic<Encoder*>& place : free_) delete place.load();
}

std::unique_ptr<Encoder> EncoderPool::take() {
  for (std::atomic<Encoder*>& place : free_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (Encoder* const encoder = place.exchange(nullptr)) return std::unique_ptr<Encoder>(encoder);
  }
  return std::make_unique<Encoder>(vocabulary_, cache_bytes_);
}

// If there are more than places, the encoder is deleted.
void EncoderPool::give(std::unique_ptr<Encoder> encoder) {
  for (std::atomic<Encoder*>& place : free_) {
    Encoder* none = nullptr;
    if (place.compare_exchange_strong(none, encoder.get())) {
      encoder.release();
      return;
    }
  }
}

namespace {

constexpr size_t kShareBytes = 1 << 18;  // of text that a thread processes at a time

// A text, or a part of a long one with borders that no piece or special token crosses.
struct Part {
  size_t text;
  std::string_view bytes;
};

std::vector<Part> cut_texts(const std::vector<std::string_view>& texts,
                            const SpecialFinder& specials) {
  std::vector<Part> parts;
  parts.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string_view rest = texts[i];
    while (rest.size() > 2 * kShareBytes) {
      const size_t cut = find_cut(reinterpret_cast<const uint8_t*>(rest.data()), rest.size(),
                                  kShareBytes, specials);
      if (cut == rest.size()) break;
      parts.push_back({i, rest.substr(0, cut)});
      rest.remove_prefix(cut);
    }
    parts.push_back({i, rest});
  }
  return parts;
}

// Splits the list into runs of about kShareBytes, so that small texts do not cost a lock each.
std::vector<size_t> share_ends(const std::vector<Part>& parts) {
  std::vector<size_t> ends;
  size_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    bytes += parts[i].bytes.size();
    if (bytes >= kShareBytes || i + 1 == parts.size()) {
      ends.push_back(i + 1);
      bytes = 0;
    }
  }
  return ends;
}

}  // namespace

EncodedTexts encode_texts(EncoderPool& pool, const std::vector<std::string_view>& texts,
                          bool specials, size_t num_threads) {
  const std::vector<Part> cuts = cut_texts(texts, pool.vocabulary()->cut_finder(specials));
  const std::vector<size_t> shares = share_ends(cuts);
  std::vector<std::vector<uint32_t>> parts(shares.size());
  std::vector<uint64_t> ends(cuts.size());  // within the share
  EncodedTexts result;
  result.ends.resize(texts.size());
  std::atomic<size_t> next{0};
  run_threads(std::min(num_threads, std::max<size_t>(1, shares.size())), [&](size_t) {
    EncoderPool::Lease encoder(pool);
    for (size_t share = next++; share < shares.size(); share = next++) {
      std::vector<uint32_t>& ids = parts[share];
      for (size_t i = share == 0 ? 0 : shares[share - 1]; i < shares[share]; ++i) {
        if (specials) {
          encoder->encode_with_specials(cuts[i].bytes, ids);
        } else {
          encoder->encode_ordinary(cuts[i].bytes, ids);
        }
        ends[i] = ids.size();
      }
    }
  });
  size_t total = 0, cut = 0;
  for (size_t share = 0; share < shares.size(); ++share) {
    for (; cut < shares[share]; ++cut) result.ends[cuts[cut].text] = total + ends[cut];
    total += parts[share].size();
  }
  if (parts.size() == 1) {
    result.ids = std::move(parts[0]);
    return result;
  }
  result.ids.reserve(total);
  for (std::vector<uint32_t>& part : parts) {
    result.ids.insert(result.ids.end(), part.begin(), part.end());
    part = {};
  }
  return result;
}

namespace {

void write_at(const FileEncoding& job, uint64_t offset, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::pwrite(job.output_file, bytes, size, static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      throw std::system_error(errno, std::generic_category(), job.output_path);
    }
    bytes += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<size_t>(written);
  }
}

// Assigns output positions in the order of the windows.
class Turns {
 public:
  explicit Turns(uint64_t first) : next_offset_(first) {}
  // Waits for the windows before `index`, then reserves `size` bytes of the output. False if
  // another thread failed, which reports the error.
  bool take(uint64_t index, uint64_t size, uint64_t& offset) {
    if (!wait(index)) return false;
    offset = extend(size);
    pass();
    return true;
  }
  // The same in steps, for a thread that writes in parts: no other thread writes between wait and
  // pass.
  bool wait(uint64_t index) {
    std::unique_lock<std::mutex> lock(mutex_);
    turn_.wait(lock, [&] { return now_ == index || failed_; });
    return !failed_;
  }
  uint64_t extend(uint64_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    next_offset_ += size;
    return next_offset_ - size;
  }
  void pass() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++now_;
    turn_.notify_all();
  }
  void fail() {
    const std::lock_guard<std::mutex> lock(mutex_);
    failed_ = true;
    turn_.notify_all();
  }
  uint64_t end() const { return next_offset_; }

 private:
  std::mutex mutex_;
  std::condition_variable turn_;
  uint64_t now_ = 0, next_offset_;
  bool failed_ = false;
};

template <typename Id>
void encode_windows(EncoderPool& pool, const FileEncoding& job, FileWindows& windows,
                    Turns& turns) {
  EncoderPool::Lease encoder(pool);
  std::vector<uint8_t> buffer;
  std::vector<Id> ids;
  FileWindows::Window window;
  while (windows.next(window)) {
    const bool large = windows.is_large(window);
    if (large && !turns.wait(window.index)) return;
    windows.read(window, buffer);
    const std::string_view text(reinterpret_cast<const char*>(buffer.data()), buffer.size());
    const auto write = [&](const Id* part, size_t count) {
      write_at(job, turns.extend(count * sizeof(Id)), part, count * sizeof(Id));
    };
    if (large) {
      encoder->encode_in_parts<Id>(text, job.specials, write);
      turns.pass();
      buffer = {};
      continue;
    }
    ids.clear();
    if (job.specials) {
      encoder->encode_with_specials(text, ids);
    } else {
      encoder->encode_ordinary(text, ids);
    }
    const size_t size = ids.size() * sizeof(Id);
    uint64_t offset;
    if (!turns.take(window.index, size, offset)) return;
    write_at(job, offset, ids.data(), size);
  }
}

}  // namespace

std::pair<uint64_t, uint64_t> encode_file(EncoderPool& pool, const FileEncoding& job) {
  const Vocabulary& vocabulary = *pool.vocabulary();
  if (job.id_bytes == 2 && vocabulary.size() > 65536) {
    throw std::invalid_argument("ids of this vocabulary do not fit 16 bits");
  }
  FileWindows windows(job.input_path, job.begin, job.stop, job.end, job.window_bytes,
                      vocabulary.cut_finder(job.specials), job.largest_window);
  Turns turns(job.output_offset);
  run_threads(job.num_threads, [&](size_t) {
    try {
      if (job.id_bytes == 2) {
        encode_windows<uint16_t>(pool, job, windows, turns);
      } else {
        encode_windows<uint32_t>(pool, job, windows, turns);
      }
    } catch (...) {
      turns.fail();
      throw;
    }
  });
  return {(turns.end() - job.output_offset) / job.id_bytes, windows.position()};
}

}  // namespace lowtide
