// The rows of words and n-grams in a fastText model.
#include <algorithm>
#include <bit>
#include <utility>

#include "quality/fasttext_model.hpp"

namespace lowtide {
namespace {

constexpr int32_t kMostMarked = 1 << 26;  // buckets that have a bit each: 12 MiB at most

}  // namespace

void FastTextModel::index_words() {
  const size_t words = word_ends_.size();
  const size_t slots = std::bit_ceil(words + words / 2 + 1);
  word_slots_.assign(slots, 0);
  for (size_t word = 0; word < words; ++word) {
    const size_t begin = word == 0 ? 0 : word_ends_[word - 1];
    const std::string_view text(word_bytes_.data() + begin, word_ends_[word] - begin);
    size_t at = hash_fasttext(text) & (slots - 1);
    while (word_slots_[at] != 0) at = (at + 1) & (slots - 1);
    word_slots_[at] = static_cast<uint32_t>(word + 1);
  }
}

void FastTextModel::index_buckets() {
  std::sort(kept_buckets_.begin(), kept_buckets_.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  kept_buckets_.erase(std::unique(kept_buckets_.begin(), kept_buckets_.end(), same),
                      kept_buckets_.end());
  if (!pruned_ || bucket_ < 1 || bucket_ > kMostMarked) return;
  kept_bits_.assign(static_cast<size_t>(bucket_) / 64 + 1, 0);
  for (const auto& [bucket, row] : kept_buckets_) {
    if (bucket < static_cast<uint32_t>(bucket_))
      kept_bits_[bucket >> 6] |= uint64_t{1} << (bucket & 63);
  }
  uint32_t before = 0;
  for (const uint64_t bits : kept_bits_) {
    kept_before_.push_back(before);
    before += static_cast<uint32_t>(std::popcount(bits));
  }
}

void FastTextModel::order_rows() {
  const size_t count = kept_buckets_.size(), width = input_.width;
  if (kept_bits_.empty() || !input_.codes.empty() || num_words_ + count != input_.rows) return;
  std::vector<bool> met(count);
  for (const auto& [bucket, row] : kept_buckets_) {
    if (bucket >= static_cast<uint32_t>(bucket_) || row >= count || met[row]) return;
    met[row] = true;
  }
  LineVector<float> ordered;
  ordered.reserve(input_.dense.size());
  const auto begin = input_.dense.begin() + static_cast<ptrdiff_t>(num_words_ * width);
  ordered.assign(input_.dense.begin(), begin);
  for (const auto& [bucket, row] : kept_buckets_) {
    const auto first = begin + static_cast<ptrdiff_t>(row * width);
    ordered.insert(ordered.end(), first, first + static_cast<ptrdiff_t>(width));
  }
  input_.dense.swap(ordered);
  std::vector<std::pair<uint32_t, uint32_t>>().swap(kept_buckets_);
}

}  // namespace lowtide
