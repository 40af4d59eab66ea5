// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Sequences in chunks, as ranks of a ring have them: attention of each chunk of queries to each chunk of keys, merged, and the
// sums of the gradients.
#include <Kokkos_Core.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <utility>
#include <vector>

#include "AttentionReference.hpp"
#include "Sporos_FlashAttention.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Space = Kokkos::DefaultExecutionSpace;
template <class Data>
using View = Kokkos::View<Data, Kokkos::LayoutRight, Space::memory_space>;

template <class T>
View<T****> to_device(std::vector<T> const& values, std::size_t batch, std::size_t sequence, std::size_t heads,
                      std::size_t d) {
  View<T****> const view("values", batch, sequence, heads, d);
  Kokkos::View<T const*, Kokkos::HostSpace> const host(values.data(), values.size());
  Kokkos::deep_copy(Kokkos::View<T*, Space::memory_space>(view.data(), view.size()), host);
  return view;
}

template <class DeviceView>
auto to_host(DeviceView const& view) {
  std::vector<typename DeviceView::non_const_value_type> values(view.size());
  Kokkos::deep_copy(
      Kokkos::View<typename DeviceView::non_const_value_type*, Kokkos::HostSpace>(values.data(), values.size()),
      Kokkos::View<typename DeviceView::const_value_type*, Space::memory_space>(view.data(), view.size()));
  return values;
}

/// Chunk number `chunk` of (batch, sequence, heads, d)
template <class Tensor>
auto chunk_of(Tensor const& x, int chunk, int length) {
  return Kokkos::subview(x, Kokkos::ALL, std::pair(chunk * length, (chunk + 1) * length), Kokkos::ALL, Kokkos::ALL);
}

/// sums += what has the place of chunk `chunk` in (batch, sequence, heads, d)
template <class T, class C>
void add_chunk(std::vector<C>& sums, View<T****> const& gradient, int chunk, int chunks) {
  auto const values = to_host(gradient);
  std::size_t const block = gradient.extent(1) * gradient.extent(2) * gradient.extent(3);
  for (std::size_t b = 0; b < gradient.extent(0); ++b)
    for (std::size_t i = 0; i < block; ++i)
      sums[(b * std::size_t(chunks) + std::size_t(chunk)) * block + i] += C(values[b * block + i]);
}

/// The whole's options, for queries of one chunk and keys of another
FlashAttentionOptions options_of(FlashAttentionOptions whole, int of_queries, int of_keys, int length, int sequence) {
  whole.causal = of_queries == of_keys ? CausalMask::top_left : CausalMask::none;
  whole.dropout_seq_q = whole.dropout_seq_k = sequence;
  whole.dropout.first_element +=
      std::uint64_t(of_queries * length) * std::uint64_t(sequence) + std::uint64_t(of_keys * length);
  return whole;
}

template <class T>
void run_in_chunks(AttentionProblem<T>& p, int chunks) {
  using C = ComputeType<T>;
  AttentionCase const& c = p.shape();
  int const length = c.queries / chunks;
  std::size_t const batch = c.batch, heads = c.heads, kv_heads = c.kv_heads, d = c.head_dim, rows = length;
  auto const q = to_device(p.q, batch, c.queries, heads, d), d_o = to_device(p.d_o, batch, c.queries, heads, d);
  auto const k = to_device(p.k, batch, c.keys, kv_heads, d), v = to_device(p.v, batch, c.keys, kv_heads, d);
  auto const o = to_device(p.o, batch, c.queries, heads, d);
  View<C*****> const partial_o("partial_o", 2, batch, rows, heads, d);
  View<C****> const partial_lse("partial_lse", 2, batch, heads, rows);
  View<C***> const lse("lse", batch, heads, c.queries);
  auto const part = [&](int n) {
    return Kokkos::subview(partial_o, n, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
  };
  auto const part_lse = [&](int n) { return Kokkos::subview(partial_lse, n, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL); };
  auto const lse_of = [&](int i) {
    return Kokkos::subview(lse, Kokkos::ALL, Kokkos::ALL, std::pair(i * length, (i + 1) * length));
  };
  Space const space;
  Workspace<Space> workspace(space);
  for (int i = 0; i < chunks; ++i) {
    for (int j = i; j >= 0; --j) {
      flash_attention_forward(space, chunk_of(q, i, length), chunk_of(k, j, length), chunk_of(v, j, length),
                              options_of(p.options(), i, j, length, c.keys), part(j == i ? 0 : 1),
                              part_lse(j == i ? 0 : 1));
      if (j < i) flash_attention_merge(space, partial_o, partial_lse, part(0), part_lse(0));
    }
    flash_attention_merge(
        space, Kokkos::subview(partial_o, std::pair(0, 1), Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL),
        Kokkos::subview(partial_lse, std::pair(0, 1), Kokkos::ALL, Kokkos::ALL, Kokkos::ALL), chunk_of(o, i, length),
        lse_of(i));
  }

  std::vector<C> dq_sum(p.q.size()), dk_sum(p.k.size()), dv_sum(p.v.size());
  View<T****> const dq("dq", batch, rows, heads, d), dk("dk", batch, rows, kv_heads, d),
      dv("dv", batch, rows, kv_heads, d);
  for (int i = 0; i < chunks; ++i)
    for (int j = 0; j <= i; ++j) {
      flash_attention_backward(space, chunk_of(q, i, length), chunk_of(k, j, length), chunk_of(v, j, length),
                               chunk_of(o, i, length), lse_of(i), chunk_of(d_o, i, length),
                               options_of(p.options(), i, j, length, c.keys), dq, dk, dv, workspace);
      space.fence();
      add_chunk(dq_sum, dq, i, chunks);
      add_chunk(dk_sum, dk, j, chunks);
      add_chunk(dv_sum, dv, j, chunks);
    }
  p.o = to_host(o);
  p.lse = to_host(lse);
  for (auto const& [sums, gradient] : {std::pair(&dq_sum, &p.dq), std::pair(&dk_sum, &p.dk), std::pair(&dv_sum, &p.dv)})
    for (std::size_t n = 0; n < sums->size(); ++n) (*gradient)[n] = from_double<T>(double((*sums)[n]));
}

TEMPLATE_TEST_CASE("attention of chunks of queries to chunks of keys adds up to causal attention, with its gradients",
                   "[attention]", double, float, bfloat16) {
  for (double const dropout : {0.0, 0.3})
    for (int const chunks : {1, 4, 6}) {
      AttentionProblem<TestType> problem({.head_dim = 32,
                                          .queries = 144,
                                          .keys = 144,
                                          .causal = CausalMask::top_left,
                                          .batch = 2,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .dropout = dropout});
      INFO(text_of(problem.shape()) << ", in " << chunks << " chunks");
      AttentionReference<TestType> const reference(problem);
      run_in_chunks(problem, chunks);
      AttentionErrors const errors = reference.errors(problem);
      CHECK(errors.o <= 2);
      CHECK(errors.lse <= 2);
      CHECK(errors.dq <= 2);
      CHECK(errors.dk <= 2);
      CHECK(errors.dv <= 2);
    }
}

TEST_CASE("the whole that dropout counts in is not smaller than what a call computes", "[attention]") {
  Space const space;
  View<float****> const q("q", 1, 8, 1, 8), k("k", 1, 12, 1, 8), o("o", 1, 8, 1, 8);
  View<float***> const lse("lse", 1, 1, 8);
  auto const forward = [&](std::int64_t seq_q, std::int64_t seq_k) {
    FlashAttentionOptions options;
    options.dropout_seq_q = seq_q;
    options.dropout_seq_k = seq_k;
    flash_attention_forward(space, q, k, k, options, o, lse);
  };
  CHECK_NOTHROW(forward(8, 12));
  CHECK_NOTHROW(forward(0, 100));
  CHECK_THROWS_AS(forward(7, 12), InvalidArgument);
  CHECK_THROWS_AS(forward(8, 11), InvalidArgument);
  CHECK_THROWS_AS(forward(-8, 12), InvalidArgument);
  CHECK_THROWS_AS(forward(8, std::int64_t(1) << 31), InvalidArgument);
}

}  // namespace
