// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_NORM_IMPL_HPP
#define SPOROS_NORM_IMPL_HPP

#include "impl/Sporos_RowTeam.hpp"
#include "impl/Sporos_Rows.hpp"

namespace Sporos::Impl {

enum class Norm {
  layer,  ///< subtracts the mean; gain and bias
  rms     ///< does not; gain only
};

template <class T, Norm norm>
struct NormForward {
  using C = ComputeType<T>;
  std::int64_t columns;
  Rows<T const> x;
  Rows<T const> residual;  // data is null: none
  T const* gamma;
  T const* beta;
  Dropout dropout;
  double epsilon;
  Rows<T> residual_out;
  Rows<T> y;
  C* mean;
  C* rstd;
};

template <class T, Norm norm>
struct NormBackward {
  using C = ComputeType<T>;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t rows_per_item;
  Rows<T const> dy;
  Rows<T const> dresidual_out;  // data is null: zero
  Rows<T const> residual_out;
  T const* gamma;
  C const* mean;
  C const* rstd;
  Dropout dropout;
  Rows<T> dx;
  Rows<T> dresidual;
  C* partials;  // (items, 2, columns): of dgamma, of dbeta
};

/// Adds the partial gradients to the gradients, item by item
template <class C>
struct NormFinish {
  std::int64_t items;
  std::int64_t columns;
  C const* partials;
  C* dgamma;
  C* dbeta;  // null: none
};

/// Columns that one item of NormFinish adds up
inline constexpr std::int64_t norm_finish_columns = 64;

inline namespace SPOROS_LEVEL {

/// One row
template <class Team, class T, Norm norm>
SPOROS_FUNCTION void run_item(Team const& team, NormForward<T, norm> const& a, std::int64_t row) {
  using C = ComputeType<T>;
  std::int64_t const columns = a.columns;
  T const* const x = a.x[row];
  T const* const residual = a.residual.data ? a.residual[row] : nullptr;
  T* const residual_out = a.residual_out[row];
  T* const y = a.y[row];

  if (a.dropout.active()) {
    std::uint32_t const threshold = a.dropout.threshold();
    C const scale = C(a.dropout.scale());
    std::uint64_t const first = a.dropout.first_element + std::uint64_t(row) * std::uint64_t(columns);
    auto const kept = [=](std::int64_t c, std::uint32_t bits) {
      C const scaled =
          C(x[c]) * scale;  // read in any case: a condition on a load would keep the loop from being vectors
      return bits >= threshold ? scaled : C(0);
    };
    if (residual)
      team.for_each_with_bits(columns, a.dropout.random(), first, [=](std::int64_t c, std::uint32_t bits) {
        residual_out[c] = store_as<T>(C(residual[c]) + kept(c, bits));
      });
    else
      team.for_each_with_bits(columns, a.dropout.random(), first, [=](std::int64_t c, std::uint32_t bits) {
        residual_out[c] = store_as<T>(kept(c, bits));
      });
  } else if (residual) {
    team.for_each(columns, [=](std::int64_t c) { residual_out[c] = store_as<T>(C(residual[c]) + C(x[c])); });
  } else {
    team.for_each(columns, [=](std::int64_t c) { residual_out[c] = x[c]; });
  }
  team.barrier();

  // Two passes: the difference of mean square and squared mean would cancel where the mean is large.
  C mean = 0;
  if constexpr (norm == Norm::layer)
    mean = team.template sum<C>(columns, [=](std::int64_t c) { return C(residual_out[c]); }) / C(columns);
  C const squares = team.template sum<C>(columns, [=](std::int64_t c) {
    C const centred = C(residual_out[c]) - mean;
    return centred * centred;
  });
  C const rstd = 1 / square_root(squares / C(columns) + C(a.epsilon));

  T const* const gamma = a.gamma;
  T const* const beta = a.beta;
  team.for_each(columns, [=](std::int64_t c) {
    C const normalised = (C(residual_out[c]) - mean) * rstd;
    if constexpr (norm == Norm::layer)
      y[c] = store_as<T>(normalised * C(gamma[c]) + C(beta[c]));
    else
      y[c] = store_as<T>(normalised * C(gamma[c]));
  });
  team.once([=] {
    if constexpr (norm == Norm::layer) a.mean[row] = mean;
    a.rstd[row] = rstd;
  });
}

/// With n = (residual_out - mean) rstd and g = gamma dy:
/// dLN = rstd (g - average(g) - n average(g n)), where RMSNorm has no average(g)
template <class Team, class T, Norm norm>
SPOROS_FUNCTION void run_item(Team const& team, NormBackward<T, norm> const& a, std::int64_t item) {
  using C = ComputeType<T>;
  std::int64_t const columns = a.columns;
  C* const dgamma = a.partials + item * 2 * columns;
  C* const dbeta = dgamma + columns;
  T const* const gamma = a.gamma;
  team.for_each(columns, [=](std::int64_t c) {
    dgamma[c] = 0;
    dbeta[c] = 0;
  });

  std::int64_t const begin = item * a.rows_per_item;
  std::int64_t const end = begin + a.rows_per_item < a.rows ? begin + a.rows_per_item : a.rows;
  for (std::int64_t row = begin; row < end; ++row) {
    T const* const dy = a.dy[row];
    T const* const dresidual_out = a.dresidual_out.data ? a.dresidual_out[row] : nullptr;
    T const* const residual_out = a.residual_out[row];
    T* const dx = a.dx[row];
    T* const dresidual = a.dresidual[row];
    C const rstd = a.rstd[row];
    C mean = 0;
    if constexpr (norm == Norm::layer) mean = a.mean[row];

    C average = 0;
    if constexpr (norm == Norm::layer)
      average = team.template sum<C>(columns, [=](std::int64_t c) { return C(gamma[c]) * C(dy[c]); }) / C(columns);
    C const projection = team.template sum<C>(columns, [=](std::int64_t c) {
      return C(gamma[c]) * C(dy[c]) * ((C(residual_out[c]) - mean) * rstd);
    }) / C(columns);

    // dy is read before dresidual, which may be the same memory, is written.
    auto const of_norm = [=](std::int64_t c) {
      C const normalised = (C(residual_out[c]) - mean) * rstd;
      C const gradient = C(dy[c]);
      dgamma[c] += gradient * normalised;
      dbeta[c] += gradient;
      return rstd * (C(gamma[c]) * gradient - average - normalised * projection);
    };
    if (dresidual_out)
      team.for_each(columns, [=](std::int64_t c) { dresidual[c] = store_as<T>(C(dresidual_out[c]) + of_norm(c)); });
    else
      team.for_each(columns, [=](std::int64_t c) { dresidual[c] = store_as<T>(of_norm(c)); });

    if (!a.dropout.active()) {
      if (dx != dresidual) team.for_each(columns, [=](std::int64_t c) { dx[c] = dresidual[c]; });
    } else {
      team.barrier();
      std::uint32_t const threshold = a.dropout.threshold();
      C const scale = C(a.dropout.scale());
      std::uint64_t const first = a.dropout.first_element + std::uint64_t(row) * std::uint64_t(columns);
      team.for_each_with_bits(columns, a.dropout.random(), first, [=](std::int64_t c, std::uint32_t bits) {
        C const scaled = C(dresidual[c]) * scale;
        dx[c] = store_as<T>(bits >= threshold ? scaled : C(0));
      });
    }
  }
}

/// Some columns
template <class Team, class C>
SPOROS_FUNCTION void run_item(Team const& team, NormFinish<C> const& a, std::int64_t item) {
  std::int64_t const begin = item * norm_finish_columns;
  std::int64_t const left = a.columns - begin;
  team.for_each(left < norm_finish_columns ? left : norm_finish_columns, [=](std::int64_t i) {
    std::int64_t const c = begin + i;
    C dgamma = 0, dbeta = 0;
    for (std::int64_t p = 0; p < a.items; ++p) {
      dgamma += a.partials[p * 2 * a.columns + c];
      dbeta += a.partials[(p * 2 + 1) * a.columns + c];
    }
    a.dgamma[c] += dgamma;
    if (a.dbeta) a.dbeta[c] += dbeta;
  });
}

}  // namespace SPOROS_LEVEL
}  // namespace Sporos::Impl

#endif
