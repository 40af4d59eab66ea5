// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_ATTENTIONREFERENCE_HPP
#define SPOROS_TESTING_ATTENTIONREFERENCE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "Sporos_FlashAttention.hpp"

namespace Sporos::Testing {

struct AttentionCase {
  int head_dim, queries, keys;
  CausalMask causal = CausalMask::none;
  float jump = 0;  // natural-log units by which the logits of neighbouring stretches of 64 keys differ
  int batch = 1;
  int heads = 1;
  int kv_heads = 1;
  double dropout = 0;
  int nan_key = -1;
};

inline std::string text_of(AttentionCase const& c) {
  char const* const masks[] = {"full", "top left", "bottom right"};
  return "D " + std::to_string(c.head_dim) + ", " + std::to_string(c.queries) + " x " + std::to_string(c.keys) + ", " +
         masks[int(c.causal)] + ", jump " + std::to_string(c.jump) + ", batch " + std::to_string(c.batch) + ", heads " +
         std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + ", dropout " + std::to_string(c.dropout);
}

template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return T(float(x));
}

/// Random inputs and poisoned outputs; arguments() points into it. The tensors are contiguous: (batch, sequence, heads, D).
template <class T>
class AttentionProblem {
 public:
  using C = ComputeType<T>;

  explicit AttentionProblem(AttentionCase const& shape) : m_shape(shape) {
    int const query_rows = shape.batch * shape.queries * shape.heads;
    int const key_rows = shape.batch * shape.keys * shape.kv_heads;
    q = normal(query_rows * shape.head_dim);
    k = normal(key_rows * shape.head_dim);
    v = normal(key_rows * shape.head_dim);
    d_o = normal(query_rows * shape.head_dim);
    T const nan = from_double<T>(std::numeric_limits<double>::quiet_NaN());
    o.assign(q.size(), nan);
    dq.assign(q.size(), nan);
    dk.assign(k.size(), nan);
    dv.assign(k.size(), nan);
    lse.assign(query_rows, std::numeric_limits<C>::quiet_NaN());

    for (int row = 0; row < key_rows; ++row)
      if (row / shape.kv_heads % shape.keys == shape.nan_key) k[row * shape.head_dim] = nan;
    if (shape.jump == 0) return;
    // The first coordinate is 1 in every query, and in a key the logit that every query shall see: up and down along the
    // keys, and further up at either end, so that a kernel meets jumps whichever way it walks.
    for (int row = 0; row < query_rows; ++row) q[row * shape.head_dim] = from_double<T>(1);
    for (int row = 0; row < key_rows; ++row) {
      int const stretch = row / shape.kv_heads % shape.keys / 64;
      double const logit = shape.jump * double(stretch % 2 == 0 ? stretch : -stretch - 3);
      k[row * shape.head_dim] = from_double<T>(logit * std::sqrt(double(shape.head_dim)));
    }
  }

  FlashAttentionOptions options() const {
    FlashAttentionOptions options;
    options.causal = m_shape.causal;
    options.dropout = {.probability = m_shape.dropout, .seed = 7, .stream = 3, .first_element = 5};
    return options;
  }

  Impl::FlashAttentionArguments<T> arguments() {
    Impl::FlashAttentionArguments<T> a{};
    a.q = queries_of<T const>(q);
    a.k = keys_of<T const>(k);
    a.v = keys_of<T const>(v);
    a.o = queries_of<T>(o);
    a.lse = {lse.data(), std::int64_t(m_shape.heads) * m_shape.queries, m_shape.queries};
    a.batch = m_shape.batch;
    a.heads = m_shape.heads;
    a.kv_heads = m_shape.kv_heads;
    a.queries = m_shape.queries;
    a.keys = m_shape.keys;
    a.head_dim = m_shape.head_dim;
    a.causal = m_shape.causal != CausalMask::none;
    a.diagonal = m_shape.causal == CausalMask::bottom_right ? m_shape.keys - m_shape.queries : 0;
    a.scale = C(1 / std::sqrt(double(m_shape.head_dim)));
    a.dropout = options().dropout;
    return a;
  }

  /// With a workspace of its own, poisoned
  Impl::FlashAttentionBackwardArguments<T> backward_arguments(int slots, int padded_queries, int padded_head_dim) {
    Impl::FlashAttentionBackwardArguments<T> a{};
    a.forward = arguments();
    a.d_o = queries_of<T const>(d_o);
    a.dq = queries_of<T>(dq);
    a.dk = keys_of<T>(dk);
    a.dv = keys_of<T>(dv);
    a.slots = slots;
    a.padded_queries = padded_queries;
    a.padded_head_dim = padded_head_dim;
    std::size_t const rows = std::size_t(m_shape.batch) * m_shape.heads * padded_queries;
    std::size_t const sums = rows * slots * padded_head_dim;
    m_workspace.assign(sums + 2 * rows + 64, std::numeric_limits<C>::quiet_NaN());
    C* const aligned =
        m_workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(m_workspace.data()) % 64) % 64 / sizeof(C);
    a.dq_sums = aligned;
    a.lse_log2 = aligned + sums;
    a.delta = a.lse_log2 + rows;
    return a;
  }

  AttentionCase const& shape() const { return m_shape; }

  std::vector<T> q, k, v, o, d_o, dq, dk, dv;
  std::vector<C> lse;

 private:
  std::vector<T> normal(int size) {
    std::vector<T> values(size);
    for (T& value : values) value = from_double<T>(m_normal(m_random));
    return values;
  }

  template <class U, class Vector>
  Impl::HeadTensor<U> tensor(Vector& values, std::int64_t rows, std::int64_t heads) {
    std::int64_t const d = m_shape.head_dim;
    return {values.data(), rows * heads * d, heads * d, d};
  }
  template <class U, class Vector>
  Impl::HeadTensor<U> queries_of(Vector& values) {
    return tensor<U>(values, m_shape.queries, m_shape.heads);
  }
  template <class U, class Vector>
  Impl::HeadTensor<U> keys_of(Vector& values) {
    return tensor<U>(values, m_shape.keys, m_shape.kv_heads);
  }

  AttentionCase m_shape;
  std::mt19937 m_random{42};
  std::normal_distribution<double> m_normal;
  std::vector<C> m_workspace;
};

template <class Real>
struct AttentionResult {
  std::vector<Real> o, lse, dq, dk, dv;
  // What rounding errors of a gradient are relative to where its summands cancel: at worst, in the precision of the
  // accumulators, the largest sum of absolute values, each times the condition of its probability, exp(score); ...
  double dq_summands = 0, dk_summands = 0, dv_summands = 0;
  // ... typically, for factors that are rounded to T, the largest root of the sum of squares
  double dq_spread = 0, dk_spread = 0, dv_spread = 0;
};

/// One query after another, all keys at once. Where Real is the kernels' own precision, P, dS and the results are rounded to
/// T as in the kernels: the distance from the same in a higher precision is what the precision costs.
template <class Real, class T>
AttentionResult<Real> plain_attention(AttentionProblem<T>& problem) {
  auto const a = problem.arguments();
  constexpr bool rounds = std::is_same_v<Real, ComputeType<T>>;
  auto const stored = [](Real x) { return rounds ? Real(ComputeType<T>(from_double<T>(double(x)))) : x; };
  auto const real = [](T x) { return Real(ComputeType<T>(x)); };
  std::size_t const width = std::size_t(a.head_dim);
  AttentionResult<Real> r;
  r.o.resize(problem.q.size());
  r.dq.resize(problem.q.size());
  r.dk.resize(problem.k.size());
  r.dv.resize(problem.k.size());
  r.lse.resize(problem.lse.size());
  std::vector<double> dq_summands(r.dq.size()), dk_summands(r.dk.size()), dv_summands(r.dv.size());
  std::vector<double> dq_squares(r.dq.size()), dk_squares(r.dk.size()), dv_squares(r.dv.size());
  Real const scale = Real(a.scale);

  for (int batch = 0; batch < a.batch; ++batch)
    for (int head = 0; head < a.heads; ++head)
      for (int i = 0; i < a.queries; ++i) {
        int const visible = a.causal ? std::clamp(i + 1 + a.diagonal, 0, a.keys) : a.keys;
        int const kv_head = head / (a.heads / a.kv_heads);
        std::size_t const row = ((std::size_t(batch) * a.queries + i) * a.heads + head) * width;  // of Q and O
        std::size_t const lse = (std::size_t(batch) * a.heads + head) * a.queries + i;
        auto const key_row = [&](int j) { return ((std::size_t(batch) * a.keys + j) * a.kv_heads + kv_head) * width; };
        auto const kept = [&](int j) {
          if (!a.dropout.active()) return Real(1);
          return a.dropout.keeps(std::uint64_t(lse) * std::uint64_t(a.keys) + std::uint64_t(j))
                     ? Real(a.dropout.scale())
                     : Real(0);
        };

        std::vector<Real> score(visible), p(visible), z(visible);
        Real highest = -std::numeric_limits<Real>::infinity(), sum = 0;
        for (int j = 0; j < visible; ++j) {
          z[j] = kept(j);
          for (std::size_t d = 0; d < width; ++d)
            score[j] += real(problem.q[row + d]) * real(problem.k[key_row(j) + d]);
          score[j] *= scale * std::numbers::log2e_v<Real>;  // powers of 2, as in the kernels
          highest = std::max(highest, score[j]);
        }
        for (int j = 0; j < visible; ++j) sum += p[j] = std::exp2(score[j] - highest);
        r.lse[lse] = visible == 0 ? highest : (highest + std::log2(sum)) * std::numbers::ln2_v<Real>;

        Real delta = 0;
        for (std::size_t d = 0; d < width; ++d) {
          Real o = 0;
          for (int j = 0; j < visible; ++j) o += stored(p[j]) * z[j] * real(problem.v[key_row(j) + d]);
          r.o[row + d] = visible == 0 ? Real(0) : stored(o / sum);
          delta += r.o[row + d] * real(problem.d_o[row + d]);
        }
        for (int j = 0; j < visible; ++j) {
          Real const probability = std::exp2(score[j] - r.lse[lse] * std::numbers::log2e_v<Real>);
          Real dp = 0;
          for (std::size_t d = 0; d < width; ++d) dp += real(problem.d_o[row + d]) * real(problem.v[key_row(j) + d]);
          Real const ds = stored(probability * (z[j] * dp - delta));
          double condition = 1;
          for (std::size_t d = 0; d < width; ++d)
            condition += std::abs(double(scale * real(problem.q[row + d]) * real(problem.k[key_row(j) + d])));
          double const parts = double(scale * probability * (std::abs(z[j] * dp) + std::abs(delta)));
          for (std::size_t d = 0; d < width; ++d) {
            Real const dv = z[j] * stored(probability) * real(problem.d_o[row + d]);
            Real const dk = scale * ds * real(problem.q[row + d]);
            Real const dq = scale * ds * real(problem.k[key_row(j) + d]);
            r.dv[key_row(j) + d] += dv;
            r.dk[key_row(j) + d] += dk;
            r.dq[row + d] += dq;
            double const of_dv = std::abs(double(dv));
            double const of_dk = parts * std::abs(double(real(problem.q[row + d])));
            double const of_dq = parts * std::abs(double(real(problem.k[key_row(j) + d])));
            dv_summands[key_row(j) + d] += condition * of_dv;
            dk_summands[key_row(j) + d] += condition * of_dk;
            dq_summands[row + d] += condition * of_dq;
            dv_squares[key_row(j) + d] += of_dv * of_dv;
            dk_squares[key_row(j) + d] += of_dk * of_dk;
            dq_squares[row + d] += of_dq * of_dq;
          }
        }
      }
  for (double const x : dq_summands) r.dq_summands = std::max(r.dq_summands, x);
  for (double const x : dk_summands) r.dk_summands = std::max(r.dk_summands, x);
  for (double const x : dv_summands) r.dv_summands = std::max(r.dv_summands, x);
  for (double const x : dq_squares) r.dq_spread = std::max(r.dq_spread, std::sqrt(x));
  for (double const x : dk_squares) r.dk_spread = std::max(r.dk_spread, std::sqrt(x));
  for (double const x : dv_squares) r.dv_spread = std::max(r.dv_spread, std::sqrt(x));
  for (auto* gradient : {&r.dq, &r.dk, &r.dv})
    for (Real& x : *gradient) x = stored(x);
  return r;
}

/// What is exact, seen from T
template <class T>
using Exact = std::conditional_t<std::is_same_v<T, double>, long double, double>;

/// Largest difference. Two infinities or two NaN are equal; where only one side is so, the result is infinite or NaN.
template <class U, class Real>
double largest_difference(std::vector<U> const& x, std::vector<Real> const& y) {
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Real value;
    if constexpr (is_storage_float<U>)
      value = Real(float(x[i]));
    else
      value = Real(x[i]);
    if (value == y[i] || (std::isnan(value) && std::isnan(y[i]))) continue;
    double const difference = double(std::abs(value - y[i]));
    if (!(difference <= largest)) largest = difference;
    if (std::isnan(largest)) break;
  }
  return largest;
}

/// How far results are from the exact ones, in units of what a plain implementation is off in the same precision. The unit
/// is at least one in the last place of the largest result, and what rounding does to the summands: plain may be lucky.
struct AttentionErrors {
  double o, lse, dq, dk, dv;
};

template <class T>
class AttentionReference {
 public:
  using C = ComputeType<T>;

  explicit AttentionReference(AttentionProblem<T>& problem)
      : m_exact(plain_attention<Exact<T>>(problem)), m_plain(plain_attention<C>(problem)) {}

  AttentionErrors errors(AttentionProblem<T> const& problem) const {
    return {error(problem.o, m_exact.o, m_plain.o, last_place), error(problem.lse, m_exact.lse, m_plain.lse, epsilon),
            error(problem.dq, m_exact.dq, m_plain.dq, last_place, m_exact.dq_summands, m_exact.dq_spread),
            error(problem.dk, m_exact.dk, m_plain.dk, last_place, m_exact.dk_summands, m_exact.dk_spread),
            error(problem.dv, m_exact.dv, m_plain.dv, last_place, m_exact.dv_summands, m_exact.dv_spread)};
  }

 private:
  static constexpr double epsilon = double(std::numeric_limits<C>::epsilon());
  static constexpr double last_place = std::is_same_v<T, bfloat16> ? 0x1p-8 : epsilon;

  template <class U>
  static double error(std::vector<U> const& x, std::vector<Exact<T>> const& exact, std::vector<C> const& plain,
                      double last_place_of_x, double summands = 0, double spread = 0) {
    double largest = 0;
    for (Exact<T> const value : exact)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(double(value)));
    double const unit = std::max(
        {largest_difference(plain, exact), last_place_of_x * largest, epsilon * summands, last_place / 2 * spread});
    double const difference = largest_difference(x, exact);
    return difference == 0 ? 0 : difference / unit;
  }

  AttentionResult<Exact<T>> m_exact;
  AttentionResult<C> m_plain;
};

}  // namespace Sporos::Testing

#endif
