// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_TILESHAPE_HPP
#define SPOROS_FLASHATTENTION_TILESHAPE_HPP

#include "tile/Sporos_Tile.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// Forward: queries that stay, keys that stream past, buffers (stages) for each of K and V.
template <class Arch, class T, int HeadDim>
struct FlashAttentionForwardShape;

/// Backward: keys that stay, queries that stream past, buffers for each of Q and dO.
template <class Arch, class T, int HeadDim>
struct FlashAttentionBackwardShape;

// Measured with AVX2 (Zen 4) on a busy machine: 128 queries or keys lose about 8 to 14 % (D = 64) on short causal sequences,
// of which the diagonal is a larger part; on long ones no shape stood out.
template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Host, T, HeadDim> {
  static constexpr int queries = 64;
  static constexpr int keys = 64;
  static constexpr int stages = 1;  // copies are synchronous
};

template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Host, T, HeadDim> {
  static constexpr int keys = 64;
  static constexpr int queries = 64;
  static constexpr int stages = 1;
};

// GPUs without matrix instructions: tiles of rows of HeadDim numbers in scratch, of which older Kokkos has 40 KB. Larger
// ones in registers, too, would spill. (Doubles of 128 and anything of 256 takes 50 to 134 KB, and has to take turns.)
template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Simt, T, HeadDim> {
  static constexpr int row = HeadDim * int(sizeof(ComputeType<T>));  // bytes
  static constexpr int queries = row <= 256 ? 64 : row <= 512 ? 32 : 16;
  static constexpr int keys = row <= 256 ? 32 : 16;
  static constexpr int stages = 1;
};

template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Simt, T, HeadDim> {
  static constexpr int row = HeadDim * int(sizeof(ComputeType<T>));
  static constexpr int keys = row <= 256 ? 32 : 16;
  static constexpr int queries = keys;
  static constexpr int stages = 1;
};

// NVIDIA GPUs with mma.sync. A warp owns 16 or 32 whole rows of a tile, of 255 registers a lane: 32 rows read K and V from
// scratch half as often, and where O alone does not take half of the registers they fit.
template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Sm80, T, HeadDim> {
  static constexpr int queries = HeadDim <= 128 ? 128 : 64;
  static constexpr int keys = HeadDim <= 64 ? 64 : 32;
  static constexpr int stages = 2;
};

template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Sm80, T, HeadDim> {
  static constexpr int keys = HeadDim <= 128 ? 64 : 32;
  static constexpr int queries = HeadDim <= 64 ? 64 : 32;
  static constexpr int stages = 2;
};

// An emulator has the tiles of what it emulates.
template <class A, class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Emulated<A>, T, HeadDim> : FlashAttentionForwardShape<A, T, HeadDim> {};
template <class A, class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Emulated<A>, T, HeadDim> : FlashAttentionBackwardShape<A, T, HeadDim> {};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
