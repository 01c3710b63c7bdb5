#include "quality/fasttext_model.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

namespace lowtide {
namespace {

constexpr float kTiny = 1e-5f;
constexpr uint64_t kMostExpanded = 2 << 20;  // numbers of a matrix: 8 MiB

constexpr size_t kSumsWorth = 16 << 10;  // bytes of text before sums of words are cached

constexpr uint32_t kFirstHash = 2166136261u;
uint32_t hash_byte(uint32_t hash, char byte) {
  return (hash ^ static_cast<uint32_t>(static_cast<int8_t>(byte))) * 16777619u;
}

// Rows that were prefetched, to be added later in order.
class WaitingRows {
 public:
  // Returns true if it is now full.
  bool add(uint64_t row) {
    rows_[count_++] = row;
    return count_ == rows_.size();
  }
  std::span<const uint64_t> get() const { return {rows_.data(), count_}; }
  // Clears the rows; returns their number.
  size_t take() { return std::exchange(count_, 0); }

 private:
  std::array<uint64_t, 64> rows_;
  size_t count_ = 0;
};

// As in fastText: a table of 512 steps.
float look_up_sigmoid(float value) {
  static const std::array<float, 513> table = [] {
    std::array<float, 513> made{};
    for (int at = 0; at <= 512; ++at) {
      const float x = static_cast<float>(at * 16) / 512.0f - 8.0f;
      made[static_cast<size_t>(at)] =
          static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(x))));
    }
    return made;
  }();
  if (!(value >= -8.0f)) return 0.0f;  // also for NaN
  if (value > 8.0f) return 1.0f;
  return table[static_cast<size_t>((value + 8.0f) * 512.0f / 8.0f / 2.0f)];
}

}  // namespace

uint32_t hash_fasttext(std::string_view bytes) {
  uint32_t hash = kFirstHash;
  for (const char byte : bytes) hash = hash_byte(hash, byte);
  return hash;
}

void FastTextModel::Quantizer::add(const uint8_t* codes, float factor, float* out) const {
  for (int32_t part = 0; part < parts; ++part) {
    const int32_t size = part + 1 == parts ? last_size : part_size;
    const float* centroid =
        centroids.data() +
        size_t{256} * static_cast<size_t>(part) * static_cast<size_t>(part_size) +
        size_t{codes[part]} * static_cast<size_t>(size);
    for (int32_t at = 0; at < size; ++at) out[part * part_size + at] += factor * centroid[at];
  }
}

void FastTextModel::Matrix::add_row(uint64_t row, float* out) const {
  if (codes.empty()) {
    const float* values = dense.data() + row * width;
    for (uint64_t at = 0; at < width; ++at) out[at] += values[at];
    return;
  }
  const float factor = norm_codes.empty() ? 1.0f : norms.centroids[norm_codes[row]];
  parts.add(codes.data() + row * static_cast<uint64_t>(parts.parts), factor, out);
}

void FastTextModel::Matrix::expand_small() {
  if (codes.empty() || rows > kMostExpanded / width) return;
  LineVector<float> expanded(rows * width, 0.0f);
  for (uint64_t row = 0; row < rows; ++row) add_row(row, expanded.data() + row * width);
  dense.swap(expanded);
  std::vector<uint8_t>().swap(codes);
  std::vector<uint8_t>().swap(norm_codes);
}

size_t FastTextModel::memory_bytes() const {
  const auto of = [](const Matrix& matrix) {
    return 4 * (matrix.dense.size() + matrix.parts.centroids.size()) + matrix.codes.size() +
           matrix.norm_codes.size();
  };
  return of(input_) + of(output_) + word_bytes_.size() +
         4 * (word_ends_.size() + word_slots_.size() + kept_before_.size()) +
         8 * (kept_buckets_.size() + kept_bits_.size());
}

int64_t FastTextModel::find_word(std::string_view word, uint32_t hash) const {
  const size_t slots = word_slots_.size();
  for (size_t at = hash & (slots - 1); word_slots_[at] != 0; at = (at + 1) & (slots - 1)) {
    const size_t id = word_slots_[at] - 1;
    const size_t begin = id == 0 ? 0 : word_ends_[id - 1];
    if (word == std::string_view(word_bytes_.data() + begin, word_ends_[id] - begin)) {
      return static_cast<int64_t>(id);
    }
  }
  return -1;
}

template <typename Take>
void FastTextModel::visit_bucket(uint64_t bucket, const Take& take) const {
  uint64_t row = bucket;
  if (!kept_bits_.empty()) {
    const uint64_t bits = kept_bits_[bucket >> 6], bit = uint64_t{1} << (bucket & 63);
    if ((bits & bit) == 0) return;
    const auto before = static_cast<size_t>(std::popcount(bits & (bit - 1)));
    row = kept_before_[bucket >> 6] + before;
    if (!kept_buckets_.empty()) row = kept_buckets_[row].second;
  } else if (pruned_) {
    const auto found =
        std::lower_bound(kept_buckets_.begin(), kept_buckets_.end(),
                         std::pair<uint32_t, uint32_t>(static_cast<uint32_t>(bucket), 0));
    if (found == kept_buckets_.end() || found->first != bucket) return;
    row = found->second;
  }
  take(num_words_ + row);
}

void FastTextModel::list_pieces(std::string_view word, Scratch& scratch) const {
  std::string& marked = scratch.word;
  marked.assign(1, '<').append(word).push_back('>');
  const size_t size = marked.size();
  const auto count = static_cast<uint32_t>(bucket_);
  std::vector<uint32_t>& buckets = scratch.buckets;
  buckets.resize(size * static_cast<size_t>(max_n_));
  size_t found = 0;
  for (size_t begin = 0; begin < size; ++begin) {
    if ((marked[begin] & 0xC0) == 0x80) continue;
    size_t end = begin;
    uint32_t hash = kFirstHash;
    for (int32_t n = 1; end < size && n <= max_n_; ++n) {
      hash = hash_byte(hash, marked[end++]);
      while (end < size && (marked[end] & 0xC0) == 0x80) hash = hash_byte(hash, marked[end++]);
      if (n < min_n_ || (n == 1 && (begin == 0 || end == size))) continue;
      buckets[found++] = hash % count;
    }
  }
  // About half of the n-grams were pruned from a model, unpredictably, so there is no branch on it.
  if (!kept_bits_.empty()) {
    size_t kept = 0;
    for (size_t at = 0; at < found; ++at) {
      const uint32_t bucket = buckets[at];
      buckets[kept] = bucket;
      kept += kept_bits_[bucket >> 6] >> (bucket & 63) & 1;
    }
    found = kept;
  }
  buckets.resize(found);
}

template <typename Take>
void FastTextModel::visit_word(std::string_view word, bool is_end, Scratch& scratch,
                               const Take& take) const {
  const uint32_t hash = hash_fasttext(word);
  const int64_t id = find_word(word, hash);
  if (id < 0 && word.starts_with(kFastTextLabel)) return;
  if (id >= 0) take(static_cast<uint64_t>(id));
  if (max_n_ > 0 && !is_end) {
    list_pieces(word, scratch);
    for (const uint32_t bucket : scratch.buckets) visit_bucket(bucket, take);
  }
  scratch.hashes.push_back(static_cast<int32_t>(hash));
}

template <typename Take>
void FastTextModel::visit_text(std::string_view text, Scratch& scratch, const Take& take) const {
  scratch.hashes.clear();
  split_fasttext(
      text, [&](std::string_view word, bool is_end) { visit_word(word, is_end, scratch, take); });
  visit_ngrams(scratch.hashes, take);
}

template <typename Take>
void FastTextModel::visit_ngrams(const std::vector<int32_t>& hashes, const Take& take) const {
  for (size_t first = 0; first < hashes.size(); ++first) {
    uint64_t hash = static_cast<uint64_t>(int64_t{hashes[first]});
    for (size_t next = first + 1;
         next < hashes.size() && next < first + static_cast<size_t>(word_ngrams_); ++next) {
      hash = hash * 116049371u + static_cast<uint64_t>(int64_t{hashes[next]});
      visit_bucket(hash % static_cast<uint64_t>(bucket_), take);
    }
  }
}

uint32_t FastTextModel::add_rows(const Scratch::Word& word, Scratch& scratch, float* values) const {
  size_t count = 0;
  WaitingRows rows;
  const auto add_all = [&] {
    for (const uint64_t row : rows.get()) input_.add_row(row, values);
    count += rows.take();
  };
  visit_word(word.text, word.is_end, scratch, [&](uint64_t row) {
    if (input_.codes.empty()) __builtin_prefetch(input_.dense.data() + row * input_.width);
    if (rows.add(row)) add_all();
  });
  add_all();
  return static_cast<uint32_t>(count);
}

void FastTextModel::add_word(const Scratch::Word& word, Scratch& scratch) const {
  const size_t width = input_.width;
  WordSums::Sum here, *sum = &here;
  float* values = scratch.word_values.data();
  if (word.is_kept && scratch.sums.find(word.key, sum)) {
    values = sum->values();
    if (word_ngrams_ > 1) scratch.hashes.push_back(static_cast<int32_t>(sum->hash));
  } else {
    if (word.is_kept)
      values = sum->values();
    else
      std::fill_n(values, width, 0.0f);
    sum->num_rows = add_rows(word, scratch, values);
    if (word.is_kept) sum->hash = static_cast<uint32_t>(scratch.hashes.back());
  }
  for (size_t at = 0; at < width; ++at) scratch.hidden[at] += values[at];
  scratch.num_rows += sum->num_rows;
}

void FastTextModel::add_words(std::string_view text, Scratch& scratch) const {
  scratch.text_bytes += text.size();
  if (scratch.sums_of != this && scratch.text_bytes >= kSumsWorth) {
    scratch.sums.reset(input_.width);
    scratch.sums_of = this;
  }
  const bool keeps_sums = scratch.sums_of == this;
  const char* const end = text.data() + text.size();
  scratch.word_values.resize(input_.width);
  scratch.hashes.clear();
  std::array<Scratch::Word, 16> words;  // their sums are being prefetched
  size_t count = 0;
  split_fasttext(text, [&](std::string_view word, bool is_end) {
    Scratch::Word& next = words[count++];
    next.text = word;
    next.is_end = is_end;
    // A word that may be a label is looked up every time, because labels are ignored.
    next.is_kept = keeps_sums && !is_end && word.size() <= WordSums::kLongestWord &&
                   word.front() != kFastTextLabel.front();
    if (next.is_kept) {
      next.key = scratch.sums.locate(word, static_cast<size_t>(end - word.data()));
    }
    if (count < words.size() && !is_end) return;
    for (size_t at = 0; at < count; ++at) add_word(words[at], scratch);
    count = 0;
  });
}

// Two labels, folded: the sums stay in registers while prefetched rows are added.
void FastTextModel::add_pairs(std::string_view text, Scratch& scratch) const {
  const float* const dense = input_.dense.data();
  std::array<float, 2> sums{};
  scratch.num_rows = 0;
  WaitingRows rows;
  const auto add_all = [&] {
    float first = sums[0], second = sums[1];
    for (const uint64_t row : rows.get()) {
      first += dense[2 * row];
      second += dense[2 * row + 1];
    }
    sums = {first, second};
    scratch.num_rows += rows.take();
  };
  visit_text(text, scratch, [&](uint64_t row) {
    __builtin_prefetch(dense + 2 * row);
    if (rows.add(row)) add_all();
  });
  add_all();
  scratch.hidden.assign(sums.begin(), sums.end());
}

void FastTextModel::add_text(std::string_view text, Scratch& scratch) const {
  scratch.hidden.assign(input_.width, 0.0f);
  scratch.num_rows = 0;
  const auto take = [&](uint64_t row) {
    input_.add_row(row, scratch.hidden.data());
    ++scratch.num_rows;
  };
  if (max_n_ <= 0 && input_.width == 2 && input_.codes.empty()) return add_pairs(text, scratch);
  if (max_n_ <= 0) return visit_text(text, scratch, take);
  add_words(text, scratch);
  visit_ngrams(scratch.hashes, take);
}

void FastTextModel::list_rows(std::string_view text, Scratch& scratch,
                              std::vector<uint32_t>& rows) const {
  rows.clear();
  visit_text(text, scratch, [&](uint64_t row) { rows.push_back(static_cast<uint32_t>(row)); });
}

void FastTextModel::compute_outputs(Scratch& scratch) const {
  std::vector<float>& hidden = scratch.hidden;
  const float factor = static_cast<float>(1.0 / static_cast<double>(scratch.num_rows));
  for (float& value : hidden) value *= factor;
  if (folded_) {
    scratch.outputs = hidden;
    return;
  }
  scratch.outputs.assign(labels_.size(), 0.0f);
  std::vector<float> row(output_.width);
  for (size_t label = 0; label < labels_.size(); ++label) {
    std::fill(row.begin(), row.end(), 0.0f);
    output_.add_row(label, row.data());
    float sum = 0;
    for (size_t at = 0; at < row.size(); ++at) sum += hidden[at] * row[at];
    scratch.outputs[label] = sum;
  }
}

void FastTextModel::build_tree(const std::vector<int64_t>& counts) {
  const auto size = static_cast<int32_t>(counts.size());
  tree_.assign(static_cast<size_t>(2 * size - 1), {});
  for (size_t at = 0; at < tree_.size(); ++at) {
    tree_[at].count = at < counts.size() ? counts[at] : kMostCount;
  }
  int32_t leaf = size - 1, node = size;
  for (int32_t at = size; at < 2 * size - 1; ++at) {
    int32_t least[2];
    for (int32_t& place : least) {
      const bool takes_leaf = leaf >= 0 && tree_[static_cast<size_t>(leaf)].count <
                                               tree_[static_cast<size_t>(node)].count;
      place = takes_leaf ? leaf-- : node++;
    }
    Node& made = tree_[static_cast<size_t>(at)];
    made.left = least[0], made.right = least[1];
    made.count =
        tree_[static_cast<size_t>(least[0])].count + tree_[static_cast<size_t>(least[1])].count;
  }
}

// Children are stored before their parents, so one loop from the last node down computes all
// scores.
void FastTextModel::walk_tree(const std::vector<float>& outputs, std::vector<float>& scores) const {
  const size_t size = labels_.size();
  std::vector<float> reached(tree_.size(), 0.0f);
  for (size_t at = tree_.size(); at-- > size;) {
    const float f =
        static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(outputs[at - size]))));
    reached[static_cast<size_t>(tree_[at].left)] = reached[at] + std::log(1.0f - f + kTiny);
    reached[static_cast<size_t>(tree_[at].right)] = reached[at] + std::log(f + kTiny);
  }
  for (size_t label = 0; label < size; ++label) scores[label] = std::exp(reached[label]);
}

void FastTextModel::predict(std::string_view text, Scratch& scratch,
                            std::vector<float>& scores) const {
  scores.assign(labels_.size(), 0.0f);
  add_text(text, scratch);
  if (scratch.num_rows == 0) return;
  compute_outputs(scratch);
  if (loss_ == kHierarchical) return walk_tree(scratch.outputs, scores);
  if (loss_ == kSoftmax) {
    const float most = *std::max_element(scratch.outputs.begin(), scratch.outputs.end());
    float sum = 0;
    for (float& value : scratch.outputs) sum += value = std::exp(value - most);
    for (size_t label = 0; label < scores.size(); ++label) {
      scores[label] = scratch.outputs[label] / sum + kTiny;
    }
    return;
  }
  for (size_t label = 0; label < scores.size(); ++label) {
    scores[label] = look_up_sigmoid(scratch.outputs[label]) + kTiny;
  }
}

}  // namespace lowtide
