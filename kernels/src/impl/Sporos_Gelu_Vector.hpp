// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GELU_VECTOR_HPP
#define SPOROS_GELU_VECTOR_HPP

#include "tile/Sporos_Simd.hpp"

// With u = √(2/π) · (x + 0.044715 x³) is (1 + tanh u) / 2 = 1 / (1 + e^(-2u)) = s, so that
//     gelu(x)  = x · s
//     gelu'(x) = s + x · s · (1 - s) · 2u'
// without the cancellation of 1 + tanh u at negative x.
namespace Sporos::inline SPOROS_LEVEL {

namespace HostImpl {

/// e^(-2u), 0 and infinity where it is too small or too large
template <class C>
SPOROS_FUNCTION Vector<C> gelu_exponential(Vector<C> x) {
  constexpr C factor = C(-2 * 0.797884560802865355880 * 1.442695040888963407360);  // -2 √(2/π) log2 e
  return exp2(x * factor * multiply_add(x * x, splat(C(0.044715)), splat(C(1))));
}

}  // namespace HostImpl

template <class C>
SPOROS_FUNCTION Vector<C> gelu(Vector<C> x) {
  return x / (C(1) + HostImpl::gelu_exponential<C>(x));
}

template <class C>
SPOROS_FUNCTION Vector<C> gelu_derivative(Vector<C> x) {
  // Beyond, the derivative is 0 or 1 to the last bit, but s (1 - s) would be ∞/∞ in time.
  constexpr C limit = sizeof(C) == 8 ? 20 : 10;
  constexpr C two_u = C(2 * 0.797884560802865355880);
  x = min(splat(limit), max(splat(-limit), x));
  Vector<C> const e = HostImpl::gelu_exponential<C>(x);
  Vector<C> const s = C(1) / (C(1) + e);
  Vector<C> const slope = two_u * multiply_add(x * x, splat(C(3 * 0.044715)), splat(C(1)));
  return multiply_add(x * slope, s * (e * s), s);
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
