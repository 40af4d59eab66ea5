// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_LAYERNORM_HPP
#define SPOROS_LAYERNORM_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "Sporos_Random.hpp"
#include "Sporos_StorageTypes.hpp"
#include "impl/Sporos_Norm_Launch.hpp"

namespace Sporos {

/// Adds a residual to the dropout of x and normalises the sum, in one kernel:
///
///     residual_out = residual + dropout(x)                       rounded to T
///     mean[r]      = average over c of residual_out[r][c]
///     rstd[r]      = 1 / √(average over c of (residual_out[r][c] − mean[r])² + epsilon)
///     y[r][c]      = gamma[c] · (residual_out[r][c] − mean[r]) · rstd[r] + beta[c]
///
/// Arithmetic and statistics are in C = ComputeType<T> with a first pass for the mean and a second one for the variance.
/// It is the rounded sum that is normalised, so that the backward pass finds the very same numbers.
///
/// \param space         where the kernel runs; the call returns before it has finished
/// \param x             [in] (rows, columns) of T = double, float or bfloat16, like every matrix here with unit stride in
///                      columns
/// \param residual      [in] (rows, columns), or (0, any) for none
/// \param gamma         [in] (columns) of T
/// \param beta          [in] (columns) of T
/// \param dropout       decides on element (r, c) by its index r · columns + c
/// \param epsilon       added to the variance
/// \param residual_out [out] (rows, columns), may be x or residual itself
/// \param y            [out] (rows, columns)
/// \param mean         [out] (rows) of C
/// \param rstd         [out] (rows) of C
/// \throws InvalidArgument when extents differ, a stride is not 1 or the dropout probability is outside [0, 1)
///
/// Ba, Kiros and Hinton, "Layer normalization", arXiv:1607.06450
template <class ExecutionSpace, class XView, class ResidualView, class GammaView, class BetaView, class ResidualOutView,
          class YView, class MeanView, class RstdView>
void residual_dropout_layernorm(ExecutionSpace const& space, XView const& x, ResidualView const& residual,
                                GammaView const& gamma, BetaView const& beta, Dropout const& dropout, double epsilon,
                                ResidualOutView const& residual_out, YView const& y, MeanView const& mean,
                                RstdView const& rstd) {
  using T = typename YView::non_const_value_type;
  std::size_t const rows = x.extent(0), columns = x.extent(1);
  Impl::require_accessible<ExecutionSpace>(x, residual, gamma, beta, residual_out, y, mean, rstd);
  Impl::require_rows("x", x, rows, columns);
  Impl::require_rows_or_none("residual", residual, rows, columns);
  Impl::require_vector("gamma", gamma, columns);
  Impl::require_vector("beta", beta, columns);
  Impl::require_rows("residual_out", residual_out, rows, columns);
  Impl::require_rows("y", y, rows, columns);
  Impl::require_vector("mean", mean, rows);
  Impl::require_vector("rstd", rstd, rows);
  Impl::require_dropout(dropout);

  Kokkos::Profiling::ScopedRegion region("Sporos::residual_dropout_layernorm");
  Impl::norm_forward(space, std::int64_t(rows),
                     Impl::NormForward<T, Impl::Norm::layer>{.columns = std::int64_t(columns),
                                                             .x = Impl::const_rows_of(x),
                                                             .residual = Impl::rows_or_none(residual),
                                                             .gamma = gamma.data(),
                                                             .beta = beta.data(),
                                                             .dropout = dropout,
                                                             .epsilon = epsilon,
                                                             .residual_out = Impl::rows_of(residual_out),
                                                             .y = Impl::rows_of(y),
                                                             .mean = mean.data(),
                                                             .rstd = rstd.data()});
}

/// The gradients of residual_dropout_layernorm. With n = (residual_out − mean) · rstd and g = gamma · dy:
///
///     dresidual  = dresidual_out + rstd · (g − average(g) − n · average(g · n))     averages over the columns of a row
///     dx         = gradient of the dropout: dresidual / (1 − p) where the element was kept, else 0
///     dgamma[c] += Σ_r dy[r][c] · n[r][c]
///     dbeta[c]  += Σ_r dy[r][c]
///
/// Sums over rows have one fixed order for each shape: the result is bitwise repeatable.
///
/// \param dy             [in] (rows, columns) of T
/// \param dresidual_out  [in] (rows, columns), the gradient that reaches residual_out past the norm, or (0, any) for zero
/// \param residual_out   [in] (rows, columns), as the forward pass wrote it; mean and rstd (rows) of C likewise
/// \param gamma          [in] (columns) of T
/// \param dropout        that of the forward pass
/// \param dx            [out] (rows, columns); without dropout it may be dresidual itself
/// \param dresidual     [out] (rows, columns), may be dy or dresidual_out itself
/// \param dgamma    [in, out] (columns) of C
/// \param dbeta     [in, out] (columns) of C
/// \param workspace     for partial sums
/// \throws InvalidArgument as residual_dropout_layernorm
template <class ExecutionSpace, class DyView, class DresidualOutView, class ResidualOutView, class GammaView,
          class MeanView, class RstdView, class DxView, class DresidualView, class DgammaView, class DbetaView>
void residual_dropout_layernorm_backward(ExecutionSpace const& space, DyView const& dy,
                                         DresidualOutView const& dresidual_out, ResidualOutView const& residual_out,
                                         GammaView const& gamma, MeanView const& mean, RstdView const& rstd,
                                         Dropout const& dropout, DxView const& dx, DresidualView const& dresidual,
                                         DgammaView const& dgamma, DbetaView const& dbeta,
                                         Workspace<ExecutionSpace>& workspace) {
  using T = typename DxView::non_const_value_type;
  std::size_t const rows = dy.extent(0), columns = dy.extent(1);
  Impl::require_accessible<ExecutionSpace>(dy, dresidual_out, residual_out, gamma, mean, rstd, dx, dresidual, dgamma,
                                           dbeta);
  Impl::require_rows("dy", dy, rows, columns);
  Impl::require_rows_or_none("dresidual_out", dresidual_out, rows, columns);
  Impl::require_rows("residual_out", residual_out, rows, columns);
  Impl::require_vector("gamma", gamma, columns);
  Impl::require_vector("mean", mean, rows);
  Impl::require_vector("rstd", rstd, rows);
  Impl::require_rows("dx", dx, rows, columns);
  Impl::require_rows("dresidual", dresidual, rows, columns);
  Impl::require_vector("dgamma", dgamma, columns);
  Impl::require_vector("dbeta", dbeta, columns);
  Impl::require_dropout(dropout);

  Kokkos::Profiling::ScopedRegion region("Sporos::residual_dropout_layernorm_backward");
  Impl::norm_backward(space,
                      Impl::NormBackward<T, Impl::Norm::layer>{.rows = std::int64_t(rows),
                                                               .columns = std::int64_t(columns),
                                                               .rows_per_item = 0,
                                                               .dy = Impl::const_rows_of(dy),
                                                               .dresidual_out = Impl::rows_or_none(dresidual_out),
                                                               .residual_out = Impl::const_rows_of(residual_out),
                                                               .gamma = gamma.data(),
                                                               .mean = mean.data(),
                                                               .rstd = rstd.data(),
                                                               .dropout = dropout,
                                                               .dx = Impl::rows_of(dx),
                                                               .dresidual = Impl::rows_of(dresidual),
                                                               .partials = nullptr},
                      dgamma.data(), dbeta.data(), workspace);
}

}  // namespace Sporos

#endif
