// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_FlashAttention_Device.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "impl/Sporos_DeviceLaunch.hpp"
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_BiasGradientTile.hpp"
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"
#include "impl/Sporos_FlashAttention_Hopper.hpp"

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
    int const share = item / m_tiles, head = share / m_arguments.splits;
    // The last tiles are the longest where the mask is causal: they start first.
    int const tile = m_tiles - 1 - item % m_tiles;
    Tile kernel(team, scratch);
    kernel.consume({m_arguments, head / m_arguments.heads, head % m_arguments.heads, share % m_arguments.splits}, tile);
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

/// One team for each tile of the gradient of the bias
template <class T, int HeadDim>
struct BiasGradientWork {
  using Tile = FlashAttentionBiasGradientTile<Arch::Simt, T, HeadDim>;
  using Scratch = typename Tile::Scratch;

  FlashAttentionBackwardArguments<T> m_arguments;
  int m_tiles;

  __device__ void operator()(Team<Arch::Simt>& team, Scratch& scratch, int item) const {
    int const head = item / m_tiles, heads = m_arguments.bias_heads;
    Tile kernel(team, scratch);
    kernel.consume(m_arguments, head / heads, head % heads, item % m_tiles);
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
    int const bh = int(row / m_arguments.padded_queries), query = int(row % m_arguments.padded_queries);
    FlashAttentionHead<T> const head(m_arguments.forward, bh / m_arguments.forward.heads,
                                     bh % m_arguments.forward.heads);
    if (query >= head.padded_queries(m_arguments)) return;
    std::int64_t const padded_row = head.padded_row(m_arguments) + query;
    bool const real = query < head.queries();

    C delta = 0;
    if (real) {
      T const* const o = head.o().row(query);
      T const* const d_o = head.of_query_head(m_arguments.d_o).row(query);
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(member, head.o().columns), [&](int d, C& sum) { sum += C(o[d]) * C(d_o[d]); },
          delta);
    }
    Kokkos::single(Kokkos::PerThread(member), [&]() {
      C const none = Kokkos::Experimental::infinity<C>::value;
      C const lse = real ? *head.lse().row(query) : -none;
      m_arguments.lse_log2[padded_row] = lse == -none ? none : lse * log2_e<C>;
      bool const has_d_lse = real && m_arguments.d_lse.data;
      m_arguments.delta[padded_row] = delta - (has_d_lse ? *head.rows_of_head(m_arguments.d_lse).row(query) : C(0));
    });
    for (int slot = 0; slot < m_arguments.slots; ++slot) {
      C* const sums = head.dq_sums(m_arguments, slot).row(query);
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, m_arguments.padded_head_dim), [&](int d) { sums[d] = 0; });
    }
  }
};

/// After the tiles: dQ = scale · Σ over slots, in their order
template <class T>
struct SumOfSlots {
  using C = ComputeType<T>;

  FlashAttentionBackwardArguments<T> m_arguments;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    auto const& a = m_arguments.forward;
    auto const& dq = m_arguments.dq;
    int const d = int(i % dq.width);
    int const query = int(i / dq.width % a.queries);
    int const bh = int(i / dq.width / a.queries);
    FlashAttentionHead<T> const head(a, bh / a.heads, bh % a.heads);
    if (query >= head.queries()) return;
    C sum = 0;
    for (int slot = 0; slot < m_arguments.slots; ++slot) sum += head.dq_sums(m_arguments, slot).row(query)[d];
    head.of_query_head(dq).row(query)[d] = T(a.scale * sum);
  }
};

}  // namespace

template <class ExecutionSpace, class T>
void flash_attention_forward_device(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  if constexpr (has_hopper_kernels<T>)
    if (hopper_takes_forward(space, arguments)) return flash_attention_forward_hopper(space, arguments);
  with_head_dim(arguments.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Work = ForwardWork<T, HeadDim>;
    int const tiles = Work::Tile::tiles(arguments);
    launch_tiles("Sporos::flash_attention::forward", space,
                 std::int64_t(arguments.batch) * arguments.heads * arguments.splits * tiles, Work{arguments, tiles});
  });
}

template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan flash_attention_backward_plan_device(ExecutionSpace const& space,
                                                                FlashAttentionArguments<T> const& arguments) {
  if constexpr (has_hopper_kernels<T>)
    if (hopper_takes_backward(space, arguments)) return flash_attention_backward_plan_hopper(space, arguments);
  FlashAttentionBackwardPlan plan;
  plan.shared_sums = false;
  with_head_dim(arguments.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Tile = typename BackwardWork<T, HeadDim>::Tile;
    plan.padded_head_dim = HeadDim;
    plan.query_block = Tile::queries;
    std::int64_t const padded_queries = (arguments.queries + Tile::queries - 1) / Tile::queries * Tile::queries;

    // Enough slots for a few teams on every multiprocessor; but each has a dQ of its own, so that beyond two they may not
    // take more than 32 MiB together.
    std::int64_t const heads = std::int64_t(arguments.batch) * arguments.kv_heads;
    std::int64_t const bytes = std::int64_t(arguments.batch) * arguments.heads * padded_queries * plan.padded_head_dim *
                               std::int64_t(sizeof(ComputeType<T>));
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
  if constexpr (has_hopper_kernels<T>)
    if (hopper_takes_backward(space, a)) return flash_attention_backward_hopper(space, arguments);
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
                           space, 0, std::int64_t(a.batch) * a.heads * a.queries * arguments.dq.width),
                       SumOfSlots<T>{arguments});
  if (!arguments.d_bias.data) return;
  with_head_dim(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Work = BiasGradientWork<T, HeadDim>;
    int const tiles = Work::Tile::tiles(a);
    launch_tiles("Sporos::flash_attention::backward::bias", space,
                 std::int64_t(arguments.bias_batch) * arguments.bias_heads * tiles, Work{arguments, tiles});
  });
}

#define SPOROS_INSTANTIATE_TYPE(Space, T)                                                                  \
  template void flash_attention_forward_device<Space, T>(Space const&, FlashAttentionArguments<T> const&); \
  template FlashAttentionBackwardPlan flash_attention_backward_plan_device<Space, T>(                      \
      Space const&, FlashAttentionArguments<T> const&);                                                    \
  template void flash_attention_backward_device<Space, T>(Space const&, FlashAttentionBackwardArguments<T> const&);
#define SPOROS_INSTANTIATE(Space)          \
  SPOROS_INSTANTIATE_TYPE(Space, double)   \
  SPOROS_INSTANTIATE_TYPE(Space, float)    \
  SPOROS_INSTANTIATE_TYPE(Space, bfloat16) \
  SPOROS_INSTANTIATE_TYPE(Space, float16)
SPOROS_INSTANTIATE_FOR_DEVICES(SPOROS_INSTANTIATE)
#undef SPOROS_INSTANTIATE
#undef SPOROS_INSTANTIATE_TYPE

}  // namespace Sporos::Impl
#endif
