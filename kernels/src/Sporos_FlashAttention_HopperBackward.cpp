// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_FlashAttention_Hopper.hpp"
#include "impl/Sporos_FlashAttention_HopperRows.hpp"
#include "impl/Sporos_FlashAttention_TeamWork.hpp"
#include "impl/Sporos_HopperLaunch.hpp"

#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__)
namespace Sporos::Impl {
namespace {

using HopperArch = Arch::Sm90;

/// f(width of the tiles)
template <class F>
auto with_backward_width(int head_dim, F const& f) {
  return head_dim <= 64 ? f(HeadDimOf<64>()) : f(HeadDimOf<128>());
}

template <class T, int HeadDim, FlashAttentionHeads Heads>
void launch_backward(Kokkos::Cuda const& space, FlashAttentionBackwardArguments<T> b) {
  using Work = FlashAttentionBackwardWork<HopperArch, T, HeadDim, Heads>;
  using Tile = typename Work::Tile;
  FlashAttentionArguments<T>& a = b.forward;
  TensorMaps<4> maps;
  bool const complete = a.cumulative_queries == nullptr && a.queries > 0 && a.keys > 0 &&
                        maps.add(a.q, a.batch, a.queries, a.heads, a.q.width, Tile::queries) &&
                        maps.add(b.d_o, a.batch, a.queries, a.heads, b.d_o.width, Tile::queries) &&
                        maps.add(a.k, a.batch, a.keys, a.kv_heads, a.k.width, Tile::keys) &&
                        maps.add(a.v, a.batch, a.keys, a.kv_heads, a.v.width, Tile::keys);
  if (!complete) maps.count = 0;
  launch_hopper<HopperArch>("Sporos::flash_attention::backward", space, Work(b), maps);
}

}  // namespace

template <class ExecutionSpace, class T>
bool hopper_takes_backward(ExecutionSpace const& space, FlashAttentionArguments<T> const& a) {
  bool const plain = !(a.softcap > 0) && !a.alibi_slopes.data && !a.bias.data && !a.dropout.active();
  if (!plain || a.head_dim > 128 || !device_runs_hopper_code()) return false;
  return with_backward_width(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Work = FlashAttentionBackwardWork<HopperArch, T, HeadDim, FlashAttentionHeads::any>;
    std::int64_t const items = std::int64_t(a.batch) * a.kv_heads * Work::Tile::tiles(a);
    return items <= std::numeric_limits<int>::max() && fits_scratch<HopperArch, Work>();
  });
}

/// Each tile of keys is an item of its own, and all add to one dQ. To be repeatable, as many slots as give every team one
/// share them, each with a dQ: together up to 1 GiB.
template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan flash_attention_backward_plan_hopper(ExecutionSpace const& space,
                                                                FlashAttentionArguments<T> const& a) {
  return with_backward_width(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Shape = FlashAttentionBackwardShape<HopperArch, T, HeadDim>;
    std::int64_t const tiles = std::max(1, (a.keys + Shape::keys - 1) / Shape::keys);
    if (!a.repeatable) return FlashAttentionBackwardPlan{int(tiles), true, Shape::queries, HeadDim};
    std::int64_t const teams = space.cuda_device_prop().multiProcessorCount;
    std::int64_t const heads = std::max<std::int64_t>(1, std::int64_t(a.batch) * a.kv_heads);
    std::int64_t const bytes =
        std::int64_t(a.batch) * a.heads * (a.queries + Shape::queries) * HeadDim * std::int64_t(sizeof(float));
    std::int64_t const held = std::max<std::int64_t>(1, (std::int64_t(1) << 30) / std::max<std::int64_t>(1, bytes));
    std::int64_t const slots = std::min({(teams + heads - 1) / heads, held, tiles});
    return FlashAttentionBackwardPlan{int(slots), false, Shape::queries, HeadDim};
  });
}

template <class ExecutionSpace, class T>
void flash_attention_backward_hopper(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> const& b) {
  FlashAttentionArguments<T> const& a = b.forward;
  std::int64_t const rows = std::int64_t(a.batch) * a.heads * b.padded_queries;
  with_backward_width(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Rows = FlashAttentionHopperRows<T, HeadDim>;
    launch_pass("Sporos::flash_attention::backward::rows", space, (rows + Rows::rows_of_team - 1) / Rows::rows_of_team,
                Rows{b, rows});
    if (heads_of(a) == FlashAttentionHeads::simple)
      launch_backward<T, HeadDim, FlashAttentionHeads::simple>(space, b);
    else
      launch_backward<T, HeadDim, FlashAttentionHeads::any>(space, b);
    using Sums = FlashAttentionHopperSums<HopperArch, T, HeadDim>;
    std::int64_t const blocks = rows / b.query_block;
    launch_pass("Sporos::flash_attention::backward::sum_of_slots", space,
                (blocks * Sums::parts + Sums::warps - 1) / Sums::warps, Sums{b, blocks});
  });
}

#define SPOROS_INSTANTIATE(T)                                                                                   \
  template bool hopper_takes_backward<Kokkos::Cuda, T>(Kokkos::Cuda const&, FlashAttentionArguments<T> const&); \
  template FlashAttentionBackwardPlan flash_attention_backward_plan_hopper<Kokkos::Cuda, T>(                    \
      Kokkos::Cuda const&, FlashAttentionArguments<T> const&);                                                  \
  template void flash_attention_backward_hopper<Kokkos::Cuda, T>(Kokkos::Cuda const&,                           \
                                                                 FlashAttentionBackwardArguments<T> const&);
SPOROS_INSTANTIATE(bfloat16)
SPOROS_INSTANTIATE(float16)
#undef SPOROS_INSTANTIATE

}  // namespace Sporos::Impl
#endif
