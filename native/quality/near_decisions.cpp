#include "quality/near_decisions.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace lowtide {
namespace {

constexpr size_t kOpenFiles = 128;
constexpr size_t kChunk = RowIndex<NearCopyRow>::kChunk;

size_t count_common(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  size_t common = 0, left = 0, right = 0;
  while (left < a.size() && right < b.size()) {
    const uint64_t x = a[left], y = b[right];
    common += x == y;  // no branch, because which one is smaller is unpredictable
    left += x <= y;
    right += y <= x;
  }
  return common;
}

}  // namespace

NearDecider::NearDecider(std::vector<GramSetFile> sets, double threshold, uint64_t copies_left_from,
                         std::string out)
    : sets_(std::move(sets)),
      threshold_(threshold),
      copies_left_from_(copies_left_from),
      files_(kOpenFiles),
      out_(std::move(out)),
      descriptor_(::open(out_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), out_);
  try {
    indexes_.reserve(sets_.size());
    for (const GramSetFile& file : sets_) indexes_.emplace_back(file.index, files_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

NearDecider::~NearDecider() { ::close(descriptor_); }

void NearDecider::add(std::span<const PlacePair> pairs) {
  for (const PlacePair& pair : pairs) take(pair);
}

void NearDecider::take(const PlacePair& pair) {
  if (!begun_ || pair.first != later_.place) {
    if (begun_ && pair.first < later_.place) throw std::invalid_argument("pairs are not in order");
    later_ = find_set(pair.first, later_cursor_);
    begun_ = true;
    decided_ = loaded_ = false;
  }
  if (decided_) return;
  const uint64_t place = pair.second & ~kExactCopy;
  NearCopyRow before{};
  const bool is_gone = find_removed(place, before);
  if (pair.second & kExactCopy) {
    // The decision for the first of equal texts holds for the others too.
    decided_ = true;
    if (is_gone) {
      remove({later_.place, before.kept, before.similarity, later_.lines, later_.input,
              later_.ordinal, before.kept_input, before.kept_ordinal});
    } else if (place < copies_left_from_) {
      const GramSetRow kept = find_set(place, earlier_cursor_);
      remove({later_.place, place, 1.0, later_.lines, later_.input, later_.ordinal, kept.input,
              kept.ordinal});
    }
    return;
  }
  if (is_gone) return;
  const GramSetRow earlier = find_set(place, earlier_cursor_);
  const double similarity = measure_similarity(earlier);
  if (similarity < threshold_) return;
  decided_ = true;
  remove({later_.place, place, similarity, later_.lines, later_.input, later_.ordinal,
          earlier.input, earlier.ordinal});
}

GramSetRow NearDecider::find_set(uint64_t place, Cursor& cursor) {
  const auto after = std::upper_bound(
      sets_.begin(), sets_.end(), place,
      [](uint64_t wanted, const GramSetFile& file) { return wanted < file.first; });
  GramSetRow row{};
  if (after != sets_.begin()) {
    const auto file = static_cast<size_t>(after - sets_.begin()) - 1;
    if (cursor.file != file) cursor.held = ~uint64_t{0};
    cursor.file = file;
    if (indexes_[file].find(place, row, cursor.chunk, cursor.held)) return row;
  }
  throw std::runtime_error("a document of a pair has no set of n-grams");
}

void NearDecider::read_grams(const GramSetRow& row, Cursor& cursor) {
  const GramSetFile& file = sets_[cursor.file];
  cursor.grams.resize(row.count);
  files_.read(file.index.path, file.grams_at + row.begin * sizeof(uint64_t), cursor.grams.data(),
              row.count * sizeof(uint64_t));
}

// 0 if their numbers of n-grams already show that it is too low.
double NearDecider::measure_similarity(const GramSetRow& earlier) {
  const double fewer = static_cast<double>(std::min(earlier.count, later_.count));
  const double more = static_cast<double>(std::max(earlier.count, later_.count));
  if (fewer == 0 || fewer / more < threshold_) return ++num_unlike, 0;
  if (!loaded_) read_grams(later_, later_cursor_);
  loaded_ = true;
  read_grams(earlier, earlier_cursor_);
  ++num_compared;
  const size_t common = count_common(later_cursor_.grams, earlier_cursor_.grams);
  const double similarity =
      static_cast<double>(common) / static_cast<double>(later_.count + earlier.count - common);
  num_unlike += similarity < threshold_;
  return similarity;
}

bool NearDecider::find_removed(uint64_t place, NearCopyRow& found) {
  const auto by_place = [](const NearCopyRow& row, uint64_t wanted) { return row.place < wanted; };
  const auto search = [&](const std::vector<NearCopyRow>& rows) {
    const auto at = std::lower_bound(rows.begin(), rows.end(), place, by_place);
    if (at == rows.end() || at->place != place) return false;
    found = *at;
    return true;
  };
  if (!removed_.empty() && place >= removed_.front().place) return search(removed_);
  const auto after = std::upper_bound(removed_keys_.begin(), removed_keys_.end(), place);
  if (after == removed_keys_.begin()) return false;
  const auto number = static_cast<uint64_t>(after - removed_keys_.begin()) - 1;
  if (number != read_number_) {
    read_number_ = ~uint64_t{0};
    read_chunk_.resize(kChunk);
    files_.read(out_, number * kChunk * sizeof(NearCopyRow), read_chunk_.data(),
                kChunk * sizeof(NearCopyRow));
    read_number_ = number;
  }
  return search(read_chunk_);
}

void NearDecider::remove(const NearCopyRow& row) {
  ++num_removed;
  removed_.push_back(row);
  if (removed_.size() == kChunk) flush();
}

void NearDecider::flush() {
  if (removed_.empty()) return;
  const auto* bytes = reinterpret_cast<const char*>(removed_.data());
  size_t left = removed_.size() * sizeof(NearCopyRow);
  while (left > 0) {
    const ssize_t count = ::write(descriptor_, bytes, left);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), out_);
    bytes += count;
    left -= static_cast<size_t>(count);
  }
  removed_keys_.push_back(removed_.front().place);
  removed_.clear();
}

void NearDecider::finish() { flush(); }

}  // namespace lowtide
