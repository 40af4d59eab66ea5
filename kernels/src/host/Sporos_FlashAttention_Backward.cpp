// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Compiled once per instruction-set level, with -DSPOROS_LEVEL=... and the level's -march.
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
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

  /// Σ dO ∘ O, because Σ_j P_ij dP_ij = Σ_d O_id dO_id, with dropout too
  static void prepare(Arguments const& arguments, int batch, int head, int block) {
    auto const& forward = arguments.forward;
    int const rows = tiling(forward).queries;
    FlashAttentionHead<T> const problem(forward, batch, head);
    Matrix<T> const o = problem.o();
    Matrix<T const> const d_o = problem.of_query_head(arguments.d_o);
    Matrix<C> const lse = problem.lse();
    std::int64_t const from = row_of(arguments, batch, head);
    C* const lse_log2 = arguments.lse_log2 + from;
    C* const delta = arguments.delta + from;
    for (int i = block * rows; i < (block + 1) * rows; ++i) {
      bool const exists = i < forward.queries;
      C const value = exists ? *lse.row(i) : -infinity<C>;
      lse_log2[i] = value == -infinity<C> ? infinity<C> : value * log2_e<C>;
      delta[i] = exists ? dot<C>(o.row(i), d_o.row(i), forward.head_dim) : C(0);
    }
    for (int slot = 0; slot < arguments.slots; ++slot) {
      C* const sums = sums_of(arguments, batch, head, block, slot);
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
    auto const& forward = arguments.forward;
    int const rows = tiling(forward).queries;
    C* const sums = sums_of(arguments, batch, head, block, 0);
    for (int slot = 1; slot < arguments.slots; ++slot) {
      C const* const others = sums_of(arguments, batch, head, block, slot);
      for (int i = 0; i < rows * arguments.padded_head_dim; ++i) sums[i] += others[i];
    }
    Matrix<T> const dq = FlashAttentionHead<T>(forward, batch, head).of_query_head(arguments.dq);
    int const first = block * rows;
    unpack_panels(dq.row(first), dq.stride, sums, rows, arguments.padded_head_dim, dq.rows - first, dq.columns,
                  forward.scale);
  }

  static constexpr Impl::FlashAttentionBackwardHostKernel<T> kernel{tiling, scratch_bytes, prepare, slot, finish};

 private:
  static std::int64_t row_of(Arguments const& arguments, int batch, int head) {
    return (std::int64_t(batch) * arguments.forward.heads + head) * arguments.padded_queries;
  }

  static C* sums_of(Arguments const& arguments, int batch, int head, int block, int slot) {
    std::int64_t const rows =
        std::int64_t(arguments.forward.batch) * arguments.forward.heads * arguments.padded_queries;
    std::int64_t const row = slot * rows + row_of(arguments, batch, head) + block * tiling(arguments.forward).queries;
    return arguments.dq_sums + row * arguments.padded_head_dim;
  }
};

}  // namespace

Impl::FlashAttentionBackwardHostKernels flash_attention_backward_kernels_of_level() {
  return {Backward<double>::kernel, Backward<float>::kernel, Backward<bfloat16>::kernel};
}

}  // namespace Sporos::inline SPOROS_LEVEL
