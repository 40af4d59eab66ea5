// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ADAMW_HPP
#define SPOROS_ADAMW_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <cmath>
#include <cstdint>

#include "Sporos_StorageTypes.hpp"
#include "Sporos_ViewChecks.hpp"
#include "Sporos_Workspace.hpp"
#include "impl/Sporos_AdamW_Impl.hpp"

namespace Sporos {

struct AdamWOptions {
  double learning_rate;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  std::int64_t step = 1;  ///< number of this update, from 1: the bias correction depends on it
};

namespace Impl {

template <class ExecutionSpace, class T>
void adamw(ExecutionSpace const& space, AdamWStep<T> const& arguments);

template <Reduction reduction, class ExecutionSpace, class C>
void reduce(ExecutionSpace const& space, std::int64_t size, C const* x, double* result,
            Workspace<ExecutionSpace>& workspace);

template <class ExecutionSpace, class C>
void squared_norms(ExecutionSpace const& space, std::int64_t size, std::int64_t block, C const* x, double* result);

}  // namespace Impl

/// One update of AdamW in one pass over memory. With g = gradient_scale · gradient, for each element
///
///     first_moment  = beta1 · first_moment + (1 − beta1) · g
///     second_moment = beta2 · second_moment + (1 − beta2) · g²
///     m             = first_moment / (1 − beta1^step),  v = second_moment / (1 − beta2^step)
///     master       −= learning_rate · (m / (√v + epsilon) + weight_decay · master)      on the right the old master
///     parameters    = master, rounded to T
///
/// \param space                   where the kernel runs; the call returns before it has finished
/// \param gradient_scale          of every gradient, such as clip_coefficient()
/// \param gradient                [in] (size) of C = ComputeType<T>, without gaps as all Views here
/// \param master             [in, out] (size) of C
/// \param first_moment       [in, out] (size) of C, 0 before the first step; second_moment likewise
/// \param parameters             [out] (size) of T = double, float or bfloat16; may be the master where T is C
/// \throws InvalidArgument when extents differ or the options are out of range
///
/// Loshchilov and Hutter, "Decoupled weight decay regularization", arXiv:1711.05101
template <class ExecutionSpace, class GradientView, class MasterView, class FirstMomentView, class SecondMomentView,
          class ParametersView>
void adamw(ExecutionSpace const& space, AdamWOptions const& options, double gradient_scale,
           GradientView const& gradient, MasterView const& master, FirstMomentView const& first_moment,
           SecondMomentView const& second_moment, ParametersView const& parameters) {
  using T = typename ParametersView::non_const_value_type;
  using C = ComputeType<T>;
  std::size_t const size = parameters.extent(0);
  Impl::require_accessible<ExecutionSpace>(gradient, master, first_moment, second_moment, parameters);
  Impl::require_vector("gradient", gradient, size);
  Impl::require_vector("master", master, size);
  Impl::require_vector("first_moment", first_moment, size);
  Impl::require_vector("second_moment", second_moment, size);
  Impl::require_vector("parameters", parameters, size);
  auto const is_decay = [](double beta) { return beta >= 0 && beta < 1; };
  SPOROS_THROW_IF(!is_decay(options.beta1) || !is_decay(options.beta2), "beta1 is ", options.beta1, ", beta2 is ",
                  options.beta2, "; each must be at least 0 and below 1");
  SPOROS_THROW_IF(options.step < 1, "the step is ", options.step, "; the first one is 1");
  SPOROS_THROW_IF(!(options.epsilon > 0), "epsilon is ", options.epsilon, "; it must be positive");

  Kokkos::Profiling::ScopedRegion region("Sporos::adamw");
  double const step = double(options.step);
  Impl::adamw(space, Impl::AdamWStep<T>{.size = std::int64_t(size),
                                        .gradient_scale = C(gradient_scale),
                                        .beta1 = C(options.beta1),
                                        .beta2 = C(options.beta2),
                                        .of_gradient = C(1 - options.beta1),
                                        .of_square = C(1 - options.beta2),
                                        .first_correction = C(1 / (1 - std::pow(options.beta1, step))),
                                        .second_correction = C(1 / (1 - std::pow(options.beta2, step))),
                                        .learning_rate = C(options.learning_rate),
                                        .epsilon = C(options.epsilon),
                                        .weight_decay = C(options.weight_decay),
                                        .gradient = gradient.data(),
                                        .master = master.data(),
                                        .first_moment = first_moment.data(),
                                        .second_moment = second_moment.data(),
                                        .parameters = parameters.data()});
}

/// *result = Σ x[i], in double and in one fixed order for each size and backend. NaN and infinities propagate.
///
/// \param x         [in] (size) of float or double, without gaps
/// \param result   [out] rank 0 of double, in memory that the execution space reaches
/// \param workspace for partial sums
template <class ExecutionSpace, class XView, class ResultView>
void sum(ExecutionSpace const& space, XView const& x, ResultView const& result, Workspace<ExecutionSpace>& workspace) {
  static_assert(ResultView::rank() == 0);
  Impl::require_accessible<ExecutionSpace>(x, result);
  Impl::require_vector("x", x, x.extent(0));
  Kokkos::Profiling::ScopedRegion region("Sporos::sum");
  Impl::reduce<Impl::Reduction::sum, ExecutionSpace, typename XView::non_const_value_type>(
      space, std::int64_t(x.extent(0)), x.data(), result.data(), workspace);
}

/// *result = Σ x[i]², as sum(): in double, for squares of floats above 1.8e19 overflow a float.
template <class ExecutionSpace, class XView, class ResultView>
void squared_norm(ExecutionSpace const& space, XView const& x, ResultView const& result,
                  Workspace<ExecutionSpace>& workspace) {
  static_assert(ResultView::rank() == 0);
  Impl::require_accessible<ExecutionSpace>(x, result);
  Impl::require_vector("x", x, x.extent(0));
  Kokkos::Profiling::ScopedRegion region("Sporos::squared_norm");
  Impl::reduce<Impl::Reduction::sum_of_squares, ExecutionSpace, typename XView::non_const_value_type>(
      space, std::int64_t(x.extent(0)), x.data(), result.data(), workspace);
}

/// result[b] = Σ x[i]² over block b, the elements b·block ≤ i < (b + 1)·block of x; the last block may be shorter. For norms
/// whose bits must not depend on how x is shared out: each owner makes the sums of its blocks, and all are added in order.
///
/// \param x         [in] (size) of float or double, without gaps
/// \param result   [out] (⌈size / block⌉) of double
template <class ExecutionSpace, class XView, class ResultView>
void squared_norms(ExecutionSpace const& space, XView const& x, std::int64_t block, ResultView const& result) {
  std::int64_t const size = std::int64_t(x.extent(0));
  SPOROS_THROW_IF(block < 1, "a block has ", block, " elements");
  Impl::require_accessible<ExecutionSpace>(x, result);
  Impl::require_vector("x", x, x.extent(0));
  Impl::require_vector("result", result, std::size_t((size + block - 1) / block));
  Kokkos::Profiling::ScopedRegion region("Sporos::squared_norms");
  Impl::squared_norms<ExecutionSpace, typename XView::non_const_value_type>(space, size, block, x.data(),
                                                                            result.data());
}

/// What gradients of this squared norm are multiplied with so that their norm is at most max_norm: 1 if it is already,
/// 0 if it is not finite, in which case the update must be skipped: zero times infinity would still be NaN.
inline double clip_coefficient(double squared_norm, double max_norm) {
  if (!std::isfinite(squared_norm)) return 0;
  double const coefficient = max_norm / (std::sqrt(squared_norm) + 1e-6);
  return coefficient < 1 ? coefficient : 1;
}

}  // namespace Sporos

#endif
