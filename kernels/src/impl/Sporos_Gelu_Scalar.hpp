// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GELU_SCALAR_HPP
#define SPOROS_GELU_SCALAR_HPP

#include <Kokkos_Core.hpp>

// The formulas of Sporos_Gelu_Vector.hpp for one number, C = float or double, on any backend
namespace Sporos::Impl {

template <class C>
KOKKOS_INLINE_FUNCTION C gelu_exponential(C x) {
  return Kokkos::exp(C(-2 * 0.797884560802865355880) * x * (C(0.044715) * x * x + C(1)));
}

template <class C>
KOKKOS_INLINE_FUNCTION C gelu_scalar(C x) {
  return x / (C(1) + gelu_exponential(x));
}

template <class C>
KOKKOS_INLINE_FUNCTION C gelu_derivative_scalar(C x) {
  constexpr C limit = sizeof(C) == 8 ? 20 : 10;
  x = x > limit ? limit : x < -limit ? -limit : x;
  C const e = gelu_exponential(x);
  C const s = C(1) / (C(1) + e);
  C const slope = C(2 * 0.797884560802865355880) * (C(3 * 0.044715) * x * x + C(1));
  return s + x * slope * (s * (e * s));
}

}  // namespace Sporos::Impl

#endif
