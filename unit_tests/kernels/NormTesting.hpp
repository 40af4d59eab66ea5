// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_NORMTESTING_HPP
#define SPOROS_NORMTESTING_HPP

#include <utility>

#include "RowTesting.hpp"
#include "Sporos_LayerNorm.hpp"
#include "Sporos_RmsNorm.hpp"

// LayerNorm and RMSNorm differ by the mean, so one text tests both. `layer` is the one, not `layer` the other.
namespace Sporos::Testing {

constexpr double epsilon = 1e-5;

template <class T, bool layer>
struct Norm {
  using C = ComputeType<T>;
  Matrix<T> residual_out, y;
  Vector<C> mean, rstd;

  Norm(Matrix<T> const& x, Matrix<T> const& residual, Vector<T> const& gamma, Vector<T> const& beta,
       Dropout const& dropout)
      : residual_out(poisoned<T>(x.extent(0), x.extent(1))),
        y(poisoned<T>(x.extent(0), x.extent(1))),
        mean(poisoned_vector<C>(x.extent(0))),
        rstd(poisoned_vector<C>(x.extent(0))) {
    if constexpr (layer)
      residual_dropout_layernorm(Space(), x, residual, gamma, beta, dropout, epsilon, residual_out, y, mean, rstd);
    else
      residual_dropout_rmsnorm(Space(), x, residual, gamma, dropout, epsilon, residual_out, y, rstd);
  }
};

template <class T, bool layer>
void norm_backward(Matrix<T> const& dy, Matrix<T> const& dresidual_out, Norm<T, layer> const& forward,
                   Vector<T> const& gamma, Dropout const& dropout, Matrix<T> const& dx, Matrix<T> const& dresidual,
                   Vector<ComputeType<T>> const& dgamma, Vector<ComputeType<T>> const& dbeta) {
  Space const space;
  Workspace<Space> workspace(space);
  if constexpr (layer)
    residual_dropout_layernorm_backward(space, dy, dresidual_out, forward.residual_out, gamma, forward.mean,
                                        forward.rstd, dropout, dx, dresidual, dgamma, dbeta, workspace);
  else
    residual_dropout_rmsnorm_backward(space, dy, dresidual_out, forward.residual_out, gamma, forward.rstd, dropout, dx,
                                      dresidual, dgamma, workspace);
  space.fence();
}

/// The formulas as plain loops with arithmetic in C, results rounded to T where it is narrower. Sums begin at the
/// given quarter of what they add up, for the error of a single order may happen to be small.
template <class T, class C>
struct PlainNorm {
  Values y, mean, rstd;             // forward
  Values dresidual, dgamma, dbeta;  // backward

  PlainNorm(bool layer, Values const& x, Values const& gamma, Values const& beta, Values const& dy,
            Values const& dresidual_out, std::size_t quarter = 0)
      : y(x.rows, x.columns),
        mean(1, x.rows),
        rstd(1, x.rows),
        dresidual(x.rows, x.columns),
        dgamma(1, x.columns),
        dbeta(1, x.columns) {
    C const n = C(x.columns);
    auto const row = [&](std::size_t i) { return (i + quarter * x.rows / 4) % x.rows; };
    auto const column = [&](std::size_t i) { return (i + quarter * x.columns / 4) % x.columns; };
    std::vector<C> sum_gamma(x.columns, C(0)), sum_beta(x.columns, C(0));
    for (std::size_t i = 0; i < x.rows; ++i) {
      std::size_t const r = row(i);
      auto const sum = [&](auto const& term) {
        C total = 0;
        for (std::size_t k = 0; k < x.columns; ++k) total += term(column(k));
        return total;
      };
      auto const g = [&](std::size_t c) { return C(gamma[c]) * C(dy(r, c)); };
      C const m = layer ? sum([&](std::size_t c) { return C(x(r, c)); }) / n : C(0);
      C const squares = sum([&](std::size_t c) { return (C(x(r, c)) - m) * (C(x(r, c)) - m); });
      C const s = 1 / std::sqrt(squares / n + C(epsilon));
      auto const normalised = [&](std::size_t c) { return (C(x(r, c)) - m) * s; };
      C const average = layer ? sum(g) / n : C(0);
      C const projection = sum([&](std::size_t c) { return g(c) * normalised(c); }) / n;
      mean[r] = m;
      rstd[r] = s;
      for (std::size_t c = 0; c < x.columns; ++c) {
        y(r, c) = round(normalised(c) * C(gamma[c]) + C(beta[c]));
        dresidual(r, c) = round(C(dresidual_out(r, c)) + s * (g(c) - average - normalised(c) * projection));
        sum_gamma[c] += C(dy(r, c)) * normalised(c);
        sum_beta[c] += C(dy(r, c));
      }
    }
    for (std::size_t c = 0; c < x.columns; ++c) {
      dgamma[c] = sum_gamma[c];
      dbeta[c] = sum_beta[c];
    }
  }

 private:
  static long double round(C value) {
    if constexpr (std::is_same_v<C, long double>)
      return value;
    else
      return static_cast<long double>(ComputeType<T>(to_storage<T>(value)));
  }
};

constexpr std::pair<int, int> norm_shapes[] = {{300, 11}, {9, 1031}, {7, 64}, {300, 33}, {12, 3072}, {0, 5}};

template <class T, bool layer>
void test_norm_values(double centre, double width) {
  using C = ComputeType<T>;
  for (auto [rows, columns] : norm_shapes)
    for (bool with_residual : {false, true}) {
      CAPTURE(rows, columns, with_residual, centre);
      std::size_t const m = std::size_t(rows), n = std::size_t(columns);
      Values const x = random_values<T>(m, n, 1, centre, width);
      Values const residual = random_values<T>(m, n, 2);
      Values const gamma = random_values<T>(1, n, 3, 1, 0.5);
      Values const beta = layer ? random_values<T>(1, n, 4) : Values(1, n);
      Values const dy = random_values<T>(m, n, 5);
      Values const dresidual_out = with_residual ? random_values<T>(m, n, 6) : Values(m, n);

      auto const gamma_view = upload_vector<T>(gamma);
      auto const none = Matrix<T>();
      Norm<T, layer> const forward(upload<T>(x), with_residual ? upload<T>(residual) : none, gamma_view,
                                   upload_vector<T>(beta), Dropout());
      Values const residual_out = download(forward.residual_out);
      Values sum = x;
      if (with_residual)
        for (std::size_t i = 0; i < sum.data.size(); ++i)
          sum[i] = static_cast<long double>(C(to_storage<T>(C(residual[i]) + C(x[i]))));
      require_identical("residual_out", residual_out, sum);

      using Exact = PlainNorm<T, long double>;
      Exact const exact(layer, residual_out, gamma, beta, dy, dresidual_out);
      std::vector<PlainNorm<T, C>> plain;
      for (std::size_t quarter = 0; quarter < 4; ++quarter)
        plain.emplace_back(layer, residual_out, gamma, beta, dy, dresidual_out, quarter);
      auto const error = [&](Values PlainNorm<T, C>::* values, Values Exact::* exact_values) {
        long double largest = 0;
        for (auto const& p : plain) largest = std::max(largest, largest_error(p.*values, exact.*exact_values));
        return largest;
      };
      require_close<T>("y", download(forward.y), exact.y, error(&PlainNorm<T, C>::y, &Exact::y));
      if (layer)
        require_close<C>("mean", download(forward.mean), exact.mean, error(&PlainNorm<T, C>::mean, &Exact::mean));
      require_close<C>("rstd", download(forward.rstd), exact.rstd, error(&PlainNorm<T, C>::rstd, &Exact::rstd));

      auto const dx = poisoned<T>(m, n), dresidual = poisoned<T>(m, n);
      // The gradients of parameters are added to what is there.
      auto const dgamma = upload_vector<C>(Values(1, n, 2)), dbeta = upload_vector<C>(Values(1, n, 3));
      norm_backward(upload<T>(dy), with_residual ? upload<T>(dresidual_out) : none, forward, gamma_view, Dropout(), dx,
                    dresidual, dgamma, dbeta);
      auto const plus = [](Values values, long double offset) {
        for (long double& value : values.data) value += offset;
        return values;
      };
      require_close<T>("dresidual", download(dresidual), exact.dresidual,
                       error(&PlainNorm<T, C>::dresidual, &Exact::dresidual));
      require_identical("dx", download(dx), download(dresidual));
      require_close<C>("dgamma", download(dgamma), plus(exact.dgamma, 2),
                       error(&PlainNorm<T, C>::dgamma, &Exact::dgamma));
      if (layer)
        require_close<C>("dbeta", download(dbeta), plus(exact.dbeta, 3), error(&PlainNorm<T, C>::dbeta, &Exact::dbeta));
    }
}

template <bool layer>
void test_norm_gradient(Dropout const& dropout) {
  std::size_t const rows = 3, columns = 10;
  Values const x = random_values<double>(rows, columns, 1, 0.3), residual = random_values<double>(rows, columns, 2);
  Values const gamma = random_values<double>(1, columns, 3, 1, 0.5), beta = random_values<double>(1, columns, 4);
  Values const dy = random_values<double>(rows, columns, 5), dresidual_out = random_values<double>(rows, columns, 6);

  auto const loss = [&](Values const& x_, Values const& residual_, Values const& gamma_, Values const& beta_) {
    Norm<double, layer> const forward(upload<double>(x_), upload<double>(residual_), upload_vector<double>(gamma_),
                                      upload_vector<double>(beta_), dropout);
    return dot(download(forward.y), dy) + dot(download(forward.residual_out), dresidual_out);
  };

  auto const gamma_view = upload_vector<double>(gamma);
  Norm<double, layer> const forward(upload<double>(x), upload<double>(residual), gamma_view,
                                    upload_vector<double>(beta), dropout);
  auto const dx = poisoned<double>(rows, columns), dresidual = poisoned<double>(rows, columns);
  auto const dgamma = upload_vector<double>(Values(1, columns)), dbeta = upload_vector<double>(Values(1, columns));
  norm_backward(upload<double>(dy), upload<double>(dresidual_out), forward, gamma_view, dropout, dx, dresidual, dgamma,
                dbeta);

  require_gradient("x", x, download(dx), [&](Values const& v) { return loss(v, residual, gamma, beta); });
  require_gradient("residual", residual, download(dresidual), [&](Values const& v) { return loss(x, v, gamma, beta); });
  require_gradient("gamma", gamma, download(dgamma), [&](Values const& v) { return loss(x, residual, v, beta); });
  if (layer)
    require_gradient("beta", beta, download(dbeta), [&](Values const& v) { return loss(x, residual, gamma, v); });
}

/// Which elements are dropped is decided by their index in the whole, in either direction.
template <class T, bool layer>
void test_norm_dropout() {
  using C = ComputeType<T>;
  std::size_t const rows = 5, columns = 1031;  // so that rows begin anywhere in the blocks of four random numbers
  Dropout const dropout{.probability = 0.37, .seed = 8, .stream = 9, .first_element = 6};
  Values const x = random_values<T>(rows, columns, 1, 3);
  auto const gamma = upload_vector<T>(random_values<T>(1, columns, 3, 1, 0.5));
  auto const beta = upload_vector<T>(Values(1, columns));
  Norm<T, layer> const forward(upload<T>(x), Matrix<T>(), gamma, beta, dropout);
  auto const dx = poisoned<T>(rows, columns), dresidual = poisoned<T>(rows, columns);
  auto const dgamma = upload_vector<C>(Values(1, columns)), dbeta = upload_vector<C>(Values(1, columns));
  norm_backward(upload<T>(random_values<T>(rows, columns, 5)), Matrix<T>(), forward, gamma, dropout, dx, dresidual,
                dgamma, dbeta);

  auto const scaled = [&](Values values) {
    for (std::size_t i = 0; i < values.data.size(); ++i)
      values[i] = dropout.keeps(i) ? static_cast<long double>(C(to_storage<T>(C(values[i]) * C(dropout.scale())))) : 0;
    return values;
  };
  require_identical("residual_out", download(forward.residual_out), scaled(x));
  require_identical("dx", download(dx), scaled(download(dresidual)));
}

/// A probability of 0 changes no bit, and outputs may lie where the inputs were.
template <class T, bool layer>
void test_norm_aliases() {
  using C = ComputeType<T>;
  std::size_t const rows = 40, columns = 77;
  Values const x = random_values<T>(rows, columns, 1), residual = random_values<T>(rows, columns, 2);
  Values const dy = random_values<T>(rows, columns, 5), dresidual_out = random_values<T>(rows, columns, 6);
  auto const gamma = upload_vector<T>(random_values<T>(1, columns, 3, 1, 0.5));
  auto const beta = upload_vector<T>(random_values<T>(1, columns, 4));
  Norm<T, layer> const forward(upload<T>(x), upload<T>(residual), gamma, beta, Dropout());

  auto const in_place = upload<T>(residual), y = poisoned<T>(rows, columns);
  auto const mean = poisoned_vector<C>(rows), rstd = poisoned_vector<C>(rows);
  Dropout const never{.probability = 0, .seed = 1, .stream = 2};
  if constexpr (layer)
    residual_dropout_layernorm(Space(), upload<T>(x), in_place, gamma, beta, never, epsilon, in_place, y, mean, rstd);
  else
    residual_dropout_rmsnorm(Space(), upload<T>(x), in_place, gamma, never, epsilon, in_place, y, rstd);
  require_identical("residual_out", download(in_place), download(forward.residual_out));
  require_identical("y", download(y), download(forward.y));
  require_identical("rstd", download(rstd), download(forward.rstd));

  struct Gradients {
    Values dx, dresidual, dgamma, dbeta;
  };
  enum class Alias { none, dy, dresidual_out };
  auto const gradients = [&](Alias alias) {
    auto const dy_view = upload<T>(dy), dresidual_out_view = upload<T>(dresidual_out);
    auto const dresidual = alias == Alias::none ? poisoned<T>(rows, columns)
                           : alias == Alias::dy ? dy_view
                                                : dresidual_out_view;
    auto const dx = alias == Alias::none ? poisoned<T>(rows, columns) : dresidual;
    auto const dgamma = upload_vector<C>(Values(1, columns)), dbeta = upload_vector<C>(Values(1, columns));
    norm_backward(dy_view, dresidual_out_view, forward, gamma, Dropout(), dx, dresidual, dgamma, dbeta);
    return Gradients{download(dx), download(dresidual), download(dgamma), download(dbeta)};
  };
  Gradients const apart = gradients(Alias::none);
  for (Alias alias : {Alias::none, Alias::dy, Alias::dresidual_out}) {  // none: the same bits twice
    Gradients const again = gradients(alias);
    require_identical("dx", again.dx, apart.dx);
    require_identical("dresidual", again.dresidual, apart.dresidual);
    require_identical("dgamma", again.dgamma, apart.dgamma);
    require_identical("dbeta", again.dbeta, apart.dbeta);
  }
}

}  // namespace Sporos::Testing

#endif
