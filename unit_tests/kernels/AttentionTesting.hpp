// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_ATTENTIONTESTING_HPP
#define SPOROS_TESTING_ATTENTIONTESTING_HPP

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

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
        forward.tile(a, batch, head, tile, Scratch(forward.scratch_bytes(a)).get());

  auto const tiling = backward.tiling(a);
  int const blocks = (a.queries + tiling.queries - 1) / tiling.queries;
  auto const b = problem.backward_arguments(slots, blocks * tiling.queries, tiling.head_dim);
  for (int batch = 0; batch < a.batch; ++batch) {
    for (int head = 0; head < a.heads; ++head)
      for (int block = 0; block < blocks; ++block) backward.prepare(b, batch, head, block);
    for (int kv_head = 0; kv_head < a.kv_heads; ++kv_head)
      for (int slot = 0; slot < slots; ++slot)
        backward.slot(b, batch, kv_head, slot, Scratch(backward.scratch_bytes(a)).get());
    for (int head = 0; head < a.heads; ++head)
      for (int block = 0; block < blocks; ++block) backward.finish(b, batch, head, block);
  }
}

inline void require_as_good_as_plain(AttentionErrors const& errors) {
  CHECK(errors.o <= 2);
  CHECK(errors.lse <= 2);
  CHECK(errors.dq <= 2);
  CHECK(errors.dk <= 2);
  CHECK(errors.dv <= 2);
}

// Lengths: 1: a lone pair; 17: less than a block; 64: exactly one; 129: one row in the last; 300: several, and no multiple.
// Jumps: none; 2 stays below the bound of the optimistic softmax; 150 exceeds any exponent of a float.
// 8, 40: most of a tile is padding; 72, 136: the last columns of a wider one.
inline std::vector<AttentionCase> const attention_cases = {
    {64, 1, 1},
    {64, 17, 17, CausalMask::bottom_right},
    {64, 64, 64, CausalMask::top_left},
    {128, 129, 129, CausalMask::bottom_right, 2},
    {64, 300, 300, CausalMask::bottom_right},
    {64, 300, 300, CausalMask::none, 150},
    {64, 300, 300, CausalMask::bottom_right, 150},
    {128, 300, 300, CausalMask::none, 2},
    {8, 70, 90},
    {40, 90, 70, CausalMask::top_left},
    {72, 65, 129},
    {136, 66, 130, CausalMask::bottom_right},
    {256, 65, 65, CausalMask::bottom_right},
    // Rows without a key, at the start and everywhere; more keys than queries; no query
    {64, 200, 70, CausalMask::bottom_right},
    {64, 200, 70, CausalMask::top_left},
    {64, 70, 0},
    {64, 70, 0, CausalMask::bottom_right},
    {128, 5, 200, CausalMask::bottom_right},
    {64, 0, 70},
    // Batch and heads, grouped
    {64, 100, 130, CausalMask::bottom_right, 150, 2, 6, 2},
    {64, 70, 130, CausalMask::top_left, 0, 2, 4, 1},
    {.head_dim = 64,
     .queries = 130,
     .keys = 130,
     .causal = CausalMask::bottom_right,
     .heads = 2,
     .kv_heads = 2,
     .dropout = 0.2},
    {.head_dim = 64, .queries = 70, .keys = 150, .batch = 2, .heads = 4, .kv_heads = 2, .dropout = 0.5},
};

}  // namespace Sporos::Testing

#endif
