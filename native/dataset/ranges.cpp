#include "dataset/ranges.hpp"

#include <sys/resource.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "dataset/page_sums.hpp"
#include "dataset/work_index.hpp"
#include "system/threads.hpp"

namespace lowtide {

namespace {
constexpr uint64_t kMostTokens = uint64_t{1} << 60;
}  // namespace

RangeCounter::RangeCounter(std::vector<uint64_t> bounds, uint64_t val_limit)
    : bounds_(std::move(bounds)), val_limit_(val_limit) {
  if (bounds_.empty() || !std::is_sorted(bounds_.begin(), bounds_.end())) {
    throw std::invalid_argument("ranges begin at keys in order, and there is at least one");
  }
  for (std::vector<int64_t>& split : tokens) split.resize(bounds_.size());
  rows.resize(bounds_.size());
}

void RangeCounter::add(std::span<const EncodedRow> index) {
  size_t range = 0;
  for (const EncodedRow& row : index) {
    if (range + 1 < bounds_.size() && row.key >= bounds_[range + 1]) {
      const auto after = std::upper_bound(bounds_.begin(), bounds_.end(), row.key);
      range = static_cast<size_t>(after - bounds_.begin()) - 1;
    }
    const bool val = row.split < val_limit_;
    int64_t& count = tokens[val][range];
    if (row.tokens > kMostTokens - static_cast<uint64_t>(count)) {
      throw std::invalid_argument("an index of encoded documents is damaged");
    }
    count += static_cast<int64_t>(row.tokens);
    ++rows[range];
    ++documents[val];
  }
}

void RangeCounter::add_files(const std::vector<std::string>& names, size_t num_threads) {
  std::mutex mutex;
  visit_indexes(names, num_threads, [&](size_t, const WorkIndex& work) {
    const std::vector<EncodedRow> index = work.read();
    const std::lock_guard hold(mutex);
    add(index);
  });
}

std::vector<int64_t> RangeCounter::row_ends() const {
  std::vector<int64_t> ends(rows.size());
  std::partial_sum(rows.begin(), rows.end(), ends.begin());
  return ends;
}

std::vector<int64_t> RangeCounter::token_ends() const {
  std::vector<int64_t> ends(rows.size());
  int64_t total = 0;
  for (size_t range = 0; range < ends.size(); ++range) {
    ends[range] = total += tokens[0][range] + tokens[1][range];
  }
  return ends;
}

std::vector<EncodedRow> sort_rows(std::span<const EncodedRow> rows, uint64_t low, uint64_t high) {
  std::vector<EncodedRow> chosen;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(chosen),
               [&](const EncodedRow& row) { return row.key >= low && row.key <= high; });
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const EncodedRow& a, const EncodedRow& b) { return a.key < b.key; });
  return chosen;
}

bool RangeRows::add_rows(uint32_t file, std::span<const EncodedRow> index, uint64_t at,
                         uint64_t id_bytes, uint64_t low, uint64_t high, Chosen chosen,
                         uint64_t val_limit) {
  const size_t before = rows.size();
  for (const EncodedRow& row : index) {
    const bool val = row.split < val_limit;
    if (row.key >= low && row.key <= high &&
        (chosen == Chosen::kAll || (chosen == Chosen::kVal) == val)) {
      rows.push_back({row.key, at, row.tokens, file, static_cast<uint32_t>(row.ends)});
    }
    at += row.tokens * id_bytes;
  }
  return rows.size() > before;
}

void RangeRows::add(const std::string& path, std::span<const EncodedRow> index, uint64_t ids_at,
                    uint64_t id_bytes, uint64_t low, uint64_t high, Chosen chosen,
                    uint64_t val_limit) {
  const auto file = static_cast<uint32_t>(paths.size());
  if (add_rows(file, index, ids_at, id_bytes, low, high, chosen, val_limit)) paths.push_back(path);
}

void RangeRows::add_held(const char* ids, std::span<const EncodedRow> index, uint64_t id_bytes,
                         uint64_t low, uint64_t high, Chosen chosen, uint64_t val_limit) {
  add_rows(kHeld, index, reinterpret_cast<uint64_t>(ids), id_bytes, low, high, chosen, val_limit);
}

namespace {
// Where the rows or tokens of buckets `first` to `last` begin and end.
std::pair<uint64_t, uint64_t> find_stretch(const PagedFile& file, uint64_t ends_at, uint64_t first,
                                           uint64_t last) {
  const uint64_t begin =
      first == 0 ? 0 : file.read<uint64_t>(ends_at + (first - 1) * sizeof(uint64_t), 1)[0];
  const uint64_t end = file.read<uint64_t>(ends_at + last * sizeof(uint64_t), 1)[0];
  if (begin > end || end > kMostTokens) {
    throw std::invalid_argument("an index of encoded documents is damaged");
  }
  return {begin, end};
}
}  // namespace

void RangeRows::add_output(const EncodedOutput& output, size_t page_bytes, uint64_t first,
                           uint64_t last, uint64_t id_bytes, uint64_t low, uint64_t high,
                           Chosen chosen, uint64_t val_limit) {
  const PagedFile file(output.path, output.num_bytes, page_bytes);
  const auto [row, row_end] = find_stretch(file, output.row_ends_at, first, last);
  if (row == row_end) return;
  const auto [token, token_end] = find_stretch(file, output.token_ends_at, first, last);
  const uint64_t ids_at = output.ids_at + token * id_bytes;
  if (row_end > output.num_bytes / sizeof(EncodedRow) || token_end > output.num_bytes / id_bytes) {
    throw std::invalid_argument("an index of encoded documents is damaged");
  }
  const auto index =
      file.read<EncodedRow>(output.index_at + row * sizeof(EncodedRow), row_end - row);
  add(output.path, index, ids_at, id_bytes, low, high, chosen, val_limit);
  pages_.resize(paths.size(), {output.num_bytes, page_bytes});  // one more, if there is any row
}

void RangeRows::add_files(const std::vector<std::string>& names, uint64_t id_bytes, uint64_t low,
                          uint64_t high, Chosen chosen, uint64_t val_limit, size_t num_threads) {
  std::vector<RangeRows> parts(names.size());
  visit_indexes(names, num_threads, [&](size_t number, const WorkIndex& work) {
    parts[number].add(names[number], work.read(), work.ids_at(), id_bytes, low, high, chosen,
                      val_limit);
  });
  for (size_t number = 0; number < parts.size(); ++number) {
    if (parts[number].rows.empty()) continue;
    for (Row& row : parts[number].rows) row.file = static_cast<uint32_t>(paths.size());
    rows.insert(rows.end(), parts[number].rows.begin(), parts[number].rows.end());
    paths.push_back(names[number]);
  }
}

namespace {
// Each thread sorts a part of equal length, then neighbours are merged.
void sort_by_key(std::vector<RangeRows::Row>& rows, size_t num_threads) {
  constexpr size_t kRowsOfThread = 4096;  // at least
  const auto by_key = [](const RangeRows::Row& a, const RangeRows::Row& b) {
    return a.key < b.key;
  };
  size_t parts = std::bit_floor(std::clamp<size_t>(rows.size() / kRowsOfThread, 1, num_threads));
  const auto at = [&](size_t part) {
    return rows.begin() + static_cast<ptrdiff_t>(rows.size() * part / parts);
  };
  run_threads(parts, [&](size_t i) { std::stable_sort(at(i), at(i + 1), by_key); });
  for (size_t joined = 1; joined < parts; joined *= 2) {
    run_threads(parts / joined / 2, [&](size_t i) {
      const size_t first = 2 * i * joined;
      std::inplace_merge(at(first), at(first + joined), at(first + 2 * joined), by_key);
    });
  }
}
}  // namespace

void RangeRows::finish(size_t num_threads) {
  sort_by_key(rows, num_threads);
  uint64_t total = 0;
  for (Row& row : rows) {
    if (row.token_end > kMostTokens - total) {
      throw std::invalid_argument("an index of encoded documents is damaged");
    }
    row.token_end = total += row.token_end;
  }
}

SharedFiles& RangeRows::files() const {
  std::call_once(files_made_, [this] { files_ = std::make_unique<SharedFiles>(paths); });
  return *files_;
}

RangeReader::RangeReader(const RangeRows& range, uint64_t id_bytes, size_t max_open_files)
    : range_(range), id_bytes_(id_bytes), max_open_files_(max_open_files) {
  rlimit allowed;
  if (::getrlimit(RLIMIT_NOFILE, &allowed) == 0 && allowed.rlim_cur != RLIM_INFINITY) {
    max_open_files_ = std::min<size_t>(max_open_files, allowed.rlim_cur / 2);
  }
}

std::vector<uint64_t> RangeReader::read(uint64_t first, uint64_t last, char* ids) {
  std::vector<uint64_t> document_ends;
  pieces_.clear();
  auto row = std::upper_bound(
      range_.rows.begin(), range_.rows.end(), first,
      [](uint64_t token, const RangeRows::Row& other) { return token < other.token_end; });
  uint64_t begin = row == range_.rows.begin() ? 0 : std::prev(row)->token_end;
  for (; row != range_.rows.end() && begin < last; begin = row->token_end, ++row) {
    const uint64_t skipped = begin < first ? first - begin : 0;
    const uint64_t end = std::min(row->token_end, last);
    if (end <= begin + skipped) continue;
    const uint64_t size = (end - begin - skipped) * id_bytes_;
    const uint64_t at = row->at + skipped * id_bytes_;
    if (row->file == RangeRows::kHeld) {
      std::memcpy(ids, reinterpret_cast<const char*>(at), size);
    } else {
      pieces_.push_back({row->file, at, size, ids});
    }
    ids += size;
    if (row->ends != 0 && row->token_end <= last) document_ends.push_back(end - first);
  }
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.file != b.file ? a.file < b.file : a.at < b.at;
  });
  for (size_t from = 0, to = 0; from < pieces_.size(); from = to) {
    while (to < pieces_.size() && pieces_[to].file == pieces_[from].file) ++to;
    const std::span<const Piece> of_file = std::span(pieces_).subspan(from, to - from);
    const RangeRows::Pages pages = range_.find_pages(pieces_[from].file);
    if (pages.page_bytes == 0) {
      read_file(of_file);
      continue;
    }
    try {
      read_paged(of_file, pages);
    } catch (const DamagedPage& damaged) {
      range_.damaged = {range_.paths[pieces_[from].file], damaged.page};
      throw std::invalid_argument("a page of encoded documents is damaged");
    }
  }
  return document_ends;
}

// Pieces that are close together are read in one call; the bytes between them are dropped.
void RangeReader::read_file(std::span<const Piece> pieces) {
  constexpr uint64_t kGap = 8 << 10;
  const SharedFiles::Use file(range_.files(), pieces[0].file, max_open_files_);
  char dropped[kGap];
  std::vector<iovec> buffers;
  uint64_t begin = 0, end = 0;
  const auto flush = [&] {
    if (!buffers.empty()) file.read(begin, buffers);
    buffers.clear();
  };
  for (const Piece& piece : pieces) {
    if (buffers.size() + 2 > SharedFiles::kMostBuffers || piece.at < end || piece.at - end > kGap) {
      flush();
      begin = end = piece.at;
    }
    if (piece.at > end) buffers.push_back({dropped, piece.at - end});
    buffers.push_back({piece.to, piece.size});
    end = piece.at + piece.size;
  }
  flush();
}

// The same for a file whose pages have checksums: whole pages are read, a few at a time so that
// they stay in the cache, verified, and the wanted bytes are copied. Every page is read once per
// stretch: verifying all pages of a range before reading from them took two and a half more reads,
// as shards end within ranges and those of both splits share them.
void RangeReader::read_paged(std::span<const Piece> pieces, const RangeRows::Pages& pages) {
  constexpr size_t kWindowBytes = 256 << 10;
  const size_t page_bytes = pages.page_bytes;
  const size_t at_once = std::max<size_t>(kWindowBytes / page_bytes, 1);
  if (window_ == nullptr) window_.reset(new char[std::max(at_once * page_bytes, kWindowBytes)]);
  const SharedFiles::Use file(range_.files(), pieces[0].file, max_open_files_);
  std::vector<uint64_t> expected(at_once);
  std::vector<iovec> buffers;
  for (size_t piece = 0, after = 0; piece < pieces.size(); piece = after) {
    uint64_t end = pieces[piece].at;
    while (after < pieces.size() && pieces[after].at <= end + page_bytes) {
      end = pieces[after].at + pieces[after].size;
      ++after;
    }
    uint64_t page = pieces[piece].at / page_bytes;
    for (const uint64_t last = (end - 1) / page_bytes + 1; page < last; page += at_once) {
      const size_t count = std::min<uint64_t>(at_once, last - page);
      const uint64_t begin = page * page_bytes;
      if (end > pages.num_bytes) throw DamagedPage{page};
      const size_t size = std::min<uint64_t>(count * page_bytes, pages.num_bytes - begin);
      buffers.assign(1, {window_.get(), size});
      file.read(begin, buffers);
      buffers.assign(1, {expected.data(), count * sizeof(uint64_t)});
      file.read(pages.num_bytes + page * sizeof(uint64_t), buffers);
      const std::vector<uint64_t> sums = sum_pages({window_.get(), size}, page_bytes);
      const auto wrong = std::mismatch(sums.begin(), sums.end(), expected.begin()).first;
      if (wrong != sums.end()) {
        throw DamagedPage{page + static_cast<uint64_t>(wrong - sums.begin())};
      }
      for (; piece < after; ++piece) {
        const Piece& wanted = pieces[piece];
        const uint64_t from = std::max(wanted.at, begin);
        const uint64_t to = std::min(wanted.at + wanted.size, begin + size);
        if (from < to)
          std::memcpy(wanted.to + (from - wanted.at), &window_[from - begin], to - from);
        if (wanted.at + wanted.size > begin + size) break;  // it continues in the next pages
      }
    }
  }
}

}  // namespace lowtide
