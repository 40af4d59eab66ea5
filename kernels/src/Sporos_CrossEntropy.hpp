// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_CROSSENTROPY_HPP
#define SPOROS_CROSSENTROPY_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "Sporos_StorageTypes.hpp"
#include "Sporos_ViewChecks.hpp"
#include "impl/Sporos_CrossEntropy_Impl.hpp"

namespace Sporos {
namespace Impl {

template <class ExecutionSpace, class T>
void cross_entropy(ExecutionSpace const& space, std::int64_t rows, CrossEntropyForward<T> const& arguments);

template <class ExecutionSpace, class LogitsT, class T>
void cross_entropy_backward(ExecutionSpace const& space, std::int64_t rows,
                            CrossEntropyBackward<LogitsT, T> const& arguments);

}  // namespace Impl

/// Cross entropy of the softmax of each row against one class:
///
///     log_sum_exp[r] = log Σ_c exp(logits[r][c])
///     loss[r]        = log_sum_exp[r] − logits[r][targets[r]],   0 where targets[r] is −1 (ignored)
///
/// The largest logit of a row is subtracted before exp, so nothing overflows; a logit of −∞ has probability 0. The
/// probabilities are never stored. A target outside [−1, V) gives the loss NaN.
///
/// \param space        where the kernel runs; the call returns before it has finished
/// \param logits       [in] (rows, V) of T = double, float or bfloat16, unit stride in V
/// \param targets      [in] (rows) of int
/// \param loss        [out] (rows) of ComputeType<T>, in nats
/// \param log_sum_exp [out] (rows) of ComputeType<T>
/// \throws InvalidArgument when extents differ or a stride is not 1
template <class ExecutionSpace, class LogitsView, class TargetsView, class LossView, class LogSumExpView>
void cross_entropy(ExecutionSpace const& space, LogitsView const& logits, TargetsView const& targets,
                   LossView const& loss, LogSumExpView const& log_sum_exp) {
  using T = typename LogitsView::non_const_value_type;
  std::size_t const rows = logits.extent(0);
  Impl::require_rows("logits", logits, rows, logits.extent(1));
  Impl::require_vector("targets", targets, rows);
  Impl::require_accessible<ExecutionSpace>(logits, targets, loss, log_sum_exp);
  Impl::require_vector("loss", loss, rows);
  Impl::require_vector("log_sum_exp", log_sum_exp, rows);

  Kokkos::Profiling::ScopedRegion region("Sporos::cross_entropy");
  Impl::cross_entropy(space, std::int64_t(rows),
                      Impl::CrossEntropyForward<T>{.columns = std::int64_t(logits.extent(1)),
                                                   .logits = Impl::const_rows_of(logits),
                                                   .targets = targets.data(),
                                                   .loss = loss.data(),
                                                   .log_sum_exp = log_sum_exp.data()});
}

/// The gradient of scale · Σ_r loss[r]:
///
///     dlogits[r][c] = scale · (exp(logits[r][c] − log_sum_exp[r]) − [c = targets[r]]),   0 where targets[r] is −1
///
/// \param logits       [in] (rows, V) of double, float or bfloat16, unit stride in V
/// \param targets      [in] (rows) of int
/// \param log_sum_exp  [in] (rows), as the forward pass wrote it
/// \param scale        usually 1 / tokens of the global batch
/// \param dlogits     [out] (rows, V) of the logits' type, or bfloat16 for logits of float; may be the logits themselves
/// \throws InvalidArgument when extents differ or a stride is not 1
template <class ExecutionSpace, class LogitsView, class TargetsView, class LogSumExpView, class DlogitsView>
void cross_entropy_backward(ExecutionSpace const& space, LogitsView const& logits, TargetsView const& targets,
                            LogSumExpView const& log_sum_exp, double scale, DlogitsView const& dlogits) {
  using LogitsT = typename LogitsView::non_const_value_type;
  using T = typename DlogitsView::non_const_value_type;
  std::size_t const rows = logits.extent(0);
  Impl::require_rows("logits", logits, rows, logits.extent(1));
  Impl::require_vector("targets", targets, rows);
  Impl::require_vector("log_sum_exp", log_sum_exp, rows);
  Impl::require_accessible<ExecutionSpace>(logits, targets, log_sum_exp, dlogits);
  Impl::require_rows("dlogits", dlogits, rows, logits.extent(1));

  Kokkos::Profiling::ScopedRegion region("Sporos::cross_entropy_backward");
  Impl::cross_entropy_backward(space, std::int64_t(rows),
                               Impl::CrossEntropyBackward<LogitsT, T>{.columns = std::int64_t(logits.extent(1)),
                                                                      .logits = Impl::const_rows_of(logits),
                                                                      .targets = targets.data(),
                                                                      .log_sum_exp = log_sum_exp.data(),
                                                                      .scale = scale,
                                                                      .dlogits = Impl::rows_of(dlogits)});
}

}  // namespace Sporos

#endif
