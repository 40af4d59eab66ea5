// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_FlashAttention_Device.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "impl/Sporos_DeviceLaunch.hpp"
#include "impl/Sporos_FlashAttention_DeviceTiles.hpp"
#include "impl/Sporos_OnlineSoftmax.hpp"

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
namespace Sporos::Impl {
namespace {

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

/// Whether every row starts at a multiple of 16 bytes: matrix instructions are fed in pieces of that size. head_dim is a
/// multiple of 8 anyway.
template <class T>
bool rows_are_aligned(HeadTensor<T> const& x) {
  auto const multiple = [](std::int64_t stride) { return stride * std::int64_t(sizeof(T)) % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && multiple(x.batch_stride) &&
         multiple(x.sequence_stride) && multiple(x.head_stride);
}

template <class T>
bool rows_are_aligned(FlashAttentionArguments<T> const& a) {
  return rows_are_aligned(a.q) && rows_are_aligned(a.k) && rows_are_aligned(a.v) && rows_are_aligned(a.o);
}

template <class T>
bool rows_are_aligned(FlashAttentionBackwardArguments<T> const& a) {
  return rows_are_aligned(a.forward) && rows_are_aligned(a.d_o) && rows_are_aligned(a.dk) && rows_are_aligned(a.dv);
}

/// The tiles for a problem on the device of `space`: those of its matrix instructions if there are any for T, rows are
/// aligned, and a team may have the scratch that `bytes` (of the forward or the backward pass) says; else any GPU's.
template <class ExecutionSpace, class T>
FlashAttentionDeviceTiles<ExecutionSpace, T> choose_tiles(ExecutionSpace const& space, int head_dim, bool aligned,
                                                          int FlashAttentionDeviceTiles<ExecutionSpace, T>::* bytes) {
  auto const simt = flash_attention_device_tiles<Arch::Simt, ExecutionSpace, T>(head_dim);
  if constexpr (has_matrix_instructions<T>) {
    int const available = int(Kokkos::TeamPolicy<ExecutionSpace>::scratch_size_max(0));
    auto const fits = [&](auto const& tiles) { return tiles.*bytes != 0 && tiles.*bytes <= available; };
    if (!aligned) return simt;
#if defined(KOKKOS_ENABLE_CUDA)
    if (space.cuda_device_prop().major < 8) return simt;
    auto const large = flash_attention_device_tiles<Arch::Sm80, ExecutionSpace, T>(head_dim);
    if (fits(large)) return large;
    auto const small = flash_attention_device_tiles<Arch::Sm80SmallScratch, ExecutionSpace, T>(head_dim);
    if (fits(small)) return small;
#elif defined(KOKKOS_ENABLE_HIP)
    std::string const name = space.hip_device_prop().gcnArchName;  // "gfx90a:sramecc+:xnack-"
    auto const gfx90a = flash_attention_device_tiles<Arch::Gfx90a, ExecutionSpace, T>(head_dim);
    auto const gfx942 = flash_attention_device_tiles<Arch::Gfx942, ExecutionSpace, T>(head_dim);
    if (name.starts_with("gfx90a") && fits(gfx90a)) return gfx90a;
    if (name.starts_with("gfx942") && fits(gfx942)) return gfx942;
#endif
  }
  return simt;
}

}  // namespace

template <class ExecutionSpace, class T>
void flash_attention_forward_device(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  using Tiles = FlashAttentionDeviceTiles<ExecutionSpace, T>;
  choose_tiles<ExecutionSpace, T>(space, arguments.head_dim, rows_are_aligned(arguments), &Tiles::forward_bytes)
      .forward(space, arguments);
}

template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan flash_attention_backward_plan_device(ExecutionSpace const& space,
                                                                FlashAttentionArguments<T> const& arguments) {
  using Tiles = FlashAttentionDeviceTiles<ExecutionSpace, T>;
  Tiles const tiles =
      choose_tiles<ExecutionSpace, T>(space, arguments.head_dim, rows_are_aligned(arguments), &Tiles::backward_bytes);
  FlashAttentionBackwardPlan plan;
  plan.padded_head_dim = tiles.width;
  // The blocks of every architecture divide 64: gradients that are not aligned may change the choice.
  plan.padded_queries = (arguments.queries + 63) / 64 * 64;

  // Enough slots for a few teams on every multiprocessor; but each has a dQ of its own, so that beyond two they may not
  // take more than 32 MiB together.
  std::int64_t const heads = std::int64_t(arguments.batch) * arguments.kv_heads;
  std::int64_t const bytes = std::int64_t(arguments.batch) * arguments.heads * plan.padded_queries *
                             plan.padded_head_dim * std::int64_t(sizeof(ComputeType<T>));
  std::int64_t const teams = space.concurrency() / (4 * tiles.threads);
  std::int64_t const wanted = (teams + heads - 1) / std::max<std::int64_t>(heads, 1);
  std::int64_t const held = std::max<std::int64_t>(2, (std::int64_t(32) << 20) / std::max<std::int64_t>(bytes, 1));
  std::int64_t const all = (arguments.keys + tiles.backward_keys - 1) / tiles.backward_keys;
  plan.slots = int(std::max<std::int64_t>(1, std::min({wanted, held, all})));
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
  using Tiles = FlashAttentionDeviceTiles<ExecutionSpace, T>;
  choose_tiles<ExecutionSpace, T>(space, a.head_dim, rows_are_aligned(arguments), &Tiles::backward_bytes)
      .backward(space, arguments);
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
