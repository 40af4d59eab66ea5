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
  int value_dim = 0;  // 0: as head_dim
  AttentionWindow window = {};
  double spread = 1;  // standard deviation of the logits
  double softcap = 0;
  bool alibi = false, sink = false, d_lse = false;
  int bias_batch = 0, bias_heads = 0;  // extents of the bias, 0: none
  // Sequences one after another; `batch` of them, `queries` and `keys` are those of the longest
  std::vector<int> query_lengths = {}, key_lengths = {};
  int splits = 1;  // shares of the keys, merged by the test
};

inline std::string text_of(AttentionCase const& c) {
  char const* const masks[] = {"full", "top left", "bottom right"};
  auto const number = [](auto x) { return std::to_string(x); };
  std::string text = "D " + number(c.head_dim) + "/" + number(c.value_dim ? c.value_dim : c.head_dim) + ", " +
                     number(c.queries) + " x " + number(c.keys) + ", " + masks[int(c.causal)] + ", jump " +
                     number(c.jump) + ", batch " + number(c.batch) + ", heads " + number(c.heads) + "/" +
                     number(c.kv_heads) + ", dropout " + number(c.dropout) + ", spread " + number(c.spread) +
                     ", softcap " + number(c.softcap) + ", window " + number(c.window.left) + " " +
                     number(c.window.right) + ", splits " + number(c.splits);
  if (c.alibi) text += ", ALiBi";
  if (c.sink) text += ", sink";
  if (c.d_lse) text += ", dLSE";
  if (c.bias_batch) text += ", bias (" + number(c.bias_batch) + ", " + number(c.bias_heads) + ", ...)";
  for (std::size_t b = 0; b < c.query_lengths.size(); ++b)
    text += (b ? " | " : ", lengths ") + number(c.query_lengths[b]) + " x " + number(c.key_lengths[b]);
  return text;
}

template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return T(float(x));
}

/// 0, a, a + b, ...
inline std::vector<int> cumulative(std::vector<int> const& lengths) {
  std::vector<int> sums{0};
  for (int const length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

/// Random inputs and poisoned outputs; arguments() points into it. The tensors are contiguous: (batch, sequence, heads, D), or
/// (all sequences, heads, D).
template <class T>
class AttentionProblem {
 public:
  using C = ComputeType<T>;

  explicit AttentionProblem(AttentionCase const& shape, unsigned seed = 42) : m_shape(shape), m_random(seed) {
    if (m_shape.value_dim == 0) m_shape.value_dim = shape.head_dim;
    bool const dense = shape.query_lengths.empty();
    first_query = cumulative(dense ? std::vector<int>(shape.batch, shape.queries) : shape.query_lengths);
    first_key = cumulative(dense ? std::vector<int>(shape.batch, shape.keys) : shape.key_lengths);
    int const query_rows = first_query.back() * shape.heads;
    int const key_rows = first_key.back() * shape.kv_heads;
    q = normal(query_rows * shape.head_dim);
    k = normal(key_rows * shape.head_dim);
    v = normal(key_rows * m_shape.value_dim);
    d_o = normal(query_rows * m_shape.value_dim);
    if (shape.spread != 1)
      for (T& x : q) x = from_double<T>(shape.spread * double(x));
    T const nan = from_double<T>(std::numeric_limits<double>::quiet_NaN());
    C const wide_nan = std::numeric_limits<C>::quiet_NaN();
    o.assign(d_o.size(), nan);
    dq.assign(q.size(), nan);
    dk.assign(k.size(), nan);
    dv.assign(v.size(), nan);
    lse.assign(query_rows, wide_nan);
    if (shape.splits > 1) {
      partial_o.assign(shape.splits * o.size(), wide_nan);
      partial_lse.assign(shape.splits * lse.size(), wide_nan);
    }
    // Slopes and logits of sinks in no order
    if (shape.alibi)
      for (int h = 0; h < shape.heads; ++h) slopes.push_back(C(0.25) / C(1 + 3 * h % 5));
    if (shape.sink)
      for (int h = 0; h < shape.heads; ++h) sink.push_back(C(h % 2 ? 3 : -1) + C(0.1) * C(h));
    d_sink.assign(sink.size(), wide_nan);
    if (shape.d_lse)
      for (int row = 0; row < query_rows; ++row) d_lse.push_back(C(m_normal(m_random)));
    bias = normal(shape.bias_batch * shape.bias_heads * shape.queries * shape.keys);
    d_bias.assign(bias.size(), nan);

    if (shape.nan_key >= 0)
      for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.kv_heads; ++h)
          k[std::size_t((first_key[b] + shape.nan_key) * shape.kv_heads + h) * shape.head_dim] = nan;
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
    options.window = m_shape.window;
    options.softcap = m_shape.softcap;
    options.dropout = {.probability = m_shape.dropout, .seed = 7, .stream = 3, .first_element = 5};
    return options;
  }

  bool has_lengths() const { return !m_shape.query_lengths.empty(); }
  int queries(int batch) const { return first_query[batch + 1] - first_query[batch]; }
  int keys(int batch) const { return first_key[batch + 1] - first_key[batch]; }

  Impl::FlashAttentionArguments<T> arguments() {
    Impl::FlashAttentionArguments<T> a{};
    a.q = queries_of<T const>(q, m_shape.head_dim);
    a.k = keys_of<T const>(k, m_shape.head_dim);
    a.v = keys_of<T const>(v, m_shape.value_dim);
    a.o = queries_of<T>(o, m_shape.value_dim);
    a.lse = rows_of<C>(m_shape.splits > 1 ? partial_lse : lse);
    a.batch = m_shape.batch;
    a.heads = m_shape.heads;
    a.kv_heads = m_shape.kv_heads;
    a.queries = m_shape.queries;
    a.keys = m_shape.keys;
    a.head_dim = std::max(m_shape.head_dim, m_shape.value_dim);
    if (has_lengths()) {
      a.cumulative_queries = first_query.data();
      a.cumulative_keys = first_key.data();
    }
    Impl::set_mask(a, options());
    a.scale = C(1 / std::sqrt(double(m_shape.head_dim)));
    a.softcap = C(m_shape.softcap);
    a.alibi_slopes = {slopes.empty() ? nullptr : slopes.data(), 0};
    a.sink = {sink.empty() ? nullptr : sink.data(), 0};
    a.bias = scores_of<T const>(bias);
    a.dropout = options().dropout;
    a.splits = m_shape.splits;
    if (m_shape.splits > 1) {
      a.partial_o = queries_of<C>(partial_o, m_shape.value_dim);
      a.partial_o_stride = std::int64_t(o.size());
      a.partial_lse_stride = std::int64_t(lse.size());
    }
    return a;
  }

  /// With a workspace of its own, poisoned
  Impl::FlashAttentionBackwardArguments<T> backward_arguments(int slots, int query_block, int padded_head_dim) {
    Impl::FlashAttentionBackwardArguments<T> a{};
    a.forward = arguments();
    a.forward.lse = rows_of<C>(lse);
    a.forward.splits = 1;
    a.d_o = queries_of<T const>(d_o, m_shape.value_dim);
    if (m_shape.d_lse) a.d_lse = rows_of<C const>(d_lse);
    a.dq = queries_of<T>(dq, m_shape.head_dim);
    a.dk = keys_of<T>(dk, m_shape.head_dim);
    a.dv = keys_of<T>(dv, m_shape.value_dim);
    a.d_bias = scores_of<T>(d_bias);
    a.bias_batch = m_shape.bias_batch;
    a.bias_heads = m_shape.bias_heads;
    a.d_sink = d_sink.empty() ? nullptr : d_sink.data();
    a.slots = slots;
    Impl::set_padding(a, first_query.back(), query_block, padded_head_dim);
    std::size_t const rows = std::size_t(m_shape.heads * a.padded_rows);
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

  std::vector<T> q, k, v, o, d_o, dq, dk, dv, bias, d_bias;
  std::vector<C> lse, d_lse, slopes, sink, d_sink, partial_o, partial_lse;
  std::vector<int> first_query, first_key;  // of each sequence, and of one behind the last

 private:
  std::vector<T> normal(int size) {
    std::vector<T> values(size);
    for (T& value : values) value = from_double<T>(m_normal(m_random));
    return values;
  }

  template <class U, class Vector>
  Impl::HeadTensor<U> tensor(Vector& values, std::int64_t rows, std::int64_t heads, int width) {
    return {values.data(), has_lengths() ? 0 : rows * heads * width, heads * width, width, width};
  }
  template <class U, class Vector>
  Impl::HeadTensor<U> queries_of(Vector& values, int width) {
    return tensor<U>(values, m_shape.queries, m_shape.heads, width);
  }
  template <class U, class Vector>
  Impl::HeadTensor<U> keys_of(Vector& values, int width) {
    return tensor<U>(values, m_shape.keys, m_shape.kv_heads, width);
  }
  template <class U, class Vector>
  Impl::RowTensor<U> rows_of(Vector& values) {
    if (has_lengths()) return {values.data(), 0, first_query.back(), 1};
    return {values.data(), std::int64_t(m_shape.heads) * m_shape.queries, m_shape.queries, 1};
  }
  template <class U, class Vector>
  Impl::ScoreTensor<U> scores_of(Vector& values) {
    std::int64_t const head = std::int64_t(m_shape.queries) * m_shape.keys;
    return {m_shape.bias_batch ? values.data() : nullptr, m_shape.bias_batch > 1 ? m_shape.bias_heads * head : 0,
            m_shape.bias_heads > 1 ? head : 0, m_shape.keys};
  }

  AttentionCase m_shape;
  std::mt19937 m_random;
  std::normal_distribution<double> m_normal;
  std::vector<C> m_workspace;
};

/// O and LSE from those of the splits: weights exp(LSE of the split − LSE)
template <class T>
void merge_splits(AttentionProblem<T>& p) {
  using C = ComputeType<T>;
  auto const a = p.arguments();
  std::size_t const width = std::size_t(p.shape().value_dim);
  for (int b = 0; b < a.batch; ++b)
    for (int head = 0; head < a.heads; ++head)
      for (int i = 0; i < p.queries(b); ++i) {
        std::size_t const row = (std::size_t(p.first_query[b] + i) * a.heads + head) * width;
        std::size_t const lse =
            b * a.lse.batch_stride + head * a.lse.head_stride + p.has_lengths() * p.first_query[b] + i;
        C highest = -std::numeric_limits<C>::infinity(), sum = 0;
        for (int s = 0; s < a.splits; ++s) highest = std::max(highest, p.partial_lse[s * p.lse.size() + lse]);
        std::vector<C> o(width);
        for (int s = 0; s < a.splits && highest > -std::numeric_limits<C>::infinity(); ++s) {
          C const weight = std::exp(p.partial_lse[s * p.lse.size() + lse] - highest);
          sum += weight;
          for (std::size_t d = 0; d < width; ++d) o[d] += weight * p.partial_o[s * p.o.size() + row + d];
        }
        for (std::size_t d = 0; d < width; ++d) p.o[row + d] = from_double<T>(sum == 0 ? 0 : double(o[d] / sum));
        p.lse[lse] = highest + (sum == 0 ? C(0) : std::log(sum));
      }
}

/// dSink from what the backward pass has prepared: −Σ exp(sink − LSE) δ
template <class T>
void sum_sink_gradient(AttentionProblem<T>& p, Impl::FlashAttentionBackwardArguments<T> const& b) {
  using C = ComputeType<T>;
  for (std::size_t head = 0; head < p.sink.size(); ++head) {
    C sum = 0;
    for (int batch = 0; batch < b.forward.batch; ++batch) {
      std::int64_t const first = FlashAttentionHead<T>(b.forward, batch, int(head)).padded_row(b);
      for (int i = 0; i < p.queries(batch); ++i)
        sum -= std::exp2(p.sink[head] * std::numbers::log2e_v<C> - b.lse_log2[first + i]) * b.delta[first + i];
    }
    p.d_sink[head] = sum;
  }
}

template <class Real>
struct AttentionResult {
  std::vector<Real> o, lse, dq, dk, dv, d_bias, d_sink;
  // What rounding errors of a gradient are relative to where its summands cancel: at worst, in the precision of the
  // accumulators, the largest sum of absolute values, each times the condition of its probability, exp(score); ...
  double dq_summands = 0, dk_summands = 0, dv_summands = 0, d_bias_summands = 0, d_sink_summands = 0;
  double o_summands = 0;  // the same for O, with the score as condition; for LSE the condition alone
  double lse_summands = 0;
  // ... typically, for factors that are rounded to T, the largest root of the sum of squares
  double dq_spread = 0, dk_spread = 0, dv_spread = 0, d_sink_spread = 0;
};

/// One query after another, all keys at once. Where Real is the kernels' own precision, P, dS and the results are rounded to
/// T as in the kernels: the distance from the same in a higher precision is what the precision costs.
template <class Real, class T>
AttentionResult<Real> plain_attention(AttentionProblem<T>& problem) {
  auto const a = problem.arguments();
  AttentionCase const& c = problem.shape();
  constexpr bool rounds = std::is_same_v<Real, ComputeType<T>>;
  auto const stored = [](Real x) { return rounds ? Real(ComputeType<T>(from_double<T>(double(x)))) : x; };
  auto const real = [](T x) { return Real(ComputeType<T>(x)); };
  std::size_t const width = std::size_t(c.head_dim), value_width = std::size_t(c.value_dim);
  AttentionResult<Real> r;
  r.o.resize(problem.o.size());
  r.dq.resize(problem.q.size());
  r.dk.resize(problem.k.size());
  r.dv.resize(problem.v.size());
  r.lse.resize(problem.lse.size());
  r.d_bias.resize(problem.bias.size());
  r.d_sink.resize(problem.sink.size());
  std::vector<double> dq_summands(r.dq.size()), dk_summands(r.dk.size()), dv_summands(r.dv.size());
  std::vector<double> dq_squares(r.dq.size()), dk_squares(r.dk.size()), dv_squares(r.dv.size());
  std::vector<double> bias_summands(r.d_bias.size()), sink_summands(r.d_sink.size()), sink_squares(r.d_sink.size());
  Real const scale = Real(a.scale), cap = Real(a.softcap), log2_e = std::numbers::log2e_v<Real>;

  for (int batch = 0; batch < a.batch; ++batch)
    for (int head = 0; head < a.heads; ++head)
      for (int i = 0; i < problem.queries(batch); ++i) {
        int const queries = problem.queries(batch), keys = problem.keys(batch);
        int const position = c.causal == CausalMask::top_left ? i : i + keys - queries;
        auto const sees = [&](int j) {
          bool const in_window = std::int64_t(j) >= std::int64_t(position) - c.window.left &&
                                 std::int64_t(j) <= std::int64_t(position) + c.window.right;
          return in_window && (c.causal == CausalMask::none || j <= position);
        };
        std::vector<int> visible;
        for (int j = 0; j < keys; ++j)
          if (sees(j)) visible.push_back(j);
        std::size_t const count = visible.size();

        int const kv_head = head / (a.heads / a.kv_heads);
        std::size_t const row = std::size_t(problem.first_query[batch] + i) * a.heads + head;
        std::size_t const at_q = row * width, at_o = row * value_width;
        std::size_t const lse = problem.has_lengths()
                                    ? std::size_t(head) * problem.first_query.back() + problem.first_query[batch] + i
                                    : (std::size_t(batch) * a.heads + head) * a.queries + i;
        auto const key_row = [&](std::size_t n) {
          return std::size_t(problem.first_key[batch] + visible[n]) * a.kv_heads + kv_head;
        };
        auto const at_k = [&](std::size_t n) { return key_row(n) * width; };
        auto const at_v = [&](std::size_t n) { return key_row(n) * value_width; };
        auto const at_bias = [&](std::size_t n) {
          std::size_t const which = (c.bias_batch > 1 ? batch : 0) * c.bias_heads + (c.bias_heads > 1 ? head : 0);
          return (which * a.queries + i) * a.keys + visible[n];
        };
        auto const kept = [&](int j) {
          if (!a.dropout.active()) return Real(1);
          std::uint64_t const element = ((std::uint64_t(batch) * a.heads + head) * a.queries + i) * a.keys + j;
          return a.dropout.keeps(element) ? Real(a.dropout.scale()) : Real(0);
        };

        std::vector<Real> score(count), p(count), z(count), slope(count);
        Real highest = -std::numeric_limits<Real>::infinity(), sum = 0;
        Real const sink = c.sink ? Real(problem.sink[head]) * log2_e : highest;
        for (std::size_t n = 0; n < count; ++n) {
          z[n] = kept(visible[n]);
          for (std::size_t d = 0; d < width; ++d) score[n] += real(problem.q[at_q + d]) * real(problem.k[at_k(n) + d]);
          slope[n] = 1;
          if (c.softcap > 0) {
            Real const t = std::tanh(scale * score[n] / cap);
            slope[n] = 1 - t * t;
            score[n] = cap * t / scale;
          }
          if (c.alibi || c.bias_batch) {
            Real added = 0;
            if (c.alibi) added -= Real(problem.slopes[head]) * Real(std::abs(i + keys - queries - visible[n]));
            if (c.bias_batch) added += real(problem.bias[at_bias(n)]);
            score[n] = (scale * score[n] + added) / scale;
          }
          score[n] *= scale * log2_e;  // powers of 2, as in the kernels
          highest = std::max(highest, score[n]);
        }
        highest = std::max(highest, sink);
        for (std::size_t n = 0; n < count; ++n) sum += p[n] = std::exp2(score[n] - highest);
        if (c.sink) sum += std::exp2(sink - highest);
        bool const dead = count == 0 && !c.sink;
        r.lse[lse] = dead ? highest : (highest + std::log2(sum)) * std::numbers::ln2_v<Real>;

        Real delta = 0;
        for (std::size_t d = 0; d < value_width; ++d) {
          Real o = 0;
          double size = 0;
          for (std::size_t n = 0; n < count; ++n) {
            Real const summand = stored(p[n]) * z[n] * real(problem.v[at_v(n) + d]);
            o += summand;
            size += (1 + std::abs(double(score[n]))) * std::abs(double(summand));
          }
          r.o[at_o + d] = count == 0 ? Real(0) : stored(o / sum);
          if (count != 0) r.o_summands = std::max(r.o_summands, size / double(sum));
          delta += r.o[at_o + d] * real(problem.d_o[at_o + d]);
        }
        double const size_of_delta = std::abs(double(delta)) + (c.d_lse ? std::abs(double(problem.d_lse[lse])) : 0);
        if (c.d_lse) delta -= Real(problem.d_lse[lse]);
        if (c.sink) {
          double const part = double(std::exp2(sink - r.lse[lse] * log2_e));
          r.d_sink[head] -= Real(part) * delta;
          sink_summands[head] += part * size_of_delta * (1 + std::abs(double(sink)));
          sink_squares[head] += part * part * size_of_delta * size_of_delta;
        }
        double of_lse = 1;
        for (std::size_t n = 0; n < count; ++n) {
          Real const probability = std::exp2(score[n] - r.lse[lse] * log2_e);
          Real dp = 0;
          for (std::size_t d = 0; d < value_width; ++d)
            dp += real(problem.d_o[at_o + d]) * real(problem.v[at_v(n) + d]);
          Real const of_score = probability * (z[n] * dp - delta);
          Real const ds = stored(of_score * slope[n]);
          double condition = 1;
          for (std::size_t d = 0; d < width; ++d)
            condition += std::abs(double(scale * real(problem.q[at_q + d]) * real(problem.k[at_k(n) + d])));
          of_lse += double(probability) * condition;
          double const of_probability = double(probability) * (std::abs(double(z[n] * dp)) + size_of_delta);
          if (c.bias_batch) {
            r.d_bias[at_bias(n)] += of_score;
            bias_summands[at_bias(n)] += condition * of_probability;
          }
          double const parts = double(scale) * of_probability;
          for (std::size_t d = 0; d < width; ++d) {
            Real const dk = scale * ds * real(problem.q[at_q + d]);
            Real const dq = scale * ds * real(problem.k[at_k(n) + d]);
            r.dk[at_k(n) + d] += dk;
            r.dq[at_q + d] += dq;
            double const of_dk = parts * std::abs(double(real(problem.q[at_q + d])));
            double const of_dq = parts * std::abs(double(real(problem.k[at_k(n) + d])));
            dk_summands[at_k(n) + d] += condition * of_dk;
            dq_summands[at_q + d] += condition * of_dq;
            dk_squares[at_k(n) + d] += of_dk * of_dk;
            dq_squares[at_q + d] += of_dq * of_dq;
          }
          for (std::size_t d = 0; d < value_width; ++d) {
            Real const dv = z[n] * stored(probability) * real(problem.d_o[at_o + d]);
            r.dv[at_v(n) + d] += dv;
            dv_summands[at_v(n) + d] += condition * std::abs(double(dv));
            dv_squares[at_v(n) + d] += double(dv) * double(dv);
          }
        }
        r.lse_summands = std::max(r.lse_summands, of_lse);
      }
  auto const largest = [](std::vector<double> const& values) {
    double x = 0;
    for (double const value : values) x = std::max(x, value);
    return x;
  };
  r.dq_summands = largest(dq_summands);
  r.dk_summands = largest(dk_summands);
  r.dv_summands = largest(dv_summands);
  r.d_bias_summands = largest(bias_summands);
  r.d_sink_summands = largest(sink_summands);
  r.dq_spread = std::sqrt(largest(dq_squares));
  r.dk_spread = std::sqrt(largest(dk_squares));
  r.dv_spread = std::sqrt(largest(dv_squares));
  r.d_sink_spread = std::sqrt(largest(sink_squares));
  for (auto* gradient : {&r.dq, &r.dk, &r.dv, &r.d_bias})
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
  double o, lse, dq, dk, dv, d_bias, d_sink;
};

template <class T>
class AttentionReference {
 public:
  using C = ComputeType<T>;

  explicit AttentionReference(AttentionProblem<T>& problem)
      : m_exact(plain_attention<Exact<T>>(problem)), m_plain(plain_attention<C>(problem)) {}

  AttentionErrors errors(AttentionProblem<T> const& problem) const {
    return {
        error(problem.o, m_exact.o, m_plain.o, last_place, m_exact.o_summands),
        error(problem.lse, m_exact.lse, m_plain.lse, epsilon, m_exact.lse_summands),
        error(problem.dq, m_exact.dq, m_plain.dq, last_place, m_exact.dq_summands, m_exact.dq_spread),
        error(problem.dk, m_exact.dk, m_plain.dk, last_place, m_exact.dk_summands, m_exact.dk_spread),
        error(problem.dv, m_exact.dv, m_plain.dv, last_place, m_exact.dv_summands, m_exact.dv_spread),
        error(problem.d_bias, m_exact.d_bias, m_plain.d_bias, last_place, m_exact.d_bias_summands),
        error(problem.d_sink, m_exact.d_sink, m_plain.d_sink, epsilon, m_exact.d_sink_summands, m_exact.d_sink_spread)};
  }

 private:
  static constexpr double epsilon = double(std::numeric_limits<C>::epsilon());
  static constexpr double last_place = std::is_same_v<T, bfloat16>  ? 0x1p-8
                                       : std::is_same_v<T, float16> ? 0x1p-11
                                                                    : epsilon;

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
