#include "tokenizer/learning/count_shard.hpp"

#include <algorithm>
#include <cstring>

namespace lowtide {

CountShard::CountShard() { clear(); }

void CountShard::clear() {
  slots_ = std::vector<Slot>(64);
  long_slots_ = std::vector<LongSlot>(16);
  arena_ = {};
  mask_ = slots_.size() - 1;
  long_mask_ = long_slots_.size() - 1;
  used_ = long_used_ = 0;
  piece_bytes_ = 0;
}

size_t CountShard::bytes() const {
  return slots_.size() * sizeof(Slot) + long_slots_.size() * sizeof(LongSlot) + arena_.capacity();
}

size_t CountShard::bytes_after_growth() const {
  size_t bytes = this->bytes();
  const auto nearly_full = [](size_t used, size_t size) {
    return (used + kCountBatch) * 4 > size * 3;
  };
  if (nearly_full(used_, slots_.size())) bytes += slots_.size() * sizeof(Slot);
  if (nearly_full(long_used_, long_slots_.size())) {
    bytes += long_slots_.size() * sizeof(LongSlot);
  }
  if (arena_.size() + kLongBatchBytes > arena_.capacity()) bytes += arena_.capacity();
  return bytes;
}

void CountShard::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.count == 0) continue;
    size_t i = hash_key(slot.key) & mask_;
    while (slots_[i].count != 0) i = (i + 1) & mask_;
    slots_[i] = slot;
  }
}

void CountShard::grow_long() {
  std::vector<LongSlot> old(long_slots_.size() * 2);
  old.swap(long_slots_);
  long_mask_ = long_slots_.size() - 1;
  for (const LongSlot& slot : old) {
    if (slot.count == 0) continue;
    size_t i = slot.hash & long_mask_;
    while (long_slots_[i].count != 0) i = (i + 1) & long_mask_;
    long_slots_[i] = slot;
  }
}

void CountShard::add_long(const uint8_t* bytes, size_t length, uint64_t hash, uint64_t count) {
  size_t i = hash & long_mask_;
  while (long_slots_[i].count != 0) {
    LongSlot& slot = long_slots_[i];
    if (slot.hash == hash && slot.length == length &&
        std::memcmp(arena_.data() + slot.offset, bytes, length) == 0) {
      slot.count += count;
      return;
    }
    i = (i + 1) & long_mask_;
  }
  long_slots_[i] = {hash, count, static_cast<uint32_t>(arena_.size()),
                    static_cast<uint32_t>(length)};
  // Short buffers may grow by doubling; for a long piece, exactly its size is allocated.
  if (length > kLongPiece) arena_.reserve(arena_.size() + length);
  arena_.insert(arena_.end(), bytes, bytes + length);
  piece_bytes_ += length;
  if (++long_used_ * 4 > long_slots_.size() * 3) grow_long();
}

void CountShard::for_each(const CountSink& sink) const {
  for (const Slot& slot : slots_) {
    if (slot.count != 0) {
      sink(reinterpret_cast<const uint8_t*>(&slot.key), slot.key.length(), slot.count);
    }
  }
  for (const LongSlot& slot : long_slots_) {
    if (slot.count != 0) sink(arena_.data() + slot.offset, slot.length, slot.count);
  }
}

void CountShard::write_run(const std::string& path) const {
  std::vector<Entry> entries;
  entries.reserve(size());
  for_each([&](const uint8_t* bytes, size_t length, uint64_t count) {
    entries.push_back({bytes, length, count});
  });
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return compare_bytes(a.bytes, a.length, b.bytes, b.length) < 0;
  });
  RunWriter writer(path);
  for (const Entry& entry : entries) writer.add(entry.bytes, entry.length, entry.count);
  writer.finish();
}

}  // namespace lowtide
