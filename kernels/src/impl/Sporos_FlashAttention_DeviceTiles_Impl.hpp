// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_DEVICETILES_IMPL_HPP
#define SPOROS_FLASHATTENTION_DEVICETILES_IMPL_HPP

#include "impl/Sporos_DeviceLaunch.hpp"
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_DeviceTiles.hpp"
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"

namespace Sporos::Impl {

/// One team for each tile of queries of each head
template <class Arch, class T, int HeadDim>
struct FlashAttentionForwardWork {
  using Architecture = Arch;
  using Tile = FlashAttentionForwardTile<Arch, T, HeadDim>;
  using Scratch = typename Tile::Scratch;

  static constexpr int teams_at_once = FlashAttentionTeams<Arch>::at_once;

  FlashAttentionArguments<T> m_arguments;
  int m_tiles;

  __device__ void operator()(Team<Arch>& team, Scratch& scratch, int item) const {
    int const head = item / m_tiles;
    // The last tiles are the longest where the mask is causal: they start first.
    int const tile = m_tiles - 1 - item % m_tiles;
    Tile kernel(team, scratch);
    kernel.consume({m_arguments, head / m_arguments.heads, head % m_arguments.heads}, tile);
  }
};

/// One team for each slot of each head of K and V
template <class Arch, class T, int HeadDim>
struct FlashAttentionBackwardWork {
  using Architecture = Arch;
  using Tile = FlashAttentionBackwardTile<Arch, T, HeadDim>;
  using Scratch = typename Tile::Scratch;

  static constexpr int teams_at_once = FlashAttentionTeams<Arch>::at_once;

  FlashAttentionBackwardArguments<T> m_arguments;

  __device__ void operator()(Team<Arch>& team, Scratch& scratch, int item) const {
    int const head = item / m_arguments.slots, kv_heads = m_arguments.forward.kv_heads;
    Tile kernel(team, scratch);
    kernel.consume(m_arguments, head / kv_heads, head % kv_heads, item % m_arguments.slots);
  }
};

template <class Arch, class ExecutionSpace, class T>
FlashAttentionDeviceTiles<ExecutionSpace, T> flash_attention_device_tiles(int head_dim) {
  FlashAttentionDeviceTiles<ExecutionSpace, T> tiles{};
  with_head_dim(head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Forward = FlashAttentionForwardWork<Arch, T, HeadDim>;
    tiles.width = HeadDim;
    tiles.threads = Team<Arch>::threads;
    tiles.forward_bytes = scratch_bytes<Forward>;
    tiles.forward = [](ExecutionSpace const& space, FlashAttentionArguments<T> const& a) {
      int const of_head = Forward::Tile::tiles(a);
      launch_tiles("Sporos::flash_attention::forward", space, std::int64_t(a.batch) * a.heads * of_head,
                   Forward{a, of_head});
    };
    if constexpr (HeadDim <= FlashAttentionTeams<Arch>::widest_backward) {
      using Backward = FlashAttentionBackwardWork<Arch, T, HeadDim>;
      static_assert(64 % Backward::Tile::queries == 0, "the plan pads queries to a multiple of 64");
      tiles.backward_bytes = scratch_bytes<Backward>;
      tiles.backward_keys = Backward::Tile::keys;
      tiles.backward = [](ExecutionSpace const& space, FlashAttentionBackwardArguments<T> const& a) {
        launch_tiles("Sporos::flash_attention::backward", space,
                     std::int64_t(a.forward.batch) * a.forward.kv_heads * a.slots, Backward{a});
      };
    }
  });
  return tiles;
}

#define SPOROS_INSTANTIATE_DEVICE_TILES(Arch, T)                       \
  template FlashAttentionDeviceTiles<Kokkos::DefaultExecutionSpace, T> \
  flash_attention_device_tiles<Arch, Kokkos::DefaultExecutionSpace, T>(int);

}  // namespace Sporos::Impl

#endif
