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
#include "impl/Sporos_FlashAttention_Hopper.hpp"
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

bool has_plain_scores(auto const& a) { return !(a.softcap > 0) && !a.alibi_slopes.data && !a.bias.data; }

/// The tiles for a problem on the device of `space`: those of its matrix instructions if there are any for T, scores are
/// plain, rows are aligned, and a team may have the scratch that `bytes` (of the forward or the backward pass) says; else
/// any GPU's.
template <class ExecutionSpace, class T>
FlashAttentionDeviceTiles<ExecutionSpace, T> choose_tiles([[maybe_unused]] ExecutionSpace const& space,
                                                          FlashAttentionArguments<T> const& a, bool aligned,
                                                          int FlashAttentionDeviceTiles<ExecutionSpace, T>::* bytes) {
  int const head_dim = a.head_dim;
  auto const simt = flash_attention_device_tiles<Arch::Simt, ExecutionSpace, T>(head_dim);
  if constexpr (has_matrix_instructions<T>) {
    int const available = int(Kokkos::TeamPolicy<ExecutionSpace>::scratch_size_max(0));
    auto const fits = [&](auto const& tiles) { return tiles.*bytes != 0 && tiles.*bytes <= available; };
    if (!aligned || !has_plain_scores(a)) return simt;
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
  if constexpr (has_hopper_kernels<T>)
    if (hopper_takes_forward(space, arguments)) return flash_attention_forward_hopper(space, arguments);
  using Tiles = FlashAttentionDeviceTiles<ExecutionSpace, T>;
  choose_tiles<ExecutionSpace, T>(space, arguments, rows_are_aligned(arguments), &Tiles::forward_bytes)
      .forward(space, arguments);
}

template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan flash_attention_backward_plan_device(ExecutionSpace const& space,
                                                                FlashAttentionArguments<T> const& arguments) {
  if constexpr (has_hopper_kernels<T>)
    if (hopper_takes_backward(space, arguments)) return flash_attention_backward_plan_hopper(space, arguments);
  using Tiles = FlashAttentionDeviceTiles<ExecutionSpace, T>;
  Tiles const tiles =
      choose_tiles<ExecutionSpace, T>(space, arguments, rows_are_aligned(arguments), &Tiles::backward_bytes);
  FlashAttentionBackwardPlan plan;
  plan.shared_sums = false;
  plan.padded_head_dim = tiles.width;
  // The blocks of every architecture divide 64: gradients that are not aligned may change the choice.
  plan.query_block = 64;
  std::int64_t const padded_queries = (arguments.queries + std::int64_t(63)) / 64 * 64;

  // Enough slots for a few teams on every multiprocessor; but each has a dQ of its own, so that beyond two they may not
  // take more than 32 MiB together.
  std::int64_t const heads = std::int64_t(arguments.batch) * arguments.kv_heads;
  std::int64_t const bytes = std::int64_t(arguments.batch) * arguments.heads * padded_queries * plan.padded_head_dim *
                             std::int64_t(sizeof(ComputeType<T>));
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
  using Tiles = FlashAttentionDeviceTiles<ExecutionSpace, T>;
  choose_tiles<ExecutionSpace, T>(space, a, rows_are_aligned(arguments), &Tiles::backward_bytes)
      .backward(space, arguments);
  Kokkos::parallel_for("Sporos::flash_attention::backward::sum_of_slots",
                       Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(
                           space, 0, std::int64_t(a.batch) * a.heads * a.queries * arguments.dq.width),
                       SumOfSlots<T>{arguments});
  if (arguments.d_bias.data)
    flash_attention_device_tiles<Arch::Simt, ExecutionSpace, T>(a.head_dim).bias_gradient(space, arguments);
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
