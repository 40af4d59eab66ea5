// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Compiled once per instruction-set level, with -DSPOROS_LEVEL=... and the level's -march.
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"
#include "impl/Sporos_FlashAttention_Host.hpp"
#include "tile/Sporos_Tile_Host.hpp"

namespace Sporos::inline SPOROS_LEVEL {
namespace {

template <class T>
struct Forward {
  template <int HeadDim>
  using Tile = FlashAttentionForwardTile<Arch::Host, T, HeadDim>;

  static int tiles(FlashAttentionArguments<T> const& arguments) {
    return with_head_dim(arguments.head_dim, [&](auto dim) { return Tile<dim>::tiles(arguments); });
  }

  static std::size_t scratch_bytes(FlashAttentionArguments<T> const& arguments) {
    return with_head_dim(arguments.head_dim, [&](auto dim) { return sizeof(typename Tile<dim>::Scratch); });
  }

  static void tile(FlashAttentionArguments<T> const& arguments, int batch, int head, int tile, int split,
                   void* scratch) {
    with_head_dim(arguments.head_dim, [&](auto dim) {
      Team<Arch::Host> team;
      Tile<dim>(team, *static_cast<typename Tile<dim>::Scratch*>(scratch))
          .consume({arguments, batch, head, split}, tile);
    });
  }

  static constexpr Impl::FlashAttentionForwardHostKernel<T> kernel{tiles, scratch_bytes, tile};
};

}  // namespace

Impl::FlashAttentionForwardHostKernels flash_attention_forward_kernels_of_level() {
  return {Forward<double>::kernel, Forward<float>::kernel, Forward<bfloat16>::kernel, Forward<float16>::kernel};
}

}  // namespace Sporos::inline SPOROS_LEVEL
