// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Prefetcher.hpp"

#include <algorithm>
#include <vector>

namespace Sporos {

std::vector<std::vector<int>> BatchPlan::rounds() const {
  std::vector<std::int64_t> batches;
  for (int r = 0; r < ranks; ++r) {
    BatchPlan of_rank = *this;
    of_rank.rank = r;
    batches.push_back(of_rank.batches_per_step());
  }
  std::int64_t const longest = *std::max_element(batches.begin(), batches.end());
  std::vector<std::vector<int>> rounds(static_cast<std::size_t>(longest));
  for (int r = 0; r < ranks; ++r) {
    std::int64_t const mine = batches[std::size_t(r)], first = interleaved ? 0 : longest - mine;
    for (std::int64_t b = first; b < first + mine; ++b) rounds[std::size_t(b)].push_back(r);
  }
  return rounds;
}

namespace Impl {

BatchReader::BatchReader(DataMixture data, BatchPlan const& plan) : m_data(std::move(data)), m_plan(plan) {
  SPOROS_THROW_IF(plan.global_batch < 1 || plan.micro_batch < 1, "the global batch is ", plan.global_batch,
                  " sequences, the micro-batch ", plan.micro_batch, "; both need at least one");
  SPOROS_THROW_IF(plan.ranks < 1 || plan.rank < 0 || plan.rank >= plan.ranks, "rank ", plan.rank, " of ", plan.ranks);
  SPOROS_THROW_IF(plan.first_step < 0, "the first step is ", plan.first_step);
  // A global batch may be smaller than the micro-batch; buffers as large as the latter would be wasted.
  m_plan.micro_batch = std::min(plan.micro_batch, plan.global_batch);
}

BatchReader::Position BatchReader::position(std::int64_t number) const {
  std::int64_t const per_step = m_plan.batches_per_step();
  std::int64_t const step = m_plan.first_step + number / per_step, batch = number % per_step;
  BatchPlan::MicroBatch const micro_batch = m_plan[batch];
  return {step, micro_batch.first_sequence, micro_batch.count};
}

void BatchReader::read(Position const& position, int* inputs, int* targets) const {
  std::int64_t const length = sequence_length();
  std::vector<int> window(static_cast<std::size_t>(length + 1));
  for (std::int64_t s = 0; s < position.count; ++s) {
    m_data.read(position.step * m_plan.global_batch + position.first_sequence + s, window.data());
    std::copy(window.begin(), window.end() - 1, inputs + s * length);
    std::copy(window.begin() + 1, window.end(), targets + s * length);
  }
}

}  // namespace Impl
}  // namespace Sporos
