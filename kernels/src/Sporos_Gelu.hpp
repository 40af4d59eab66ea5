// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GELU_HPP
#define SPOROS_GELU_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <cstdint>
#include <type_traits>

#include "Sporos_Error.hpp"
#include "Sporos_ViewChecks.hpp"

namespace Sporos {

namespace Impl {

/// Matrices of one shape, element (r, c) at r · stride + c
template <class T>
struct GeluArguments {
  T const* dy = nullptr;  // none: forward
  T const* x;
  T* result;  // y or dx
  std::int64_t rows, columns;
  std::int64_t dy_stride = 0;
  std::int64_t x_stride, result_stride;
};

/// Defined for double, float and bfloat16
template <class ExecutionSpace, class T>
void gelu(ExecutionSpace const& space, GeluArguments<T> const& arguments);

template <class ExecutionSpace, class XView, class ResultView>
auto gelu_arguments(XView const& x, char const* name, ResultView const& result) {
  static_assert(XView::rank() == 2 && ResultView::rank() == 2, "All Views are (rows, columns)");
  using T = typename ResultView::value_type;
  static_assert(std::is_same_v<T, typename XView::non_const_value_type>, "All Views are of one type");
  static_assert(is_accessible<ExecutionSpace, XView> && is_accessible<ExecutionSpace, ResultView>,
                "The execution space cannot reach the memory of a View");
  require_unit_stride("x", x);
  require_unit_stride(name, result);
  require_same_extents("x", x, name, result);
  GeluArguments<T> g{};
  g.x = x.data();
  g.result = result.data();
  g.rows = std::int64_t(x.extent(0));
  g.columns = std::int64_t(x.extent(1));
  g.x_stride = std::int64_t(x.stride(0));
  g.result_stride = std::int64_t(result.stride(0));
  return g;
}

}  // namespace Impl

/// Gaussian error linear unit, in the tanh form that GPT-2 was trained with (Hendrycks and Gimpel, arXiv:1606.08415,
/// section 2), element by element:
///
///     y = gelu(x) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
///
/// \param space where the kernel runs; the call returns before it has finished
/// \param x  [in] (rows, columns), unit stride in columns; double, float or bfloat16
/// \param y [out] (rows, columns), of the same type, may be x itself
/// \throws InvalidArgument when the extents differ
///
/// Arithmetic is in double for double, else in float.
template <class ExecutionSpace, class XView, class YView>
void gelu(ExecutionSpace const& space, XView const& x, YView const& y) {
  Kokkos::Profiling::ScopedRegion region("Sporos::gelu");
  Impl::gelu(space, Impl::gelu_arguments<ExecutionSpace>(x, "y", y));
}

/// dx = dy · gelu'(x), element by element
///
/// \param dy [in] (rows, columns)
/// \param x  [in] (rows, columns), what gelu was applied to
/// \param dx [out] (rows, columns), may be dy itself
/// Types, strides and exceptions as for gelu.
template <class ExecutionSpace, class DyView, class XView, class DxView>
void gelu_backward(ExecutionSpace const& space, DyView const& dy, XView const& x, DxView const& dx) {
  static_assert(
      DyView::rank() == 2 && std::is_same_v<typename DyView::non_const_value_type, typename DxView::value_type>,
      "All Views are (rows, columns) and of one type");
  static_assert(Impl::is_accessible<ExecutionSpace, DyView>, "The execution space cannot reach the memory of dy");
  Kokkos::Profiling::ScopedRegion region("Sporos::gelu_backward");
  auto g = Impl::gelu_arguments<ExecutionSpace>(x, "dx", dx);
  Impl::require_unit_stride("dy", dy);
  Impl::require_same_extents("dy", dy, "x", x);
  g.dy = dy.data();
  g.dy_stride = std::int64_t(dy.stride(0));
  Impl::gelu(space, g);
}

}  // namespace Sporos

#endif
