// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_FlashAttention_Device.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "impl/Sporos_DeviceLaunch.hpp"
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
namespace Sporos::Impl {
namespace {

/// One team for each tile of queries of each head
template <class T, int HeadDim>
struct ForwardWork {
  using Tile = FlashAttentionForwardTile<Arch::Simt, T, HeadDim>;
  using Scratch = typename Tile::Scratch;

  FlashAttentionArguments<T> m_arguments;
  int m_tiles;

  __device__ void operator()(Team<Arch::Simt>& team, Scratch& scratch, int item) const {
    int const head = item / m_tiles;
    // The last tiles are the longest where the mask is causal: they start first.
    int const tile = m_tiles - 1 - item % m_tiles;
    Tile kernel(team, scratch);
    kernel.consume({m_arguments, head / m_arguments.heads, head % m_arguments.heads}, tile);
  }
};

/// One team for each slot of each head of K and V
template <class T, int HeadDim>
struct BackwardWork {
  using Tile = FlashAttentionBackwardTile<Arch::Simt, T, HeadDim>;
  using Scratch = typename Tile::Scratch;

  FlashAttentionBackwardArguments<T> m_arguments;

  __device__ void operator()(Team<Arch::Simt>& team, Scratch& scratch, int item) const {
    int const head = item / m_arguments.slots, kv_heads = m_arguments.forward.kv_heads;
    Tile kernel(team, scratch);
    kernel.consume(m_arguments, head / kv_heads, head % kv_heads, item % m_arguments.slots);
  }
};

/// Before the tiles: δ and LSE log2 e of every row, one thread of vector lanes each, and zeros for its sums of dQ
template <class ExecutionSpace, class T>
struct BackwardRows {
  using C = ComputeType<T>;
  using Policy = Kokkos::TeamPolicy<ExecutionSpace>;

  static constexpr int rows_of_team = 8;

  FlashAttentionBackwardArguments<T> m_arguments;
  std::int64_t m_rows;  // batch · heads · padded_queries

  KOKKOS_FUNCTION void operator()(typename Policy::member_type const& member) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, rows_of_team), [&](int i) {
      std::int64_t const row = std::int64_t(member.league_rank()) * rows_of_team + i;
      if (row < m_rows) prepare(member, row);
    });
  }

  KOKKOS_FUNCTION void prepare(typename Policy::member_type const& member, std::int64_t row) const {
    auto const& a = m_arguments.forward;
    std::int64_t const bh = row / m_arguments.padded_queries;
    int const query = int(row % m_arguments.padded_queries);
    int const batch = int(bh / a.heads), head = int(bh % a.heads);
    bool const real = query < a.queries;
    auto const at = [&](auto const& x) {
      return x.data + batch * x.batch_stride + query * x.sequence_stride + head * x.head_stride;
    };

    C delta = 0;
    if (real) {
      T const* const o = at(HeadTensor<T const>{a.o.data, a.o.batch_stride, a.o.sequence_stride, a.o.head_stride});
      T const* const d_o = at(m_arguments.d_o);
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(member, a.head_dim), [&](int d, C& sum) { sum += C(o[d]) * C(d_o[d]); }, delta);
    }
    Kokkos::single(Kokkos::PerThread(member), [&]() {
      C const none = Kokkos::Experimental::infinity<C>::value;
      C const lse = real ? a.lse.data[batch * a.lse.batch_stride + head * a.lse.head_stride + query] : -none;
      m_arguments.lse_log2[row] = lse == -none ? none : lse * log2_e<C>;
      m_arguments.delta[row] = delta;
    });
    for (int slot = 0; slot < m_arguments.slots; ++slot)
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, m_arguments.padded_head_dim), [&](int d) {
        m_arguments.dq_sums[(slot * m_rows + row) * m_arguments.padded_head_dim + d] = 0;
      });
  }
};

/// After the tiles: dQ = scale · Σ over slots, in their order
template <class T>
struct SumOfSlots {
  using C = ComputeType<T>;

  FlashAttentionBackwardArguments<T> m_arguments;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    auto const& a = m_arguments.forward;
    int const d = int(i % a.head_dim);
    int const query = int(i / a.head_dim % a.queries);
    std::int64_t const bh = i / a.head_dim / a.queries;
    int const batch = int(bh / a.heads), head = int(bh % a.heads);
    std::int64_t const rows = std::int64_t(a.batch) * a.heads * m_arguments.padded_queries;
    std::int64_t const row = bh * m_arguments.padded_queries + query;
    auto const& dq = m_arguments.dq;
    C sum = 0;
    for (int slot = 0; slot < m_arguments.slots; ++slot)
      sum += m_arguments.dq_sums[(slot * rows + row) * m_arguments.padded_head_dim + d];
    dq.data[batch * dq.batch_stride + query * dq.sequence_stride + head * dq.head_stride + d] = T(a.scale * sum);
  }
};

}  // namespace

template <class ExecutionSpace, class T>
void flash_attention_forward_device(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  with_head_dim(arguments.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Work = ForwardWork<T, HeadDim>;
    int const tiles = Work::Tile::tiles(arguments);
    launch_tiles("Sporos::flash_attention::forward", space, std::int64_t(arguments.batch) * arguments.heads * tiles,
                 Work{arguments, tiles});
  });
}

template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan flash_attention_backward_plan_device(ExecutionSpace const& space,
                                                                FlashAttentionArguments<T> const& arguments) {
  FlashAttentionBackwardPlan plan;
  with_head_dim(arguments.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Tile = typename BackwardWork<T, HeadDim>::Tile;
    plan.padded_head_dim = HeadDim;
    plan.padded_queries = (arguments.queries + Tile::queries - 1) / Tile::queries * Tile::queries;

    // Enough slots for a few teams on every multiprocessor; but each has a dQ of its own, so that beyond two they may not
    // take more than 32 MiB together.
    std::int64_t const heads = std::int64_t(arguments.batch) * arguments.kv_heads;
    std::int64_t const bytes = std::int64_t(arguments.batch) * arguments.heads * plan.padded_queries *
                               plan.padded_head_dim * std::int64_t(sizeof(ComputeType<T>));
    std::int64_t const teams = space.concurrency() / (4 * Team<Arch::Simt>::threads);
    std::int64_t const wanted = (teams + heads - 1) / std::max<std::int64_t>(heads, 1);
    std::int64_t const held = std::max<std::int64_t>(2, (std::int64_t(32) << 20) / std::max<std::int64_t>(bytes, 1));
    plan.slots = int(std::max<std::int64_t>(1, std::min({wanted, held, std::int64_t(Tile::tiles(arguments))})));
  });
  return plan;
}

template <class ExecutionSpace, class T>
void flash_attention_backward_device(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> const& arguments) {
  FlashAttentionArguments<T> const& a = arguments.forward;
  using Rows = BackwardRows<ExecutionSpace, T>;
  std::int64_t const rows = std::int64_t(a.batch) * a.heads * arguments.padded_queries;
  std::int64_t const teams = (rows + Rows::rows_of_team - 1) / Rows::rows_of_team;
  SPOROS_THROW_IF(teams > std::numeric_limits<int>::max(), "batch ", a.batch, " · heads ", a.heads, " · queries ",
                  a.queries, " is too large for one launch");
  if (rows > 0)
    Kokkos::parallel_for("Sporos::flash_attention::backward::rows",
                         typename Rows::Policy(space, int(teams), Rows::rows_of_team, 16), Rows{arguments, rows});
  with_head_dim(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    launch_tiles("Sporos::flash_attention::backward", space, std::int64_t(a.batch) * a.kv_heads * arguments.slots,
                 BackwardWork<T, HeadDim>{arguments});
  });
  Kokkos::parallel_for("Sporos::flash_attention::backward::sum_of_slots",
                       Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(
                           space, 0, std::int64_t(a.batch) * a.heads * a.queries * a.head_dim),
                       SumOfSlots<T>{arguments});
}

#define SPOROS_INSTANTIATE_TYPE(Space, T)                                                                  \
  template void flash_attention_forward_device<Space, T>(Space const&, FlashAttentionArguments<T> const&); \
  template FlashAttentionBackwardPlan flash_attention_backward_plan_device<Space, T>(                      \
      Space const&, FlashAttentionArguments<T> const&);                                                    \
  template void flash_attention_backward_device<Space, T>(Space const&, FlashAttentionBackwardArguments<T> const&);
#define SPOROS_INSTANTIATE(Space)        \
  SPOROS_INSTANTIATE_TYPE(Space, double) \
  SPOROS_INSTANTIATE_TYPE(Space, float)  \
  SPOROS_INSTANTIATE_TYPE(Space, bfloat16)
SPOROS_INSTANTIATE_FOR_DEVICES(SPOROS_INSTANTIATE)
#undef SPOROS_INSTANTIATE
#undef SPOROS_INSTANTIATE_TYPE

}  // namespace Sporos::Impl
#endif
