// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_CROSSENTROPY_IMPL_HPP
#define SPOROS_CROSSENTROPY_IMPL_HPP

#include <limits>

#include "impl/Sporos_RowTeam.hpp"
#include "impl/Sporos_Rows.hpp"

namespace Sporos::Impl {

template <class T>
struct CrossEntropyForward {
  using C = ComputeType<T>;
  std::int64_t columns;
  Rows<T const> logits;
  int const* targets;
  C* loss;
  C* log_sum_exp;
};

template <class LogitsT, class T>
struct CrossEntropyBackward {
  using C = ComputeType<LogitsT>;
  std::int64_t columns;
  Rows<LogitsT const> logits;
  int const* targets;
  C const* log_sum_exp;
  double scale;
  Rows<T> dlogits;
};

inline namespace SPOROS_LEVEL {

/// One row
template <class Team, class T>
SPOROS_FUNCTION void run_item(Team const& team, CrossEntropyForward<T> const& a, std::int64_t row) {
  using C = ComputeType<T>;
  T const* const logits = a.logits[row];
  C const largest =
      team.max(a.columns, -std::numeric_limits<C>::infinity(), [=](std::int64_t c) { return C(logits[c]); });
  C const sum = team.template sum<C>(a.columns, [=](std::int64_t c) { return exponential(C(logits[c]) - largest); });
  C const log_sum_exp = largest + logarithm(sum);

  team.once([=, &a] {
    int const target = a.targets[row];
    a.log_sum_exp[row] = log_sum_exp;
    a.loss[row] = target == -1                        ? C(0)
                  : target >= 0 && target < a.columns ? log_sum_exp - C(logits[target])
                                                      : std::numeric_limits<C>::quiet_NaN();
  });
}

/// One row
template <class Team, class LogitsT, class T>
SPOROS_FUNCTION void run_item(Team const& team, CrossEntropyBackward<LogitsT, T> const& a, std::int64_t row) {
  using C = ComputeType<LogitsT>;
  LogitsT const* const logits = a.logits[row];
  T* const dlogits = a.dlogits[row];
  int const target = a.targets[row];
  if (target == -1) {
    team.for_each(a.columns, [=](std::int64_t c) { dlogits[c] = store_as<T>(C(0)); });
    return;
  }
  // The loop treats every class alike, which turns it into vectors. dlogits may be the logits, so the one of the target
  // is read before.
  bool const valid = target >= 0 && target < a.columns;
  C const scale = valid ? C(a.scale) : std::numeric_limits<C>::quiet_NaN();
  C const log_sum_exp = a.log_sum_exp[row];
  T const at_target = store_as<T>(valid ? scale * (exponential(C(logits[target]) - log_sum_exp) - 1) : scale);
  team.barrier();
  team.for_each(a.columns,
                [=](std::int64_t c) { dlogits[c] = store_as<T>(scale * exponential(C(logits[c]) - log_sum_exp)); });
  team.barrier();
  team.once([=] {
    if (valid) dlogits[target] = at_target;
  });
}

}  // namespace SPOROS_LEVEL
}  // namespace Sporos::Impl

#endif
