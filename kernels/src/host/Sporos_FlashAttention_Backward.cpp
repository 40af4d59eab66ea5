// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Compiled once per instruction-set level, with -DSPOROS_LEVEL=... and the level's -march.
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_BiasGradientTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"
#include "impl/Sporos_FlashAttention_Host.hpp"
#include "tile/Sporos_Tile_Host.hpp"

namespace Sporos::inline SPOROS_LEVEL {
namespace {

/// Σ a[i] b[i]
template <class C, class T>
C dot(T const* a, T const* b, int size) {
  Vector<C> sum{};
  int i = 0;
  for (; i + lanes<C> <= size; i += lanes<C>) sum = multiply_add(load_as<C>(a + i), load_as<C>(b + i), sum);
  if (i < size) sum = multiply_add(load_first<C>(a + i, size - i), load_first<C>(b + i, size - i), sum);
  return sum_of_lanes<C>(sum);
}

template <class T>
struct Backward {
  using C = ComputeType<T>;
  using Arguments = FlashAttentionBackwardArguments<T>;
  template <int HeadDim>
  using Tile = FlashAttentionBackwardTile<Arch::Host, T, HeadDim>;

  static Impl::FlashAttentionBackwardTiling tiling(FlashAttentionArguments<T> const& arguments) {
    return with_head_dim(arguments.head_dim, [&](auto dim) {
      return Impl::FlashAttentionBackwardTiling{Tile<dim>::queries, Tile<dim>::keys, dim};
    });
  }

  static std::size_t scratch_bytes(FlashAttentionArguments<T> const& arguments) {
    return with_head_dim(arguments.head_dim, [&](auto dim) { return sizeof(typename Tile<dim>::Scratch); });
  }

  /// Σ dO ∘ O, because Σ_j P_ij dP_ij = Σ_d O_id dO_id, with dropout too; less dLSE, because dLSE/dS = P
  static void prepare(Arguments const& arguments, int batch, int head, int block) {
    FlashAttentionHead<T> const problem(arguments.forward, batch, head);
    int const rows = arguments.query_block, first = block * rows;
    if (first >= problem.queries()) return;
    Matrix<T> const o = problem.o();
    Matrix<T const> const d_o = problem.of_query_head(arguments.d_o);
    Matrix<C> const lse = problem.lse();
    Matrix<C const> const d_lse = problem.rows_of_head(arguments.d_lse);
    C* const lse_log2 = arguments.lse_log2 + problem.padded_row(arguments);
    C* const delta = arguments.delta + problem.padded_row(arguments);
    for (int i = first; i < first + rows; ++i) {
      bool const exists = i < problem.queries();
      C const value = exists ? *lse.row(i) : -infinity<C>;
      lse_log2[i] = value == -infinity<C> ? infinity<C> : value * log2_e<C>;
      delta[i] = exists ? dot<C>(o.row(i), d_o.row(i), o.columns) : C(0);
      if (exists && arguments.d_lse.data) delta[i] -= *d_lse.row(i);
    }
    for (int slot = 0; slot < arguments.slots; ++slot) {
      C* const sums = problem.dq_sums(arguments, slot).row(first);
      for (int i = 0; i < rows * arguments.padded_head_dim; ++i) sums[i] = C(0);
    }
  }

  static void slot(Arguments const& arguments, int batch, int kv_head, int slot, void* scratch) {
    with_head_dim(arguments.forward.head_dim, [&](auto dim) {
      Team<Arch::Host> team;
      Tile<dim>(team, *static_cast<typename Tile<dim>::Scratch*>(scratch)).consume(arguments, batch, kv_head, slot);
    });
  }

  static void finish(Arguments const& arguments, int batch, int head, int block) {
    FlashAttentionHead<T> const problem(arguments.forward, batch, head);
    int const rows = arguments.query_block, first = block * rows;
    if (first >= problem.queries()) return;
    C* const sums = problem.dq_sums(arguments, 0).row(first);
    for (int slot = 1; slot < arguments.slots; ++slot) {
      C const* const others = problem.dq_sums(arguments, slot).row(first);
      for (int i = 0; i < rows * arguments.padded_head_dim; ++i) sums[i] += others[i];
    }
    Matrix<T> const dq = problem.of_query_head(arguments.dq);
    unpack_panels(dq.row(first), dq.stride, sums, rows, arguments.padded_head_dim, dq.rows - first, dq.columns,
                  arguments.forward.scale);
  }

  template <int HeadDim>
  using BiasTile = FlashAttentionBiasGradientTile<Arch::Host, T, HeadDim>;

  static int bias_tiles(FlashAttentionArguments<T> const& arguments) {
    return with_head_dim(arguments.head_dim, [&](auto dim) { return BiasTile<dim>::tiles(arguments); });
  }

  static std::size_t bias_scratch_bytes(FlashAttentionArguments<T> const& arguments) {
    return with_head_dim(arguments.head_dim, [&](auto dim) { return sizeof(typename BiasTile<dim>::Scratch); });
  }

  static void bias_tile(Arguments const& arguments, int bias_batch, int bias_head, int tile, void* scratch) {
    with_head_dim(arguments.forward.head_dim, [&](auto dim) {
      Team<Arch::Host> team;
      BiasTile<dim>(team, *static_cast<typename BiasTile<dim>::Scratch*>(scratch))
          .consume(arguments, bias_batch, bias_head, tile);
    });
  }

  static constexpr Impl::FlashAttentionBackwardHostKernel<T> kernel{
      tiling, scratch_bytes, prepare, slot, finish, bias_tiles, bias_scratch_bytes, bias_tile};
};

}  // namespace

Impl::FlashAttentionBackwardHostKernels flash_attention_backward_kernels_of_level() {
  return {Backward<double>::kernel, Backward<float>::kernel, Backward<bfloat16>::kernel, Backward<float16>::kernel};
}

}  // namespace Sporos::inline SPOROS_LEVEL
