// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_HEADDIM_HPP
#define SPOROS_FLASHATTENTION_HEADDIM_HPP

#include "Sporos_Macros.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// Width of a tile, as a type whose value is constant
template <int Width>
struct HeadDimOf {
  SPOROS_FUNCTION constexpr operator int() const { return Width; }
};

/// f(the narrowest width of tiles that holds head_dim columns); the columns behind head_dim are zeros.
template <class F>
SPOROS_FUNCTION auto with_head_dim(int head_dim, F const& f) {
  if (head_dim <= 64) return f(HeadDimOf<64>());
  if (head_dim <= 128) return f(HeadDimOf<128>());
  return f(HeadDimOf<256>());
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
