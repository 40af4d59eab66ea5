// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ADAMW_IMPL_HPP
#define SPOROS_ADAMW_IMPL_HPP

#include "impl/Sporos_RowTeam.hpp"

namespace Sporos::Impl {

/// Elements that one item of the kernels below works on. The partial sums, and with them the bits of a norm, depend on it.
inline constexpr std::int64_t flat_item_size = 4096;

template <class T>
struct AdamWStep {
  using C = ComputeType<T>;
  std::int64_t size;
  C gradient_scale;
  C beta1, beta2;
  C of_gradient, of_square;               // 1 - beta1, 1 - beta2
  C first_correction, second_correction;  // 1 / (1 - beta1^step), 1 / (1 - beta2^step)
  C learning_rate, epsilon, weight_decay;
  C const* gradient;
  C* master;
  C* first_moment;
  C* second_moment;
  T* parameters;
};

enum class Reduction { sum, sum_of_squares };

/// partials[item] = the sum over the item's elements
template <class C, Reduction reduction>
struct PartialSums {
  std::int64_t size;
  std::int64_t item_size;
  C const* x;
  double* partials;
};

/// *result = the sum of the partials
struct FinalSum {
  std::int64_t size;
  double const* partials;
  double* result;
};

inline namespace SPOROS_LEVEL {

template <class Team, class T>
SPOROS_FUNCTION void run_item(Team const& team, AdamWStep<T> const& a, std::int64_t item) {
  using C = ComputeType<T>;
  std::int64_t const begin = item * flat_item_size;
  std::int64_t const left = a.size - begin;
  C const* const gradient = a.gradient + begin;
  C* const master = a.master + begin;
  C* const first_moment = a.first_moment + begin;
  C* const second_moment = a.second_moment + begin;
  T* const parameters = a.parameters + begin;
  team.for_each(left < flat_item_size ? left : flat_item_size, [=](std::int64_t i) {
    C const g = gradient[i] * a.gradient_scale;
    C const m = a.beta1 * first_moment[i] + a.of_gradient * g;
    C const v = a.beta2 * second_moment[i] + a.of_square * g * g;
    C const p = master[i];
    C const step = m * a.first_correction / (square_root(v * a.second_correction) + a.epsilon);
    C const updated = p - a.learning_rate * (step + a.weight_decay * p);
    first_moment[i] = m;
    second_moment[i] = v;
    master[i] = updated;
    parameters[i] = store_as<T>(updated);
  });
}

template <class Team, class C, Reduction reduction>
SPOROS_FUNCTION void run_item(Team const& team, PartialSums<C, reduction> const& a, std::int64_t item) {
  std::int64_t const begin = item * a.item_size;
  std::int64_t const left = a.size - begin;
  C const* const x = a.x + begin;
  double const sum = team.template sum<double>(left < a.item_size ? left : a.item_size, [=](std::int64_t i) {
    return reduction == Reduction::sum ? double(x[i]) : double(x[i]) * double(x[i]);
  });
  double* const partial = a.partials + item;
  team.once([=] { *partial = sum; });
}

/// There is one item.
template <class Team>
SPOROS_FUNCTION void run_item(Team const& team, FinalSum const& a, std::int64_t) {
  double const* const partials = a.partials;
  double const sum = team.template sum<double>(a.size, [=](std::int64_t i) { return partials[i]; });
  double* const result = a.result;
  team.once([=] { *result = sum; });
}

}  // namespace SPOROS_LEVEL
}  // namespace Sporos::Impl

#endif
