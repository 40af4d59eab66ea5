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

template <class T, int HeadDim>
struct FlashAttentionForwardShape<Arch::Host, T, HeadDim> {
  static constexpr int queries = 64;
  static constexpr int keys    = 64;
  static constexpr int stages  = 1;  // copies are synchronous
};

template <class T, int HeadDim>
struct FlashAttentionBackwardShape<Arch::Host, T, HeadDim> {
  static constexpr int keys    = 64;
  static constexpr int queries = 64;
  static constexpr int stages  = 1;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
