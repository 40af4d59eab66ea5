// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_TILESHAPE_HPP
#define SPOROS_FLASHATTENTION_TILESHAPE_HPP

#include "tile/Sporos_Tile.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// Forward: queries that stay, keys that stream past, buffers (stages) for each of K and V.
template <class Arch, class T, int HeadDim>
struct FlashAttentionForwardShape;

/// Backward: keys that stay, queries that stream past, buffers for each of Q and dO; issues_early says whether dV += P dO
/// shall be under way while dS is computed.
template <class Arch, class T, int HeadDim>
struct FlashAttentionBackwardShape;

/// Teams that a multiprocessor of a GPU shall hold at once, which limits registers; and the widest heads with backward tiles
template <class Arch>
struct FlashAttentionTeams {
  static constexpr int at_once = 2;
  static constexpr int widest_backward = 128;
};
template <>
struct FlashAttentionTeams<Arch::Simt> {
  static constexpr int at_once = 3;
  static constexpr int widest_backward = 256;
};

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
  static constexpr bool issues_early = false;
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
  static constexpr bool issues_early = false;
};

// Hopper: each warpgroup that computes has 64 rows. Two of them may keep 240 registers a thread, three 160. Scratch is what
// one team may have, 226 KiB at most.
template <int Groups, int Keys>
struct FlashAttentionHopperForward {
  static constexpr int queries = 64 * Groups;
  static constexpr int keys = Keys;
  static constexpr int stages = 2;
};

template <int Groups, int Queries>
struct FlashAttentionHopperBackward {
  static constexpr int keys = 64 * Groups;
  static constexpr int queries = Queries;
  static constexpr int stages = 2;
  static constexpr bool issues_early = true;
};

// 128 x 176: S, P and O take 88 + 44 + 64 registers; scratch 32 + 4 · 44 KiB. Wide blocks read Q from scratch less often, but
// a causal mask wastes more of them: 2k, TFLOP/s with 176 / 160 / 128 keys 432 / 464 / 490. D = 64 is bound by
// exponentials, of which three warpgroups keep more under way. D = 256 has room for 80 keys; 64 are 1 % faster.
template <int Groups, class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Sm90With<Groups>, T, HeadDim>
    : FlashAttentionHopperForward<Groups, HeadDim == 64    ? 128
                                          : HeadDim == 128 ? 176
                                                           : 64> {};

// dK and dV take HeadDim registers, S, dP and dQ queries / 2 each; heads of 256 do not fit. D = 64, 16k, TFLOP/s with
// 64 / 96 / 128 queries: 419 / 461 / 332, the last with spills.
template <int Groups, class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Sm90With<Groups>, T, HeadDim>
    : FlashAttentionHopperBackward<Groups, HeadDim == 64 ? 96 : 64> {};

// NVIDIA GPUs with mma.sync. A warp of the four owns 16 or 32 whole rows of a tile. Twice the rows read K and V from scratch
// half as often; 255 registers a lane are the limit. One H200, 8k, D = 64 / 128 / 256, TFLOP/s: forward 246 / 234 / 182,
// backward 80 / 44 / none.
template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Sm80, T, HeadDim> {
  static constexpr int queries = HeadDim <= 128 ? 128 : 64;  // O takes 64, 128, 128 registers
  static constexpr int keys = HeadDim <= 64 ? 64 : 32;       // S 64, 32, 16, P half of that
  static constexpr int stages = 2;                           // 32, 64, 96 KB of scratch: two teams on an SM of an A100
};

// dK and dV take 64 registers of D = 64 and 128 of D = 128. Wider heads would spill.
template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Sm80, T, HeadDim> {
  static constexpr int keys = 64;
  static constexpr int queries = 32;  // 64 spill 20 bytes at D = 64
  static constexpr int stages = 2;    // 28, 52 KB
  static constexpr bool issues_early = false;
};

// As the scratch of Kokkos before 5.2 has it, 40 KB a team. Q and V, of 16 rows a warp, stay in registers.
template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Sm80SmallScratch, T, HeadDim>
    : FlashAttentionForwardShape<Arch::Sm80, T, HeadDim> {};
template <class T>
struct FlashAttentionForwardShape<Arch::Sm80SmallScratch, T, 128> {
  static constexpr int queries = 64;
  static constexpr int keys = 32;
  static constexpr int stages = 2;  // 32 KB
};
template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Sm80SmallScratch, T, HeadDim>
    : FlashAttentionBackwardShape<Arch::Sm80, T, HeadDim> {};
template <class T>
struct FlashAttentionBackwardShape<Arch::Sm80SmallScratch, T, 128> {
  static constexpr int keys = 64;
  static constexpr int queries = 16;
  static constexpr int stages = 2;  // 34 KB; 32 queries in one stage spill 4 bytes
  static constexpr bool issues_early = false;
};

// AMD GPUs with MFMA. A wavefront of the four owns 16 rows. Left factors that stay (Q; K and V in the backward pass)
// are in registers, of which a lane has 512; the 64 KB of scratch of a compute unit hold two teams of 32 KB or less, but for
// the backward pass of wide heads.
template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Gfx942, T, HeadDim> {
  static constexpr int queries = 64;  // 128 spill at two teams on a compute unit
  static constexpr int keys = HeadDim <= 128 ? 64 : 32;
  static constexpr int stages = 1;  // 16, 32, 32 KB; the next block waits in registers
};

// Up to D = 128: a wider head's blocks, each in two copies, exceed scratch.
template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Gfx942, T, HeadDim> {
  static constexpr int keys = 64;
  static constexpr int queries = 32;
  static constexpr int stages = 1;  // 28, 52 KB
  static constexpr bool issues_early = false;
};

template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Gfx90a, T, HeadDim> : FlashAttentionForwardShape<Arch::Gfx942, T, HeadDim> {};
template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Gfx90a, T, HeadDim> : FlashAttentionBackwardShape<Arch::Gfx942, T, HeadDim> {};

// An emulator has the tiles of what it emulates.
template <class A, class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Emulated<A>, T, HeadDim> : FlashAttentionForwardShape<A, T, HeadDim> {};
template <class A, class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Emulated<A>, T, HeadDim> : FlashAttentionBackwardShape<A, T, HeadDim> {};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
