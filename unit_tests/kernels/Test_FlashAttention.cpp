// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "AttentionReference.hpp"
#include "AttentionTesting.hpp"
#include "Sporos_FlashAttention.hpp"
#include "impl/Sporos_HostLevel.hpp"

namespace Sporos {

SPOROS_DECLARE_HOST_KERNELS(Impl::FlashAttentionForwardHostKernels, flash_attention_forward_kernels)
SPOROS_DECLARE_HOST_KERNELS(Impl::FlashAttentionBackwardHostKernels, flash_attention_backward_kernels)

}  // namespace Sporos

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Space = Kokkos::DefaultExecutionSpace;

template <class T>
void run_level(AttentionProblem<T>& problem, Impl::HostLevel level, int slots) {
  run_host_kernels<T>(problem, Impl::flash_attention_forward_kernels(level),
                      Impl::flash_attention_backward_kernels(level), slots);
}

// -------------------------------------------------------------------------------- the public functions

template <class U>
using Tensor = Kokkos::View<U****, Kokkos::LayoutStride, Space::memory_space>;

/// A View (batch, sequence, heads, D) whose elements in memory stand in the order (heads, sequence, batch, D), with a gap of 8
/// behind each row: so all strides differ from those of a contiguous View.
template <class U>
Tensor<U> strided(std::size_t batch, std::size_t sequence, std::size_t heads, std::size_t d) {
  std::size_t const row = d + 8;
  return Tensor<U>("strided",
                   Kokkos::LayoutStride(batch, row, sequence, batch * row, heads, sequence * batch * row, d, 1));
}

template <class U>
Tensor<U> to_device(std::vector<U> const& values, std::size_t batch, std::size_t sequence, std::size_t heads,
                    std::size_t d) {
  Tensor<U> const view = strided<U>(batch, sequence, heads, d);
  Kokkos::View<U const****, Kokkos::LayoutRight, Kokkos::HostSpace> const host(values.data(), batch, sequence, heads,
                                                                               d);
  Kokkos::View<U****, Kokkos::LayoutRight, Space::memory_space> const dense("dense", batch, sequence, heads, d);
  Kokkos::deep_copy(dense, host);
  Kokkos::parallel_for(
      "copy", Kokkos::MDRangePolicy<Space, Kokkos::Rank<4>>({0, 0, 0, 0}, {batch, sequence, heads, d}),
      KOKKOS_LAMBDA(std::size_t b, std::size_t s, std::size_t h, std::size_t c) {
        view(b, s, h, c) = dense(b, s, h, c);
      });
  return view;
}

template <class U>
std::vector<U> to_host(Tensor<U> const& view) {
  Kokkos::View<U****, Kokkos::LayoutRight, Space::memory_space> const dense("dense", view.extent(0), view.extent(1),
                                                                            view.extent(2), view.extent(3));
  Kokkos::parallel_for(
      "copy",
      Kokkos::MDRangePolicy<Space, Kokkos::Rank<4>>({0, 0, 0, 0},
                                                    {view.extent(0), view.extent(1), view.extent(2), view.extent(3)}),
      KOKKOS_LAMBDA(std::size_t b, std::size_t s, std::size_t h, std::size_t c) {
        dense(b, s, h, c) = view(b, s, h, c);
      });
  auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), dense);
  return std::vector<U>(host.data(), host.data() + host.size());
}

/// Forward and backward through the public functions, with strided Views
template <class T>
void run_public(AttentionProblem<T>& p, FlashAttentionOptions const& options) {
  using C = ComputeType<T>;
  AttentionCase const& c = p.shape();
  std::size_t const batch = c.batch, queries = c.queries, keys = c.keys, heads = c.heads, kv_heads = c.kv_heads;
  std::size_t const d = c.head_dim;
  auto const q = to_device(p.q, batch, queries, heads, d), d_o = to_device(p.d_o, batch, queries, heads, d);
  auto const o = to_device(p.o, batch, queries, heads, d), dq = to_device(p.dq, batch, queries, heads, d);
  auto const k = to_device(p.k, batch, keys, kv_heads, d), v = to_device(p.v, batch, keys, kv_heads, d);
  auto const dk = to_device(p.dk, batch, keys, kv_heads, d), dv = to_device(p.dv, batch, keys, kv_heads, d);
  Kokkos::View<C***, Kokkos::LayoutRight, Space::memory_space> const lse("lse", batch, heads, queries);
  Kokkos::deep_copy(lse, std::numeric_limits<C>::quiet_NaN());

  Space const space;
  Workspace<Space> workspace(space);
  flash_attention_forward(space, q, Tensor<T const>(k), v, options, o, lse);
  flash_attention_backward(space, q, k, v, o, lse, d_o, options, dq, dk, dv, workspace);
  space.fence();
  CHECK(workspace.bytes() == flash_attention_backward_workspace_bytes(space, q, k));

  p.o = to_host(o);
  p.dq = to_host(dq);
  p.dk = to_host(dk);
  p.dv = to_host(dv);
  auto const host_lse = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
  p.lse.assign(host_lse.data(), host_lse.data() + host_lse.size());
}

template <class T>
void run_public(AttentionProblem<T>& problem) {
  run_public(problem, problem.options());
}

// -------------------------------------------------------------------------------- tests

TEMPLATE_TEST_CASE("flash attention equals the exact result, at every host level", "[attention]", double, float,
                   bfloat16) {
  for (AttentionCase const& shape : attention_cases) {
    INFO(text_of(shape));
    AttentionProblem<TestType> problem(shape);
    AttentionReference<TestType> const reference(problem);
    for (Impl::HostLevel const level : Impl::supported_host_levels())
      for (int const slots : {1, 3}) {
        INFO(name_of(level) << ", slots " << slots);
        AttentionProblem<TestType> result(shape);
        run_level(result, level, slots);
        require_as_good_as_plain(reference.errors(result));
      }
  }
}

TEMPLATE_TEST_CASE("flash attention equals the exact result in the default execution space", "[attention]", double,
                   float, bfloat16) {
  for (AttentionCase const& shape : attention_cases) {
    INFO(text_of(shape));
    AttentionProblem<TestType> problem(shape);
    AttentionReference<TestType> const reference(problem);
    run_public(problem);
    require_as_good_as_plain(reference.errors(problem));
  }
}

TEST_CASE("a NaN in a key reaches exactly the queries that see it", "[attention]") {
  AttentionCase const shape{
      .head_dim = 64, .queries = 150, .keys = 150, .causal = CausalMask::bottom_right, .nan_key = 140};
  AttentionProblem<float> problem(shape);
  AttentionReference<float> const reference(problem);
  run_public(problem);
  CHECK(reference.errors(problem).o <= 2);
  CHECK(reference.errors(problem).lse <= 2);
  CHECK(std::isnan(problem.lse[140]));
}

/// Σ d_o ∘ O, whose gradients the backward pass computes
double inner_product(AttentionProblem<double> problem) {
  run_level(problem, Impl::best_host_level(), 1);
  double sum = 0;
  for (std::size_t i = 0; i < problem.o.size(); ++i) sum += problem.o[i] * problem.d_o[i];
  return sum;
}

TEST_CASE("the gradients of flash attention are those of central differences", "[attention]") {
  AttentionCase const shape = GENERATE(
      AttentionCase{8, 9, 12, CausalMask::bottom_right, 0, 1, 4, 2}, AttentionCase{16, 11, 7, CausalMask::bottom_right},
      AttentionCase{.head_dim = 8, .queries = 70, .keys = 66, .causal = CausalMask::top_left},
      AttentionCase{.head_dim = 8, .queries = 10, .keys = 9, .heads = 2, .kv_heads = 1, .dropout = 0.3});
  INFO(text_of(shape));
  AttentionProblem<double> problem(shape);
  run_public(problem);
  struct Input {
    std::vector<double> AttentionProblem<double>::* values;
    std::vector<double> AttentionProblem<double>::* gradient;
    char const* name;
  };
  using Problem = AttentionProblem<double>;
  for (Input const& input : {Input{&Problem::q, &Problem::dq, "q"}, Input{&Problem::k, &Problem::dk, "k"},
                             Input{&Problem::v, &Problem::dv, "v"}}) {
    std::vector<double> const& gradient = problem.*input.gradient;
    double largest = 0;
    for (double const g : gradient) largest = std::max(largest, std::abs(g));
    REQUIRE(largest > 0);
    std::size_t const stride = std::max<std::size_t>(1, gradient.size() / 97);  // no multiple of anything in the shapes
    for (std::size_t i = 0; i < gradient.size(); i += stride) {
      INFO("d" << input.name << "[" << i << "]");
      double const h = 0x1p-13;
      Problem above = problem, below = problem;
      (above.*input.values)[i] += h;
      (below.*input.values)[i] -= h;
      double const difference = (inner_product(above) - inner_product(below)) / (2 * h);
      CHECK(std::abs(difference - gradient[i]) <= 1e-6 * largest);
    }
  }
}

TEST_CASE("dropout keeps what the logical index says, whichever part of the whole a call computes", "[attention]") {
  AttentionCase const shape{.head_dim = 64, .queries = 70, .keys = 80, .batch = 2, .dropout = 0.4};
  AttentionProblem<float> whole(shape);
  run_public(whole);

  // The second batch alone, as another rank would have it
  AttentionProblem<float> part({.head_dim = 64, .queries = 70, .keys = 80, .dropout = 0.4});
  std::size_t const rows = 70 * 64, columns = 80 * 64;
  part.q.assign(whole.q.begin() + rows, whole.q.end());
  part.k.assign(whole.k.begin() + columns, whole.k.end());
  part.v.assign(whole.v.begin() + columns, whole.v.end());
  part.d_o.assign(whole.d_o.begin() + rows, whole.d_o.end());
  auto const options_of_part = [&] {
    auto options = part.options();
    options.dropout.first_element += 70 * 80;
    return options;
  };
  run_public(part, options_of_part());
  CHECK(part.o == std::vector<float>(whole.o.begin() + rows, whole.o.end()));
  CHECK(part.dk == std::vector<float>(whole.dk.begin() + columns, whole.dk.end()));

  // Without dropout the result is another
  run_public(part, FlashAttentionOptions());
  CHECK(part.o != std::vector<float>(whole.o.begin() + rows, whole.o.end()));
}

TEST_CASE("the gradients are bitwise repeatable", "[attention]") {
  AttentionProblem<float> first({64, 200, 300, CausalMask::bottom_right, 0, 1, 3, 1});
  AttentionProblem<float> second = first;
  run_public(first);
  run_public(second);
  CHECK(first.dq == second.dq);
  CHECK(first.dk == second.dk);
  CHECK(first.dv == second.dv);
}

TEST_CASE("forward and backward over 32768 keys take less than 64 MB beyond their tensors", "[attention]") {
  Space const space;
  Kokkos::View<float****, Kokkos::LayoutRight, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const q(nullptr, 1, 32768, 1,
                                                                                                64);
  std::size_t const workspace = flash_attention_backward_workspace_bytes(space, q, q);
  CHECK(workspace >= 32768 * 64 * sizeof(float));
  std::size_t scratch = 0;
  if constexpr (std::is_same_v<Space::memory_space, Kokkos::HostSpace>) {
    Impl::FlashAttentionArguments<float> a{};
    a.head_dim = 64;
    Impl::FlashAttentionForwardHostKernel<float> const forward =
        Impl::flash_attention_forward_kernels(Impl::best_host_level());
    Impl::FlashAttentionBackwardHostKernel<float> const backward =
        Impl::flash_attention_backward_kernels(Impl::best_host_level());
    scratch =
        std::max(forward.scratch_bytes(a), backward.scratch_bytes(a)) * std::size_t(std::min(space.concurrency(), 16));
  }
  CHECK(workspace + scratch < 64'000'000);
}

TEST_CASE("arguments of flash attention that do not fit are refused by name", "[attention]") {
  using View4 = Kokkos::View<float****, Kokkos::LayoutRight, Space::memory_space>;
  using View3 = Kokkos::View<float***, Kokkos::LayoutRight, Space::memory_space>;
  Space const space;
  Workspace<Space> workspace(space);
  View4 const q("q", 2, 5, 4, 16), k("k", 2, 7, 2, 16), o("o", 2, 5, 4, 16);
  View3 const lse("lse", 2, 4, 5);
  FlashAttentionOptions const options;
  auto const forward = [&](auto const& q, auto const& k, auto const& v, FlashAttentionOptions const& options,
                           auto const& o,
                           auto const& lse) { flash_attention_forward(space, q, k, v, options, o, lse); };
  CHECK_NOTHROW(forward(q, k, k, options, o, lse));
  CHECK_THROWS_AS(forward(q, View4("k", 1, 7, 2, 16), View4("v", 1, 7, 2, 16), options, o, lse), InvalidArgument);
  CHECK_THROWS_AS(forward(q, View4("k", 2, 7, 2, 8), View4("v", 2, 7, 2, 8), options, o, lse), InvalidArgument);
  CHECK_THROWS_AS(forward(q, View4("k", 2, 7, 3, 16), View4("v", 2, 7, 3, 16), options, o, lse), InvalidArgument);
  CHECK_THROWS_AS(forward(q, k, View4("v", 2, 6, 2, 16), options, o, lse), InvalidArgument);
  CHECK_THROWS_AS(forward(q, k, k, options, View4("o", 2, 6, 4, 16), lse), InvalidArgument);
  CHECK_THROWS_AS(forward(q, k, k, options, o, View3("lse", 2, 5, 4)), InvalidArgument);
  for (int const d : {0, 12, 264}) {
    View4 const q("q", 2, 5, 4, d), k("k", 2, 7, 2, d), o("o", 2, 5, 4, d);
    CHECK_THROWS_AS(forward(q, k, k, options, o, lse), InvalidArgument);
  }
  for (double const scale : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    FlashAttentionOptions wrong;
    wrong.scale = scale;
    CHECK_THROWS_AS(forward(q, k, k, wrong, o, lse), InvalidArgument);
  }
  for (double const probability : {-0.1, 1.0}) {
    FlashAttentionOptions wrong;
    wrong.dropout.probability = probability;
    CHECK_THROWS_AS(forward(q, k, k, wrong, o, lse), InvalidArgument);
  }
  Kokkos::View<float****, Kokkos::LayoutLeft, Space::memory_space> const left("left", 2, 7, 2, 16);
  CHECK_THROWS_AS(forward(q, left, k, options, o, lse), InvalidArgument);
  View4 const short_dk("dk", 2, 6, 2, 16);
  CHECK_THROWS_AS(flash_attention_backward(space, q, k, k, o, lse, o, options, q, short_dk, k, workspace),
                  InvalidArgument);
  CHECK_THROWS_AS(flash_attention_backward(space, q, k, k, o, lse, k, options, q, k, k, workspace), InvalidArgument);
}

}  // namespace
