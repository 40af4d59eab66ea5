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

template <class C>
struct GeluSigmoid {
  Vector<C> s;           // 1 / (1 + e)
  Vector<C> complement;  // 1 - s = e / (1 + e)

  SPOROS_FUNCTION explicit GeluSigmoid(Vector<C> x) {
    constexpr C factor = C(-2 * 0.797884560802865355880 * 1.442695040888963407360);  // -2 √(2/π) log2 e
    Vector<C> const exponent = x * factor * multiply_add(x * x, splat(C(0.044715)), splat(C(1)));
    // A finite e, for ∞/∞ is no number. Its reciprocal is nothing beside the numbers that x is multiplied with.
    Vector<C> const e = exp2(min(splat(C(sizeof(C) == 8 ? 1000 : 120)), exponent));
    s                 = C(1) / (C(1) + e);
    complement        = e * s;
  }
};

}  // namespace HostImpl

template <class C>
SPOROS_FUNCTION Vector<C> gelu(Vector<C> x) {
  return x * HostImpl::GeluSigmoid<C>(x).s;
}

template <class C>
SPOROS_FUNCTION Vector<C> gelu_derivative(Vector<C> x) {
  constexpr C two_u = C(2 * 0.797884560802865355880);
  HostImpl::GeluSigmoid<C> const sigmoid(x);
  Vector<C> const slope = two_u * multiply_add(x * x, splat(C(3 * 0.044715)), splat(C(1)));
  return multiply_add(x * slope, sigmoid.s * sigmoid.complement, sigmoid.s);
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
