#include "quality/classifier_training.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <system_error>

#include "corpus/text_hash.hpp"
#include "model/thread_pool.hpp"

namespace lowtide {
namespace {

constexpr uint64_t kPassageSeed = 4;
constexpr size_t kGroupPassages = 8;
constexpr size_t kMostWord = 255;
constexpr size_t kSlotBytes = 4;

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") + 1 - begin);
}

// The position near `wanted` to cut a text that is too long: at a newline, else at a blank.
size_t find_cut(std::string_view text, size_t wanted) {
  for (const char mark : {'\n', ' '}) {
    const size_t found = text.rfind(mark, wanted);
    if (found != std::string_view::npos && found > wanted / 2) return found + 1;
  }
  while (wanted > 1 && (text[wanted] & 0xC0) == 0x80) --wanted;
  return wanted;
}

void write_all(int file, const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = ::write(file, bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category());
    bytes += count;
    size -= static_cast<size_t>(count);
  }
}

// Consecutive texts; false if their ends decrease or exceed the text.
bool has_texts(std::string_view text, std::span<const uint64_t> ends) {
  uint64_t before = 0;
  for (const uint64_t end : ends) {
    if (end < before || end > text.size()) return false;
    before = end;
  }
  return true;
}

std::string_view text_at(std::string_view text, std::span<const uint64_t> ends, size_t at) {
  const uint64_t begin = at == 0 ? 0 : ends[at - 1];
  return text.substr(begin, ends[at] - begin);
}

}  // namespace

bool pick_passages(std::string_view text, std::span<const DocumentRow> documents, uint64_t num_good,
                   size_t passage_bytes, uint64_t limit_other, uint64_t limit_good,
                   std::vector<Passage>& rows, std::string& kept) {
  for (const DocumentRow& document : documents) {
    if (document.begin > document.end || document.end > text.size()) return false;
    std::string_view left = text.substr(document.begin, document.end - document.begin);
    const bool good = document.input_index < num_good;
    for (size_t number = 0; !left.empty(); ++number) {
      const size_t count = (left.size() + passage_bytes - 1) / passage_bytes;  // of even size
      const size_t end = count == 1 ? left.size() : find_cut(left, left.size() / count);
      const std::string_view passage = trim(left.substr(0, end));
      left.remove_prefix(end);
      const uint64_t hash = hash128(passage.data(), passage.size(), kPassageSeed).high;
      if (passage.empty() || hash > (good ? limit_good : limit_other)) continue;
      const uint64_t stretch[2] = {document.hash_high, number / kGroupPassages};
      const uint64_t group =
          hash128(reinterpret_cast<const char*>(stretch), sizeof stretch, kPassageSeed).high;
      rows.push_back({hash, group, static_cast<uint32_t>(passage.size()), good ? 1u : 0u});
      kept.append(passage);
    }
  }
  return true;
}

void WordList::add(std::string_view word, uint64_t count) {
  bytes.insert(bytes.end(), word.begin(), word.end());
  ends.push_back(bytes.size());
  counts.push_back(count);
}

WordCounter::WordCounter(uint32_t partition, uint32_t num_partitions, size_t table_bytes)
    : partition_(partition), num_partitions_(num_partitions), table_bytes_(table_bytes) {
  slots_.assign(1 << 12, 0);
}

bool WordCounter::add(std::string_view text, std::span<const uint64_t> ends) {
  if (!has_texts(text, ends)) return false;
  bool fits = true;
  for (size_t at = 0; at < ends.size() && fits; ++at) {
    split_fasttext(text_at(text, ends, at), [&](std::string_view word, bool is_end) {
      if (word.size() > kMostWord || (!is_end && word.starts_with(kFastTextLabel))) return;
      fits = fits && count(word);
    });
  }
  return fits;
}

bool WordCounter::count(std::string_view word) {
  const uint32_t hash = hash_fasttext(word);
  // The high bits choose the partition, the low ones the slot; mixed, because FNV's high bits are
  // weak.
  const uint32_t mixed = hash * 0x9E3779B1u;
  if ((uint64_t{mixed} * num_partitions_ >> 32) != partition_) return true;
  size_t at = hash & (slots_.size() - 1);
  for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
    const size_t id = slots_[at] - 1;
    if (hashes_[id] == hash && words_.word(id) == word) return ++words_.counts[id], true;
  }
  // Vectors grow by doubling, and need both sizes meanwhile.
  const size_t held = words_.bytes.size() + 20 * words_.size() + kSlotBytes * slots_.size();
  if (3 * held > table_bytes_) return false;
  words_.add(word, 1);
  hashes_.push_back(hash);
  slots_[at] = static_cast<uint32_t>(words_.size());
  if (3 * words_.size() > 2 * slots_.size()) grow();
  return true;
}

void WordCounter::grow() {
  slots_.assign(2 * slots_.size(), 0);
  for (size_t id = 0; id < hashes_.size(); ++id) {
    size_t at = hashes_[id] & (slots_.size() - 1);
    while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = static_cast<uint32_t>(id + 1);
  }
}

WordList WordCounter::list(uint64_t min_count) const {
  WordList found;
  for (size_t id = 0; id < words_.size(); ++id) {
    if (words_.counts[id] >= min_count || words_.word(id) == kFastTextEnd) {
      found.add(words_.word(id), words_.counts[id]);
    }
  }
  return found;
}

WordList choose_words(std::span<const WordList* const> lists, size_t most) {
  std::vector<std::pair<uint32_t, uint32_t>> places;  // list, word
  for (uint32_t list = 0; list < lists.size(); ++list) {
    for (uint32_t word = 0; word < lists[list]->size(); ++word) places.emplace_back(list, word);
  }
  const auto comes_first = [&](const auto& left, const auto& right) {
    const uint64_t a = lists[left.first]->counts[left.second];
    const uint64_t b = lists[right.first]->counts[right.second];
    if (a != b) return a > b;
    return lists[left.first]->word(left.second) < lists[right.first]->word(right.second);
  };
  std::sort(places.begin(), places.end(), comes_first);
  WordList chosen;
  for (const auto& [list, word] : places) {
    if (chosen.size() == most) break;
    chosen.add(lists[list]->word(word), lists[list]->counts[word]);
  }
  return chosen;
}

ClassifierTrainer::ClassifierTrainer(const WordList& words, const TrainingNumbers& numbers)
    : words_(words), numbers_(numbers) {
  model_.dim_ = 1;
  model_.word_ngrams_ = 2;
  model_.bucket_ = static_cast<int32_t>(numbers.bucket);
  model_.num_words_ = words.size();
  model_.word_bytes_ = words.bytes;
  if (words.bytes.size() > UINT32_MAX) {
    throw std::length_error("the words of the dictionary are more than 4 GiB");
  }
  model_.word_ends_.assign(words.ends.begin(), words.ends.end());
  model_.index_words();
  model_.labels_ = {"good", "other"};
  FastTextModel::Matrix& input = model_.input_;
  input.rows = words.size() + numbers.bucket;
  input.width = 1;
  input.dense.assign(input.rows, 0.0f);
  sums_.assign(input.rows, numbers.first_sum);
  gradients_.assign(input.rows, 0.0f);
  model_.output_.rows = 2;
  model_.output_.width = 1;
  model_.output_.dense = {1.0f, -1.0f};
}

void ClassifierTrainer::judge(std::string_view text, uint8_t label,
                              const std::array<float, 2>& weights, Task& task) {
  model_.list_rows(text, task.scratch, task.rows);
  double sum = 0;
  for (const uint32_t row : task.rows) sum += double{model_.input_.dense[row]};
  const auto count = static_cast<double>(task.rows.size());  // the end of the line is always there
  const double output = std::clamp(2 * sum / count, -30.0, 30.0);
  const double good = 1 / (1 + std::exp(-output));
  const double wanted = label != 0 ? good : 1 - good;
  const float weight = weights[label != 0 ? 1 : 0];
  task.loss -= double{weight} * std::log(std::max(wanted, 1e-12));
  const double error = good - (label != 0 ? 1.0 : 0.0);
  const auto gradient = static_cast<float>(double{weight} * error / count);
  for (const uint32_t row : task.rows) {
    task.changes[row / kLineRows % kPartitions].push_back({row, gradient});
  }
}

void ClassifierTrainer::change(size_t partition, size_t num_tasks, float rate, float num_examples) {
  for (size_t number = 0; number < num_tasks; ++number) {
    for (const auto& [row, gradient] : tasks_[number].changes[partition]) {
      gradients_[row] += gradient;
    }
  }
  // A row occurs as often as its words and pairs; its gradient is reset after the first time.
  for (size_t number = 0; number < num_tasks; ++number) {
    for (const auto& change : tasks_[number].changes[partition]) {
      const float gradient = std::exchange(gradients_[change.row], 0.0f) / num_examples;
      float& sum = sums_[change.row];
      sum += gradient * gradient;
      model_.input_.dense[change.row] -= rate * gradient / std::sqrt(sum);
    }
  }
}

double ClassifierTrainer::step(std::string_view text, std::span<const uint64_t> ends,
                               std::span<const uint8_t> labels, std::array<float, 2> weights,
                               float rate, size_t num_threads) {
  if (!has_texts(text, ends) || labels.size() != ends.size()) return -1;
  const size_t num_tasks = (ends.size() + kTaskExamples - 1) / kTaskExamples;
  if (tasks_.size() < num_tasks) tasks_.resize(num_tasks);
  run_blocks(num_tasks, 1, num_threads, [&](size_t first, size_t last) {
    for (size_t number = first; number < last; ++number) {
      Task& task = tasks_[number];
      task.loss = 0;
      for (auto& list : task.changes) list.clear();
      const size_t end = std::min(ends.size(), (number + 1) * kTaskExamples);
      for (size_t at = number * kTaskExamples; at < end; ++at) {
        judge(text_at(text, ends, at), labels[at], weights, task);
      }
    }
  });
  run_blocks(kPartitions, 1, num_threads, [&](size_t first, size_t last) {
    for (size_t partition = first; partition < last; ++partition) {
      change(partition, num_tasks, rate, static_cast<float>(ends.size()));
    }
  });
  double loss = 0;
  for (size_t number = 0; number < num_tasks; ++number) loss += tasks_[number].loss;
  return loss;
}

std::vector<float> ClassifierTrainer::score(std::string_view text, std::span<const uint64_t> ends,
                                            size_t num_threads) const {
  std::vector<float> found(ends.size(), 0.0f);
  if (!has_texts(text, ends)) return {};
  run_blocks(ends.size(), kTaskExamples, num_threads, [&](size_t first, size_t last) {
    FastTextModel::Scratch scratch;
    std::vector<float> scores;
    for (size_t at = first; at < last; ++at) {
      model_.predict(text_at(text, ends, at), scratch, scores);
      found[at] = scores[0];
    }
  });
  return found;
}

void ClassifierTrainer::write(int file, std::array<uint64_t, 2> label_counts) const {
  std::string bytes;
  const auto put = [&](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto flush = [&] {
    write_all(file, bytes.data(), bytes.size());
    bytes.clear();
  };
  put(int32_t{793712314});
  put(int32_t{12});
  // dim ws epoch minCount neg wordNgrams loss(softmax) model(supervised) bucket minn maxn, lrUpdateRate
  for (const uint32_t number : {1u, 5u, numbers_.epochs, numbers_.min_count, 5u, 2u, 3u, 3u,
                                numbers_.bucket, 0u, 0u, 100u}) {
    put(static_cast<int32_t>(number));
  }
  put(double{1e-4});
  put(static_cast<int32_t>(words_.size() + 2));
  put(static_cast<int32_t>(words_.size()));
  put(int32_t{2});
  put(static_cast<int64_t>(std::accumulate(words_.counts.begin(), words_.counts.end(),
                                           label_counts[0] + label_counts[1])));
  put(int64_t{-1});
  const auto put_entry = [&](std::string_view word, uint64_t count, int8_t type) {
    bytes.append(word).push_back(0);
    put(static_cast<int64_t>(count));
    put(type);
    if (bytes.size() > 1 << 20) flush();
  };
  for (size_t at = 0; at < words_.size(); ++at) put_entry(words_.word(at), words_.counts[at], 0);
  for (size_t label = 0; label < 2; ++label) {
    put_entry(std::string(kFastTextLabel) + model_.labels_[label], label_counts[label], 1);
  }
  put(uint8_t{0});
  put(static_cast<int64_t>(model_.input_.rows));
  put(int64_t{1});
  flush();
  write_all(file, model_.input_.dense.data(), 4 * model_.input_.dense.size());
  put(uint8_t{0});
  put(int64_t{2});
  put(int64_t{1});
  for (const float value : model_.output_.dense) put(value);
  flush();
}

}  // namespace lowtide
