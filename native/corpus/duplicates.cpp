#include "corpus/duplicates.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "text/code_points.hpp"

namespace lowtide {
namespace {

constexpr uint32_t kSamplesPerRule = 3;
constexpr size_t kSampleBytes = 160;

void count(KeptDocuments& kept, Rule rule, std::string_view what) {
  RuleCount& counter = kept.counts[rule];
  counter.count += 1;
  counter.bytes += what.size();
  if (counter.count <= kSamplesPerRule) {
    size_t end = std::min(what.size(), kSampleBytes);
    while (end > 0 && end < what.size() && (what[end] & 0xC0) == 0x80) --end;
    kept.samples.push_back({static_cast<uint32_t>(rule), std::string(what.substr(0, end))});
  }
}

// True if a row is among the sorted ones from `next` on; advances `next` to it. Marks are the
// highest bits.
template <typename Place>
bool is_marked(Place& next, Place end, size_t row) {
  constexpr uint32_t kRowBits = 0x1FFFFFFFu;
  while (next != end && (*next & kRowBits) < row) ++next;
  return next != end && (*next & kRowBits) == row;
}

// Copy a document's lines except the removed ones; runs of empty lines left by them are shortened.
void copy_lines(std::string_view document, uint64_t line, std::span<const uint32_t> removed,
                std::span<const uint32_t> cut, const CleanOptions& options, KeptDocuments& kept) {
  const size_t begin = kept.changed.size();
  auto next = std::lower_bound(removed.begin(), removed.end(), static_cast<uint32_t>(line));
  const char* at = document.data();
  const char* const end = at + document.size();
  const char* copied = at;
  uint32_t empty_lines = 2;
  for (; at < end; ++line) {
    if (next == removed.end() && empty_lines == 0) break;  // the rest is unchanged by cleaning
    const auto* newline = static_cast<const char*>(std::memchr(at, '\n', end - at));
    const char* after = newline != nullptr ? newline + 1 : end;
    const bool is_empty = newline == at;
    const bool is_removed = next != removed.end() && *next == line;
    if (is_removed) {
      ++next;
      const bool is_cut = std::binary_search(cut.begin(), cut.end(), kCutMark | *(next - 1));
      count(kept, is_cut ? kRuleContaminatedLine : kRuleDuplicateLine,
            {at, static_cast<size_t>(after - at)});
    }
    if (is_removed || (is_empty && options.normalize && empty_lines >= 2)) {
      kept.changed.append(copied, at);
      copied = after;
    } else {
      empty_lines = is_empty ? empty_lines + 1 : 0;
    }
    at = after;
  }
  kept.changed.append(copied, end);
  if (options.normalize) {
    while (kept.changed.size() > begin && kept.changed.back() == '\n') kept.changed.pop_back();
  }
}

}  // namespace

size_t DuplicateFinder::Table::place(uint64_t high, uint32_t skipped) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<size_t>(static_cast<Wide>(high << skipped) * slots.size() >> 64);
}

bool DuplicateFinder::Table::insert(uint64_t high, uint32_t low, uint32_t skipped) {
  const Slot wanted{{static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32), low}};
  for (size_t at = place(high, skipped);;) {
    Slot& slot = slots[at];
    if (std::memcmp(&slot, &wanted, sizeof wanted) == 0) return false;
    if ((slot.words[0] | slot.words[1] | slot.words[2]) == 0) {
      slot = wanted;
      ++held;
      return true;
    }
    if (++at == slots.size()) at = 0;
  }
}

// Slots increase with the hash, so both tables are traversed from beginning to end.
void DuplicateFinder::Table::grow(uint32_t skipped) {
  constexpr size_t kFirstSlots = 64, kSmallSlots = 1024;
  Table larger;
  larger.slots.resize(slots.empty()                ? kFirstSlots
                      : slots.size() < kSmallSlots ? 2 * slots.size()
                                                   : slots.size() + slots.size() / 4);
  for (const Slot& slot : slots) {
    if ((slot.words[0] | slot.words[1] | slot.words[2]) == 0) continue;
    larger.insert(uint64_t{slot.words[1]} << 32 | slot.words[0], slot.words[2], skipped);
  }
  *this = std::move(larger);
}

bool DuplicateFinder::insert(const HashRow& row) {
  if (row.high == 0 && row.low == 0) {  // the one hash that a slot cannot store
    return !std::exchange(zero_seen_, true);
  }
  Table& table = tables_[find_table(row.high)];
  const uint32_t skipped = skipped_bits_ + 8;
  if (5 * (table.held + 1) > 4 * table.slots.size()) table.grow(skipped);
  return table.insert(row.high, row.low, skipped);
}

void DuplicateFinder::prefetch(std::span<const HashRow> rows, size_t row) const {
  constexpr size_t kAhead = 12;  // rows whose slots are being prefetched
  if (row + kAhead >= rows.size()) return;
  const uint64_t high = rows[row + kAhead].high;
  const Table& next = tables_[find_table(high)];
  __builtin_prefetch(next.slots.data() + next.place(high, skipped_bits_ + 8), 1);
}

bool DuplicateFinder::add(std::span<const HashRow> rows, uint32_t pass, uint32_t num_passes) {
  size_t held = held_;
  for (size_t row = 0; row < rows.size() && held <= capacity_; ++row) {
    prefetch(rows, row);
    const HashRow& given = rows[row];
    if (num_passes > 1 && given.low % num_passes != pass) continue;
    if (insert(given)) {
      ++held;
    } else {
      duplicates_.push_back(given.line);
    }
  }
  held_ = held;
  return held <= capacity_;
}

DuplicateFinder::Turn DuplicateFinder::add_in_turn(uint64_t place, std::span<const HashRow> rows,
                                                   std::vector<uint32_t>& lines) {
  if (skipped_bits_ != 0) throw std::invalid_argument("lanes are by the first byte of a hash");
  size_t begin = 0;
  for (size_t number = 0; number < kLanes; ++number) {
    size_t end = begin;
    while (end < rows.size() && (rows[end].high >> 56) / kLaneTables == number) ++end;
    if (!enter(lanes_[number], place)) return Turn::kStopped;
    fill_lane(place, rows.subspan(begin, end - begin), lines);
    if (full_from_ <= place) free_lane(number);
    leave(lanes_[number]);
    begin = end;
  }
  if (begin != rows.size()) throw std::invalid_argument("rows are not sorted by their first byte");
  std::sort(lines.begin(), lines.end());
  return full_from_ <= place ? Turn::kFull : Turn::kAdded;
}

void DuplicateFinder::fill_lane(uint64_t place, std::span<const HashRow> rows,
                                std::vector<uint32_t>& lines) {
  if (full_from_ <= place) return;
  // Counted once per lane: threads that update one counter for every row wait for each other.
  size_t added = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    prefetch(rows, row);
    if (insert(rows[row])) {
      ++added;
    } else {
      lines.push_back(rows[row].line);
    }
  }
  if (held_ += added; held_ > capacity_) fill_up(place);
}

// Blocks before `place` may still be in later lanes, and be the first without room.
void DuplicateFinder::fill_up(uint64_t place) {
  uint64_t first = full_from_;
  while (place < first && !full_from_.compare_exchange_weak(first, place)) {
  }
}

// No block that has yet to enter this lane is before the current one.
void DuplicateFinder::free_lane(size_t lane) {
  for (size_t table = lane * kLaneTables; table < (lane + 1) * kLaneTables; ++table) {
    tables_[table] = Table{};
  }
}

bool DuplicateFinder::enter(Lane& lane, uint64_t place) {
  std::unique_lock hold(lane.mutex);
  lane.gates[place % kGates].wait(hold, [&] { return lane.next == place || lane.stopped; });
  return !lane.stopped;
}

void DuplicateFinder::leave(Lane& lane) {
  uint64_t next;
  {
    const std::lock_guard hold(lane.mutex);
    next = ++lane.next;
  }
  lane.gates[next % kGates].notify_all();
}

void DuplicateFinder::stop() {
  for (Lane& lane : lanes_) {
    {
      const std::lock_guard hold(lane.mutex);
      lane.stopped = true;
    }
    for (std::condition_variable& gate : lane.gates) gate.notify_all();
  }
}

std::vector<uint32_t> DuplicateFinder::take() {
  std::sort(duplicates_.begin(), duplicates_.end());
  return std::move(duplicates_);
}

bool DuplicateFinder::add_blocks(std::span<const HashRow> rows, std::span<const uint32_t> counts,
                                 uint32_t first_block, uint32_t pass, uint32_t num_passes,
                                 std::vector<uint64_t>& places) {
  size_t at = 0;
  uint64_t block = first_block;
  for (const uint32_t count : counts) {
    if (count > rows.size() - at)
      throw std::invalid_argument("blocks have more rows than there are");
    if (!add(rows.subspan(at, count), pass, num_passes)) return false;
    for (const uint32_t line : take()) places.push_back(block << 32 | line);
    at += count;
    ++block;
  }
  if (at != rows.size()) throw std::invalid_argument("blocks have fewer rows than there are");
  return true;
}

std::vector<KeyedRow> pick_rows(std::span<const KeyedRow> rows, std::span<uint32_t> counts,
                                uint32_t first, uint32_t last) {
  std::vector<KeyedRow> picked;
  size_t at = 0;
  for (uint32_t& count : counts) {
    if (count > rows.size() - at)
      throw std::invalid_argument("blocks have more rows than there are");
    const size_t before = picked.size();
    for (const KeyedRow& row : rows.subspan(at, count)) {
      const auto bits = static_cast<uint32_t>(row.key >> 48);
      if (bits >= first && bits < last) picked.push_back(row);
    }
    at += count;
    count = static_cast<uint32_t>(picked.size() - before);
  }
  if (at != rows.size()) throw std::invalid_argument("blocks have fewer rows than there are");
  return picked;
}

std::vector<uint32_t> pick_hashes(std::span<const HashRow> hashes,
                                  std::span<const DocumentRow> documents,
                                  std::span<const uint64_t> remnants, bool all) {
  std::vector<uint32_t> words;
  for (const HashRow& row : hashes) {
    bool wanted = all || row.line >= kDocumentMark;
    if (!wanted && !remnants.empty()) {
      // The document of a line is the last one that begins at or before it.
      const auto after = std::upper_bound(
          documents.begin(), documents.end(), uint64_t{row.line},
          [](uint64_t line, const DocumentRow& document) { return line < document.line_base; });
      const uint64_t document = static_cast<uint64_t>(after - documents.begin());
      wanted = document > 0 && std::binary_search(remnants.begin(), remnants.end(), document - 1);
    }
    if (!wanted) continue;
    words.push_back(static_cast<uint32_t>(row.high));
    words.push_back(static_cast<uint32_t>(row.high >> 32));
    words.push_back(row.low);
  }
  return words;
}

std::vector<HashRow> leave_out(std::span<const HashRow> hashes, std::span<const LeftOut> left_out) {
  std::vector<HashRow> rest;
  rest.reserve(hashes.size());
  for (const HashRow& row : hashes) {
    const bool whole = row.line >= kDocumentMark;
    const uint32_t wanted = row.line & ~kDocumentMark;
    // The last one that begins at or before it.
    const auto after = std::upper_bound(
        left_out.begin(), left_out.end(), wanted, [whole](uint32_t value, const LeftOut& document) {
          return value < (whole ? document.row : document.first_line);
        });
    if (after != left_out.begin() &&
        (whole ? after[-1].row == wanted : wanted < after[-1].line_end)) {
      continue;
    }
    rest.push_back(row);
  }
  return rest;
}

bool keep_documents(std::string_view text, std::span<const DocumentRow> documents,
                    std::span<const uint32_t> removed, const CleanOptions& options,
                    KeptDocuments& kept) {
  const auto marks = std::lower_bound(removed.begin(), removed.end(), kDocumentMark);
  const auto copies = std::lower_bound(marks, removed.end(), kNearCopyMark);
  const auto contaminated = std::lower_bound(copies, removed.end(), kContaminatedMark);
  const auto cut_lines = std::lower_bound(removed.begin(), marks, kCutMark);
  const std::span<const uint32_t> cut(cut_lines, marks);
  std::span<const uint32_t> lines(removed.begin(), cut_lines);
  std::vector<uint32_t> all_lines;
  if (!cut.empty()) {
    all_lines.assign(lines.begin(), lines.end());
    for (const uint32_t line : cut) all_lines.push_back(line & ~kCutMark);
    std::sort(all_lines.begin(), all_lines.end());
    all_lines.erase(std::unique(all_lines.begin(), all_lines.end()), all_lines.end());
    lines = all_lines;
  }
  std::vector<std::pair<size_t, size_t>> moved;  // place in `documents`, begin in `changed`
  auto next_line = lines.begin();
  auto next_document = marks;
  auto next_copy = copies;
  auto next_contaminated = contaminated;
  for (size_t row = 0; row < documents.size(); ++row) {
    const DocumentRow& source = documents[row];
    if (source.begin > source.end || source.end > text.size()) return false;
    const std::string_view document = text.substr(source.begin, source.end - source.begin);
    const Rule rule = is_marked(next_document, copies, row)              ? kRuleDuplicateDocument
                      : is_marked(next_copy, contaminated, row)          ? kRuleNearCopy
                      : is_marked(next_contaminated, removed.end(), row) ? kRuleContaminated
                                                                         : kNumRules;
    if (rule != kNumRules) {
      count(kept, rule, document);
      continue;
    }
    const uint64_t line_end =
        row + 1 < documents.size() ? documents[row + 1].line_base : uint64_t{kDocumentMark};
    while (next_line != lines.end() && *next_line < source.line_base) ++next_line;
    auto last_line = next_line;
    while (last_line != lines.end() && *last_line < line_end) ++last_line;
    if (last_line != next_line) {
      const size_t begin = kept.changed.size();
      copy_lines(document, source.line_base, {next_line, last_line}, cut, options, kept);
      const std::string_view rest = std::string_view(kept.changed).substr(begin);
      const bool whole = source.flags == (kDocumentFirst | kDocumentLast);
      const uint64_t min_chars = options.filter ? options.min_document_chars : 0;
      const bool short_rest = count_code_points(rest.data(), rest.size()) < min_chars;
      if (whole && (short_rest || rest.find_first_not_of(" \t\r\n") == std::string_view::npos)) {
        count(kept, kRuleDocumentRemnant, rest);
        kept.remnants.push_back(row);
        kept.changed.resize(begin);
        continue;
      }
      // A later part of a large document still needs the line border that separated it.
      if ((source.flags & kDocumentLast) == 0 && options.normalize && document.ends_with('\n')) {
        kept.changed.push_back('\n');
      }
      moved.emplace_back(kept.documents.size(), begin);
    }
    kept.documents.push_back(document);
    kept.rows.push_back(row);
  }
  // From now on `changed` is not reallocated.
  size_t end = kept.changed.size();
  for (auto at = moved.rbegin(); at != moved.rend(); ++at) {
    kept.documents[at->first] = std::string_view(kept.changed).substr(at->second, end - at->second);
    end = at->second;
  }
  return true;
}

}  // namespace lowtide
