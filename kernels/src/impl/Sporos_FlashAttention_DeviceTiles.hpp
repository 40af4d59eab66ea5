// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_DEVICETILES_HPP
#define SPOROS_FLASHATTENTION_DEVICETILES_HPP

#include "impl/Sporos_FlashAttention_Problem.hpp"

// Tiles of flash attention on GPUs, as plain functions: every architecture is compiled in a source of its own.
namespace Sporos::Impl {

/// Types that matrix instructions multiply
template <class T>
inline constexpr bool has_matrix_instructions = std::is_same_v<T, bfloat16>;

/// The tiles of one architecture for heads of some width
template <class ExecutionSpace, class T>
struct FlashAttentionDeviceTiles {
  int width;           // of the tiles, not less than head_dim
  int threads;         // of a team
  int forward_bytes;   // scratch of a team
  int backward_bytes;  // ... 0 where there are no backward tiles so wide
  int backward_keys;   // of a tile

  void (*forward)(ExecutionSpace const&, FlashAttentionArguments<T> const&);
  void (*backward)(ExecutionSpace const&, FlashAttentionBackwardArguments<T> const&);
};

/// Defined for Arch::Simt, and for T with matrix instructions for those of the back end: Arch::Sm80 and Sm80SmallScratch,
/// or Arch::Gfx90a and Gfx942.
template <class Arch, class ExecutionSpace, class T>
FlashAttentionDeviceTiles<ExecutionSpace, T> flash_attention_device_tiles(int head_dim);

}  // namespace Sporos::Impl

#endif
