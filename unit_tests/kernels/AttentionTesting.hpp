// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_ATTENTIONTESTING_HPP
#define SPOROS_TESTING_ATTENTIONTESTING_HPP

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

#include "AttentionCases.hpp"
#include "AttentionReference.hpp"
#include "impl/Sporos_FlashAttention_Host.hpp"

namespace Sporos::Testing {

/// Scratch that starts as NaN
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : m_memory(bytes + 64) { std::memset(m_memory.data(), 0xff, m_memory.size()); }
  void* get() { return m_memory.data() + (64 - reinterpret_cast<std::uintptr_t>(m_memory.data()) % 64) % 64; }

 private:
  std::vector<unsigned char> m_memory;
};

/// Forward and backward by host kernels, item after item
template <class T>
void run_host_kernels(AttentionProblem<T>& problem, Impl::FlashAttentionForwardHostKernel<T> const& forward,
                      Impl::FlashAttentionBackwardHostKernel<T> const& backward, int slots) {
  auto const a = problem.arguments();
  for (int batch = 0; batch < a.batch; ++batch)
    for (int head = 0; head < a.heads; ++head)
      for (int tile = 0; tile < forward.tiles(a); ++tile)
        for (int split = 0; split < a.splits; ++split)
          forward.tile(a, batch, head, tile, split, Scratch(forward.scratch_bytes(a)).get());
  if (a.splits > 1) merge_splits(problem);

  auto const tiling = backward.tiling(a);
  auto const b = problem.backward_arguments(slots, tiling.queries, tiling.head_dim);
  int const blocks = b.padded_queries / tiling.queries;
  for (int batch = 0; batch < a.batch; ++batch) {
    for (int head = 0; head < a.heads; ++head)
      for (int block = 0; block < blocks; ++block) backward.prepare(b, batch, head, block);
    for (int kv_head = 0; kv_head < a.kv_heads; ++kv_head)
      for (int slot = 0; slot < slots; ++slot)
        backward.slot(b, batch, kv_head, slot, Scratch(backward.scratch_bytes(a)).get());
    for (int head = 0; head < a.heads; ++head)
      for (int block = 0; block < blocks; ++block) backward.finish(b, batch, head, block);
  }
  sum_sink_gradient(problem, b);
  if (!b.d_bias.data) return;
  for (int batch = 0; batch < b.bias_batch; ++batch)
    for (int head = 0; head < b.bias_heads; ++head)
      for (int tile = 0; tile < backward.bias_tiles(a); ++tile)
        backward.bias_tile(b, batch, head, tile, Scratch(backward.bias_scratch_bytes(a)).get());
}

}  // namespace Sporos::Testing

#endif
