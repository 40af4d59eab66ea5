// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FP8_HPP
#define SPOROS_FP8_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "Sporos_StorageTypes.hpp"
#include "Sporos_ViewChecks.hpp"
#include "impl/Sporos_Fp8_Impl.hpp"

namespace Sporos {
namespace Impl {

template <class ExecutionSpace, class T, class Fp8>
void fp8_quantize(ExecutionSpace const& space, std::int64_t rows, Fp8Quantize<T, Fp8> const& arguments);

template <class ExecutionSpace, class T, class Fp8>
void fp8_dequantize(ExecutionSpace const& space, std::int64_t rows, Fp8Dequantize<T, Fp8> const& arguments);

template <class ExecutionSpace>
void fp8_update_scale(ExecutionSpace const& space, Fp8UpdateScale const& arguments);

}  // namespace Impl

/// Scales to the range of an 8-bit format, rounds, and finds the largest magnitude, in one kernel:
///
///     y[r][c] = x[r][c] · scale         product in float, rounded once to nearest even; finite values saturate
///     amax    = max(amax, largest finite |x[r][c]|)
///
/// An infinity becomes the largest finite value, or NaN in the fnuz formats; a NaN stays one. Neither reaches amax.
///
/// \param space      where the kernel runs; the call returns before it has finished
/// \param x          [in] (rows, columns) of float or bfloat16, unit stride in columns
/// \param scale      [in] rank 0 of float, in the execution space's memory as amax
/// \param y         [out] (rows, columns) of float8_e4m3, float8_e5m2, float8_e4m3fnuz or float8_e5m2fnuz
/// \param amax  [in, out] rank 0 of float; set it to 0 before the first of the tensors that share a scale
/// \throws InvalidArgument when extents differ or a stride is not 1
///
/// Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433
template <class ExecutionSpace, class XView, class ScaleView, class YView, class AmaxView>
void fp8_quantize(ExecutionSpace const& space, XView const& x, ScaleView const& scale, YView const& y,
                  AmaxView const& amax) {
  static_assert(ScaleView::rank() == 0 && AmaxView::rank() == 0);
  using T = typename XView::non_const_value_type;
  using Fp8 = typename YView::non_const_value_type;
  Impl::require_rows("x", x, x.extent(0), x.extent(1));
  Impl::require_accessible<ExecutionSpace>(x, scale, y, amax);
  Impl::require_rows("y", y, x.extent(0), x.extent(1));
  Kokkos::Profiling::ScopedRegion region("Sporos::fp8_quantize");
  Impl::fp8_quantize(space, std::int64_t(x.extent(0)),
                     Impl::Fp8Quantize<T, Fp8>{.columns = std::int64_t(x.extent(1)),
                                               .x = Impl::const_rows_of(x),
                                               .scale = scale.data(),
                                               .y = Impl::rows_of(y),
                                               .amax = amax.data()});
}

/// The inverse, as far as there is one: x[r][c] = y[r][c] / scale, in float, rounded to T.
///
/// \param y          [in] (rows, columns) of an 8-bit format, unit stride in columns
/// \param scale      [in] rank 0 of float, the one that y was quantised with
/// \param x         [out] (rows, columns) of float or bfloat16
/// \throws InvalidArgument when extents differ or a stride is not 1
template <class ExecutionSpace, class YView, class ScaleView, class XView>
void fp8_dequantize(ExecutionSpace const& space, YView const& y, ScaleView const& scale, XView const& x) {
  static_assert(ScaleView::rank() == 0);
  using T = typename XView::non_const_value_type;
  using Fp8 = typename YView::non_const_value_type;
  Impl::require_rows("y", y, y.extent(0), y.extent(1));
  Impl::require_accessible<ExecutionSpace>(y, scale, x);
  Impl::require_rows("x", x, y.extent(0), y.extent(1));
  Kokkos::Profiling::ScopedRegion region("Sporos::fp8_dequantize");
  Impl::fp8_dequantize(space, std::int64_t(y.extent(0)),
                       Impl::Fp8Dequantize<T, Fp8>{.columns = std::int64_t(y.extent(1)),
                                                   .y = Impl::const_rows_of(y),
                                                   .scale = scale.data(),
                                                   .x = Impl::rows_of(x)});
}

/// The scale that takes amax to the largest finite value of the format Fp8: scale = min(largest / amax, 2^126), so that
/// scale and its reciprocal are normal numbers. Where amax is 0 or not finite, the scale stays.
///
/// \tparam Fp8 names the format, for instance fp8_update_scale<float8_e4m3>(space, amax, scale)
/// \param amax       [in] rank 0 of float
/// \param scale [in, out] rank 0 of float
template <class Fp8, class ExecutionSpace, class AmaxView, class ScaleView>
void fp8_update_scale(ExecutionSpace const& space, AmaxView const& amax, ScaleView const& scale) {
  static_assert(AmaxView::rank() == 0 && ScaleView::rank() == 0);
  Impl::require_accessible<ExecutionSpace>(amax, scale);
  float const largest(Fp8::from_bits(typename Fp8::Bits(Fp8::Format::largest)));
  Kokkos::Profiling::ScopedRegion region("Sporos::fp8_update_scale");
  Impl::fp8_update_scale(space, Impl::Fp8UpdateScale{largest, amax.data(), scale.data()});
}

}  // namespace Sporos

#endif
