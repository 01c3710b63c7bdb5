// The order of samples as a pure function of (seed, sample number): nothing is stored.
//
// Sample g of a run belongs to epoch g / size. Within an epoch every index appears once, at a
// position given by a keyed permutation: a Feistel network over the next power of two, applied again
// until the result is in range (cycle walking). src/lowtide/loader/ordering.py has the same functions
// in plain Python; tests compare them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

// Writes the shuffled indices of samples first .. first + count into `out`.
void shuffled_indices(uint64_t seed, uint64_t size, uint64_t first, size_t count, uint64_t* out);

// Writes independent uniform draws from [0, size) for samples first .. first + count into `out`.
void random_indices(uint64_t seed, uint64_t size, uint64_t first, size_t count, uint64_t* out);

// Which source each sample of a weighted mixture comes from.
//
// The j-th sample of source i has the virtual time (2j + 1) / (2 w_i); samples are taken in the
// order of these times (ties: the lower source). After any g samples source i has had g * w_i /
// sum(w), within a sample or two, and its position depends only on g.
class MixtureSchedule {
 public:
  explicit MixtureSchedule(std::vector<uint64_t> weights);

  // Writes the source of samples first .. first + count into `sources`, and how many samples each
  // source had before `first` into `taken`.
  void slots(uint64_t first, size_t count, uint32_t* sources, uint64_t* taken) const;

  size_t num_sources() const { return weights_.size(); }

 private:
  size_t next_source(const uint64_t* taken) const;

  std::vector<uint64_t> weights_;
  uint64_t total_ = 0;
};

}  // namespace lowtide
