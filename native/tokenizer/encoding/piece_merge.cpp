#include "tokenizer/encoding/piece_merge.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

namespace lowtide {

namespace {

constexpr unsigned kMostPlaces = 64;
constexpr uint32_t kNoKey = 0xFFFFFFFF;
constexpr uint32_t kPlaceNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

constexpr uint32_t lane_key(uint32_t rank, size_t place) {
  return rank * kMostPlaces | static_cast<uint32_t>(place);
}
static_assert(MergeTable::kRankBits == 26);  // with the position, 32 bits

#if defined(__clang__)
#define LOWTIDE_SHUFFLE(lanes, ...) __builtin_shufflevector(lanes, lanes, __VA_ARGS__)
#else
#define LOWTIDE_SHUFFLE(lanes, ...) __builtin_shuffle(lanes, Lanes{__VA_ARGS__})
#endif

#define LOWTIDE_TARGETED
#define LOWTIDE_LANES 4
#define LOWTIDE_MERGE merge_lanes
#include "tokenizer/encoding/piece_merge_lanes.inc"
#undef LOWTIDE_TARGETED
#undef LOWTIDE_LANES
#undef LOWTIDE_MERGE

#if defined(__x86_64__)
#define LOWTIDE_TARGETED __attribute__((target("avx512f,avx512bw,avx512vl,bmi,bmi2,lzcnt,popcnt")))
#define LOWTIDE_LANES 16
#define LOWTIDE_MERGE merge_lanes_avx512
#include "tokenizer/encoding/piece_merge_lanes.inc"
#undef LOWTIDE_TARGETED
#undef LOWTIDE_LANES
#undef LOWTIDE_MERGE

#define LOWTIDE_TARGETED __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
#define LOWTIDE_LANES 8
#define LOWTIDE_MERGE merge_lanes_avx2
#include "tokenizer/encoding/piece_merge_lanes.inc"
#undef LOWTIDE_TARGETED
#undef LOWTIDE_LANES
#undef LOWTIDE_MERGE
#endif

constexpr size_t kTogether = 16;

#define LOWTIDE_FUNCTIONS(merge)                                       \
  {                                                                    \
    {merge<16, 1>, merge<32, 1>, merge<64, 1>}, {                      \
      merge<16, kTogether>, merge<32, kTogether>, merge<64, kTogether> \
    }                                                                  \
  }

// Index of the function for this many places; kNumWidths: none.
size_t width_of(size_t count) {
  return count <= 16 ? 0 : count <= 32 ? 1 : count <= kMostPlaces ? 2 : PieceMerger::kNumWidths;
}

bool is_ascii(const uint8_t* bytes, size_t length) {
  uint64_t all = 0, word = 0;
  size_t i = 0;
  for (; i + 8 <= length; i += 8) {
    std::memcpy(&word, bytes + i, 8);
    all |= word;
  }
  for (; i < length; ++i) all |= bytes[i];
  return (all & 0x8080808080808080ull) == 0;
}

PieceMerger::Functions functions([[maybe_unused]] Instructions at_most) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("bmi2")) {
    if (at_most >= Instructions::kAvx512 && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      return LOWTIDE_FUNCTIONS(merge_lanes_avx512);
    }
    if (at_most >= Instructions::kAvx2 && __builtin_cpu_supports("avx2")) {
      return LOWTIDE_FUNCTIONS(merge_lanes_avx2);
    }
  }
#endif
  return LOWTIDE_FUNCTIONS(merge_lanes);
}

void merge_with_heap(const MergeTable& table, const PieceToMerge& piece) {
  struct Node {
    uint32_t id, previous, next, rank;
  };
  constexpr uint32_t kNone = 0xFFFFFFFF;
  constexpr uint32_t kNoRank = MergeTable::kNoRank;
  const uint32_t n = static_cast<uint32_t>(piece.length);
  std::vector<Node> nodes(n);
  std::vector<uint64_t> heap;  // rank and position: the lowest rank, then the leftmost
  heap.reserve(n);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t rank = i + 1 < n ? table.byte_rank(piece.bytes[i], piece.bytes[i + 1]) : kNoRank;
    nodes[i] = {table.byte_id(piece.bytes[i]), i == 0 ? kNone : i - 1, i + 1 < n ? i + 1 : kNone,
                rank};
    if (rank != kNoRank) heap.push_back(uint64_t{rank} << 32 | i);
  }
  const auto later = std::greater<uint64_t>();
  std::make_heap(heap.begin(), heap.end(), later);
  const auto update = [&](uint32_t i) {
    Node& node = nodes[i];
    node.rank = node.next == kNone ? kNoRank : table.rank(node.id, nodes[node.next].id);
    if (node.rank == kNoRank) return;
    heap.push_back(uint64_t{node.rank} << 32 | i);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const uint32_t rank = static_cast<uint32_t>(heap.back() >> 32);
    const uint32_t i = static_cast<uint32_t>(heap.back());
    heap.pop_back();
    if (nodes[i].rank != rank) continue;  // merged or changed since then
    const uint32_t right = nodes[i].next;
    nodes[i].id = table.token(rank);
    nodes[i].next = nodes[right].next;
    nodes[right].rank = kNoRank;
    if (nodes[i].next != kNone) nodes[nodes[i].next].previous = i;
    if (nodes[i].previous != kNone) update(nodes[i].previous);
    update(i);
  }
  uint32_t* out = piece.out;
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) *out++ = nodes[i].id;
  *piece.num_ids = static_cast<uint32_t>(out - piece.out);
}

}  // namespace

PieceMerger::PieceMerger(Instructions at_most) : functions_(functions(at_most)) {}

void PieceMerger::merge(const MergeTable& table, const PieceToMerge& piece) const {
  const size_t width = width_of(piece.length);
  if (width == kNumWidths) return merge_with_heap(table, piece);
  const Start start{piece.out, static_cast<uint32_t>(piece.length), piece.bytes, ~uint64_t{0},
                    piece.num_ids};
  functions_.alone[width](table, &start, 1);
}

void PieceMerger::merge_all(const MergeTable& table, const SolidCharacters& characters,
                            std::span<const PieceToMerge> pieces) {
  const auto run = [&](size_t width) {
    std::vector<Start>& starts = starts_[width];
    functions_.together[width](table, starts.data(), static_cast<unsigned>(starts.size()));
    starts.clear();
  };
  for (const PieceToMerge& piece : pieces) {
    Start start{piece.out, static_cast<uint32_t>(piece.length), piece.bytes, ~uint64_t{0},
                piece.num_ids};
    if (!is_ascii(piece.bytes, piece.length)) {
      const SolidCharacters::Start found = characters.begin(piece.bytes, piece.length, piece.out);
      start.count = static_cast<uint32_t>(found.count);
      start.bytes = nullptr;
      start.open = found.open;
      if (found.open == 0) {
        *piece.num_ids = start.count;
        continue;
      }
    }
    const size_t width = width_of(start.count);
    if (width == kNumWidths) {
      merge_with_heap(table, piece);
      continue;
    }
    starts_[width].push_back(start);
    if (starts_[width].size() == kTogether) run(width);
  }
  for (size_t width = 0; width < kNumWidths; ++width) {
    if (!starts_[width].empty()) run(width);
  }
}

}  // namespace lowtide
