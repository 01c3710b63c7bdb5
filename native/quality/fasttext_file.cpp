// Reading a fastText model: every size is checked against the file's size.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "quality/fasttext_model.hpp"
#include "text/code_points.hpp"

namespace lowtide {
namespace {

constexpr int32_t kMagic = 793712314;
constexpr size_t kMostWord = 1 << 16;
constexpr int32_t kMostNgram = 100;
constexpr uint64_t kChunkBytes = 1 << 20;

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

class ModelReader {
 public:
  ModelReader(const std::string& path, FastTextModel& model) : model_(model) {
    file_.reset(std::fopen(path.c_str(), "rb"));
    if (!file_) throw ModelError("it cannot be opened");
    if (::fseeko(file_.get(), 0, SEEK_END) != 0) throw ModelError("its size is not known");
    const off_t size = ::ftello(file_.get());
    left_ = size < 0 ? 0 : static_cast<uint64_t>(size);
    ::rewind(file_.get());
  }

  void read() {
    read_arguments();
    read_dictionary();
    const bool quantized = value<uint8_t>("the kind of its input") != 0;
    read_matrix(model_.input_, quantized, true);
    const bool quantized_output = value<uint8_t>("the kind of its output") != 0;
    read_matrix(model_.output_, quantized && quantized_output, false);
    if (left_ != 0) throw ModelError("it has " + std::to_string(left_) + " bytes after its end");
    check();
    if (model_.loss_ == FastTextModel::kHierarchical) model_.build_tree(label_counts_);
  }

 private:
  void take(void* out, uint64_t size, const char* what) {
    if (size > left_ || std::fread(out, 1, size, file_.get()) != size) {
      throw ModelError(std::string("it ends within ") + what);
    }
    left_ -= size;
  }

  template <typename T>
  T value(const char* what) {
    T number;
    take(&number, sizeof number, what);
    return number;
  }

  template <typename T, typename Allocator>
  void take_many(std::vector<T, Allocator>& out, uint64_t count, const char* what) {
    if (count > left_ / sizeof(T)) throw ModelError(std::string("it ends within ") + what);
    out.resize(count);
    take(out.data(), count * sizeof(T), what);
  }

  void read_arguments() {
    if (left_ < 8 || value<int32_t>("its mark") != kMagic) {
      throw ModelError("it is no model of fastText (its first four bytes are others)");
    }
    const auto version = value<int32_t>("its version");
    if (version != 11 && version != 12) {
      throw ModelError("its version is " + std::to_string(version) + ", expected 11 or 12");
    }
    int32_t numbers[12];
    for (int32_t& number : numbers) number = value<int32_t>("its settings");
    value<double>("its settings");
    model_.dim_ = numbers[0];
    model_.word_ngrams_ = numbers[5];
    const int32_t loss = numbers[6], kind = numbers[7];
    model_.bucket_ = numbers[8];
    model_.min_n_ = numbers[9];
    model_.max_n_ = version == 11 && kind == 3 ? 0 : numbers[10];
    if (kind != 3) throw ModelError("it gives vectors of words, not labels of texts");
    if (loss < 1 || loss > 4) throw ModelError("its loss is " + std::to_string(loss));
    model_.loss_ = static_cast<FastTextModel::Loss>(loss);
    if (model_.dim_ < 1 || model_.bucket_ < 0 || model_.word_ngrams_ < 0 || model_.min_n_ < 0) {
      throw ModelError("its settings have negative numbers");
    }
    if (model_.max_n_ > kMostNgram || model_.word_ngrams_ > kMostNgram) {
      throw ModelError("its n-grams have more than 100 parts");
    }
    const bool needs_buckets = model_.max_n_ > 0 || model_.word_ngrams_ > 1;
    if (needs_buckets && model_.bucket_ == 0) throw ModelError("it has n-grams but no buckets");
  }

  void read_dictionary() {
    const auto size = value<int32_t>("its dictionary");
    const auto words = value<int32_t>("its dictionary");
    const auto labels = value<int32_t>("its dictionary");
    value<int64_t>("its dictionary");
    const auto pruned = value<int64_t>("its dictionary");
    if (size < 0 || words < 0 || labels < 1 || size != int64_t{words} + labels) {
      throw ModelError("it has " + std::to_string(words) + " words and " + std::to_string(labels) +
                       " labels, but " + std::to_string(size) + " entries");
    }
    model_.num_words_ = static_cast<uint64_t>(words);
    std::string text;
    for (int32_t entry = 0; entry < size; ++entry) read_entry(text, entry >= words);
    model_.index_words();
    if (pruned < -1) throw ModelError("its list of n-grams is negative");
    model_.pruned_ = pruned >= 0;
    if (pruned > 0 && static_cast<uint64_t>(pruned) > left_ / 8) {
      throw ModelError("it ends within its list of n-grams");
    }
    for (int64_t row = 0; row < pruned; ++row) {
      const auto bucket = value<int32_t>("its list of n-grams");
      const auto place = value<int32_t>("its list of n-grams");
      if (bucket < 0 || place < 0) throw ModelError("its list of n-grams has negative numbers");
      model_.kept_buckets_.emplace_back(bucket, place);
      most_row_ = std::max(most_row_, static_cast<uint64_t>(place) + 1);
    }
    model_.index_buckets();
  }

  void read_entry(std::string& text, bool is_label) {
    text.clear();
    for (;;) {
      const auto byte = value<char>("its dictionary");
      if (byte == 0) break;
      text.push_back(byte);
      if (text.size() > kMostWord) throw ModelError("a word of its dictionary does not end");
    }
    const auto count = value<int64_t>("its dictionary");
    const auto type = value<int8_t>("its dictionary");
    if (type != (is_label ? 1 : 0))
      throw ModelError("words and labels of its dictionary are mixed");
    if (is_label) {
      for (size_t at = 0; at < text.size();) {
        const Decoded next =
            decode_utf8(reinterpret_cast<const unsigned char*>(text.data()) + at, text.size() - at);
        if (!next.valid) throw ModelError("a label of it is not text in UTF-8");
        at += next.size;
      }
      // Tree nodes that are not built yet have the largest count, so those of labels must be
      // smaller.
      if (count < 0 || count >= FastTextModel::kMostCount - counted_)
        throw ModelError("the counts of its labels are none");
      counted_ += count;
      label_counts_.push_back(count);
      model_.labels_.push_back(text.starts_with(kFastTextLabel) ? text.substr(kFastTextLabel.size())
                                                                : text);
    } else {
      model_.word_bytes_.insert(model_.word_bytes_.end(), text.begin(), text.end());
      if (model_.word_bytes_.size() > 0xFFFFFFFFu) throw ModelError("its words are too long");
      model_.word_ends_.push_back(static_cast<uint32_t>(model_.word_bytes_.size()));
    }
  }

  void read_quantizer(FastTextModel::Quantizer& quantizer, uint64_t width) {
    quantizer.dim = value<int32_t>("a quantizer");
    quantizer.parts = value<int32_t>("a quantizer");
    quantizer.part_size = value<int32_t>("a quantizer");
    quantizer.last_size = value<int32_t>("a quantizer");
    const int64_t covered =
        int64_t{quantizer.parts - 1} * quantizer.part_size + quantizer.last_size;
    if (quantizer.dim < 1 || quantizer.parts < 1 || quantizer.part_size < 1 ||
        quantizer.last_size < 1 || quantizer.last_size > quantizer.part_size ||
        covered != quantizer.dim || static_cast<uint64_t>(quantizer.dim) != width) {
      throw ModelError("the parts of a quantizer do not make its rows");
    }
    take_many(quantizer.centroids, uint64_t{256} * static_cast<uint64_t>(quantizer.dim),
              "a quantizer");
  }

  void read_matrix(FastTextModel::Matrix& matrix, bool quantized, bool is_input) {
    const char* const what = is_input ? "its input" : "its output";
    const bool has_norms = quantized && value<uint8_t>(what) != 0;
    const auto rows = value<int64_t>(what);
    const auto width = value<int64_t>(what);
    if (rows < 1 || width != model_.dim_) {
      throw ModelError(std::string(what) + " has " + std::to_string(rows) + " rows of " +
                       std::to_string(width) + ", expected rows of " + std::to_string(model_.dim_));
    }
    matrix.rows = static_cast<uint64_t>(rows);
    matrix.width = static_cast<uint64_t>(width);
    if (!quantized) {
      if (matrix.rows > left_ / 4 / matrix.width)
        throw ModelError(std::string("it ends within ") + what);
      if (is_input) return note_input(matrix);
      return take_many(matrix.dense, matrix.rows * matrix.width, what);
    }
    const auto codes = value<int32_t>(what);
    if (codes < 0) throw ModelError(std::string(what) + " has a negative number of codes");
    take_many(matrix.codes, static_cast<uint64_t>(codes), what);
    read_quantizer(matrix.parts, matrix.width);
    if (static_cast<uint64_t>(codes) != matrix.rows * static_cast<uint64_t>(matrix.parts.parts)) {
      throw ModelError(std::string(what) + " has " + std::to_string(codes) + " codes for " +
                       std::to_string(rows) + " rows");
    }
    if (!has_norms) return;
    take_many(matrix.norm_codes, matrix.rows, what);
    read_quantizer(matrix.norms, 1);
  }

  // The rows of a dense input are kept until the output is read, because they may be multiplied
  // with it.
  void note_input(FastTextModel::Matrix& matrix) {
    const off_t here = ::ftello(file_.get());
    const uint64_t bytes = matrix.rows * matrix.width * 4;
    if (::fseeko(file_.get(), static_cast<off_t>(bytes), SEEK_CUR) != 0)
      throw ModelError("it cannot be read");
    left_ -= bytes;
    input_at_ = here;
    waits_ = true;
  }

  void check() {
    const uint64_t labels = model_.labels_.size();
    if (model_.output_.rows != labels) {
      throw ModelError("its output has " + std::to_string(model_.output_.rows) + " rows for " +
                       std::to_string(labels) + " labels");
    }
    const bool uses_buckets = model_.max_n_ > 0 || model_.word_ngrams_ > 1;
    const uint64_t more = model_.pruned_ ? most_row_
                          : uses_buckets ? static_cast<uint64_t>(model_.bucket_)
                                         : 0;
    if (model_.num_words_ + more > model_.input_.rows) {
      throw ModelError("its input has " + std::to_string(model_.input_.rows) +
                       " rows, its words and n-grams name " +
                       std::to_string(model_.num_words_ + more));
    }
    if (waits_) read_input();
    model_.input_.expand_small();
    model_.order_rows();
  }

  void read_input() {
    FastTextModel::Matrix& input = model_.input_;
    const size_t labels = model_.labels_.size(), dim = input.width;
    const bool fold = model_.loss_ != FastTextModel::kHierarchical && 2 * labels <= dim &&
                      !model_.output_.dense.empty();
    if (::fseeko(file_.get(), input_at_, SEEK_SET) != 0) throw ModelError("it cannot be read");
    const size_t step = std::max<size_t>(kChunkBytes / 4 / dim, 1);
    std::vector<float> chunk(step * dim);
    input.dense.reserve(input.rows * (fold ? labels : dim));
    for (uint64_t row = 0; row < input.rows; row += step) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>(step, input.rows - row));
      if (std::fread(chunk.data(), 4 * dim, count, file_.get()) != count)
        throw ModelError("it cannot be read");
      if (!fold) {
        input.dense.insert(input.dense.end(), chunk.begin(),
                           chunk.begin() + static_cast<ptrdiff_t>(count * dim));
        continue;
      }
      for (size_t at = 0; at < count; ++at) {
        for (size_t label = 0; label < labels; ++label) {
          double sum = 0;
          for (size_t place = 0; place < dim; ++place) {
            sum +=
                double{chunk[at * dim + place]} * double{model_.output_.dense[label * dim + place]};
          }
          input.dense.push_back(static_cast<float>(sum));
        }
      }
    }
    if (!fold) return;
    model_.folded_ = true;
    input.width = labels;
    LineVector<float>().swap(model_.output_.dense);
  }

  FastTextModel& model_;
  std::unique_ptr<std::FILE, Closer> file_;
  uint64_t left_ = 0, most_row_ = 0;
  off_t input_at_ = 0;
  bool waits_ = false;
  std::vector<int64_t> label_counts_;
  int64_t counted_ = 0;
};

FastTextModel::FastTextModel(const std::string& path) { ModelReader(path, *this).read(); }

}  // namespace lowtide
