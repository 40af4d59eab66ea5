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
void copy_to(Tensor<U> const& view, std::vector<U> const& values) {
  Kokkos::View<U const****, Kokkos::LayoutRight, Kokkos::HostSpace> const host(
      values.data(), view.extent(0), view.extent(1), view.extent(2), view.extent(3));
  auto const dense = Kokkos::create_mirror_view_and_copy(typename Space::memory_space(), host);
  Kokkos::parallel_for(
      "copy",
      Kokkos::MDRangePolicy<Space, Kokkos::Rank<4>>({0, 0, 0, 0},
                                                    {view.extent(0), view.extent(1), view.extent(2), view.extent(3)}),
      KOKKOS_LAMBDA(std::size_t b, std::size_t s, std::size_t h, std::size_t c) {
        view(b, s, h, c) = dense(b, s, h, c);
      });
}

template <class U>
Tensor<U> to_device(std::vector<U> const& values, std::size_t batch, std::size_t sequence, std::size_t heads,
                    std::size_t d) {
  Tensor<U> const view = strided<U>(batch, sequence, heads, d);
  copy_to(view, values);
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

template <class U, class Data>
using Dense = Kokkos::View<Data, Kokkos::LayoutRight, Space::memory_space>;

/// A copy of host values as a View without gaps
template <class Data, class U, class... Extents>
Dense<U, Data> dense(std::vector<U> const& values, Extents... extents) {
  Dense<U, Data> const view("dense", std::size_t(extents)...);
  Kokkos::View<U const*, Kokkos::HostSpace> const host(values.data(), view.size());
  Kokkos::deep_copy(Kokkos::View<U*, Space::memory_space>(view.data(), view.size()), host);
  return view;
}

template <class View>
auto values_of(View const& view) {
  using U = typename View::non_const_value_type;
  std::vector<U> values(view.size());
  Kokkos::View<U const*, Space::memory_space> const flat(view.data(), view.size());
  Kokkos::deep_copy(Kokkos::View<U*, Kokkos::HostSpace>(values.data(), values.size()), flat);
  return values;
}

template <class T>
struct Extras {
  FlashAttentionExtras<Space, T> inputs;
  FlashAttentionExtraGradients<Space, T> gradients;
};

/// What the case has beyond q, k and v, in memory that the execution space can reach; outputs are poisoned.
template <class T>
Extras<T> extras_of(AttentionProblem<T> const& p) {
  using C = ComputeType<T>;
  AttentionCase const& c = p.shape();
  Extras<T> extras;
  if (c.bias_batch) {
    extras.inputs.bias = dense<T****>(p.bias, c.bias_batch, c.bias_heads, c.queries, c.keys);
    extras.gradients.d_bias = dense<T****>(p.d_bias, c.bias_batch, c.bias_heads, c.queries, c.keys);
  }
  if (c.alibi) extras.inputs.alibi_slopes = dense<C**>(p.slopes, 1, c.heads);
  if (c.sink) {
    extras.inputs.sink = dense<C*>(p.sink, c.heads);
    extras.gradients.d_sink = dense<C*>(p.d_sink, c.heads);
  }
  if (c.d_lse && p.has_lengths())
    extras.gradients.d_lse_of_sequences = dense<C**>(p.d_lse, c.heads, p.first_query.back());
  else if (c.d_lse)
    extras.gradients.d_lse = dense<C***>(p.d_lse, c.batch, c.heads, c.queries);
  if (p.has_lengths()) extras.inputs.lengths = SequenceLengths<Space>(Space(), p.first_query, p.first_key);
  return extras;
}

template <class T>
void read_extras(AttentionProblem<T>& p, Extras<T> const& extras) {
  if (p.shape().bias_batch) p.d_bias = values_of(extras.gradients.d_bias);
  if (p.shape().sink) p.d_sink = values_of(extras.gradients.d_sink);
}

/// Forward and backward through the public functions, with strided Views
template <class T>
void run_public(AttentionProblem<T>& p, FlashAttentionOptions const& options) {
  using C = ComputeType<T>;
  AttentionCase const& c = p.shape();
  std::size_t const batch = c.batch, queries = c.queries, keys = c.keys, heads = c.heads, kv_heads = c.kv_heads;
  std::size_t const d = c.head_dim, dv_width = c.value_dim;
  auto const q = to_device(p.q, batch, queries, heads, d), d_o = to_device(p.d_o, batch, queries, heads, dv_width);
  auto const o = to_device(p.o, batch, queries, heads, dv_width), dq = to_device(p.dq, batch, queries, heads, d);
  auto const k = to_device(p.k, batch, keys, kv_heads, d), v = to_device(p.v, batch, keys, kv_heads, dv_width);
  auto const dk = to_device(p.dk, batch, keys, kv_heads, d), dv = to_device(p.dv, batch, keys, kv_heads, dv_width);
  auto const lse = dense<C***>(p.lse, batch, heads, queries);
  Extras<T> const extras = extras_of(p);

  Space const space;
  Workspace<Space> workspace(space);
  flash_attention_forward(space, q, Tensor<T const>(k), v, options, extras.inputs, o, lse);
  flash_attention_backward(space, q, k, v, o, lse, d_o, options, extras.inputs, dq, dk, dv, extras.gradients,
                           workspace);
  space.fence();
  CHECK(workspace.bytes() == flash_attention_backward_workspace_bytes(space, q, k, v, options, extras.inputs));

  p.o = to_host(o);
  p.dq = to_host(dq);
  p.dk = to_host(dk);
  p.dv = to_host(dv);
  p.lse = values_of(lse);
  read_extras(p, extras);
}

/// ... of sequences one after another, with rows behind the last that must stay as they are
template <class T>
void run_public_sequences(AttentionProblem<T>& p) {
  using C = ComputeType<T>;
  AttentionCase const& c = p.shape();
  std::size_t const queries = p.first_query.back(), keys = p.first_key.back(), heads = c.heads, kv_heads = c.kv_heads;
  auto const q = dense<T***>(p.q, queries, heads, c.head_dim), dq = dense<T***>(p.dq, queries, heads, c.head_dim);
  auto const k = dense<T***>(p.k, keys, kv_heads, c.head_dim), dk = dense<T***>(p.dk, keys, kv_heads, c.head_dim);
  auto const v = dense<T***>(p.v, keys, kv_heads, c.value_dim), dv = dense<T***>(p.dv, keys, kv_heads, c.value_dim);
  auto const o = dense<T***>(p.o, queries, heads, c.value_dim), d_o = dense<T***>(p.d_o, queries, heads, c.value_dim);
  auto const lse = dense<C**>(p.lse, heads, queries);
  Extras<T> const extras = extras_of(p);

  Space const space;
  Workspace<Space> workspace(space);
  flash_attention_forward(space, q, k, v, p.options(), extras.inputs, o, lse);
  flash_attention_backward(space, q, k, v, o, lse, d_o, p.options(), extras.inputs, dq, dk, dv, extras.gradients,
                           workspace);
  space.fence();
  CHECK(workspace.bytes() == flash_attention_backward_workspace_bytes(space, q, k, v, p.options(), extras.inputs));

  p.o = values_of(o);
  p.dq = values_of(dq);
  p.dk = values_of(dk);
  p.dv = values_of(dv);
  p.lse = values_of(lse);
  read_extras(p, extras);
}

template <class T>
void run_public(AttentionProblem<T>& problem) {
  if (problem.has_lengths())
    run_public_sequences(problem);
  else
    run_public(problem, problem.options());
}

// -------------------------------------------------------------------------------- tests

template <class T>
std::vector<std::vector<AttentionCase> const*> cases_of() {
  if (std::is_same_v<T, float>) return {&attention_cases, &attention_feature_cases, &attention_hard_cases};
  if (std::is_same_v<T, float16>) return {&attention_feature_cases, &attention_hard_cases};
  return {&attention_cases, &attention_feature_cases};
}

// The matrix instructions of GPUs cut sums of products off where others round, each time they add a few: all in one
// direction, which shows in scores of some hundreds, and in nothing but the LSE.
template <class T>
constexpr double most_of_lse = sizeof(T) == 2 && !std::is_same_v<Space::memory_space, Kokkos::HostSpace> ? 4 : 2;

// One reference for all that computes the case: it takes longer than they do.
TEMPLATE_TEST_CASE("flash attention equals the exact result, at every host level and in the default execution space",
                   "[attention]", double, float, bfloat16, float16) {
  for (auto const* cases : cases_of<TestType>())
    for (AttentionCase const& shape : *cases) {
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
      run_public(problem);
      INFO("default execution space");
      require_as_good_as_plain(reference.errors(problem), most_of_lse<TestType>);
    }
}

TEST_CASE("flash attention where only the last of three long sequences has queries", "[attention]") {
  AttentionProblem<float> problem(attention_late_sequence_case);
  AttentionReference<float> const reference(problem);
  run_public(problem);
  require_as_good_as_plain(reference.errors(problem));
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

// -------------------------------------------------------------------------------- layouts

TEST_CASE("flash attention takes slices of one tensor and heads before the sequence", "[attention]") {
  constexpr int sequence = 70, heads = 2, d = 32;
  AttentionProblem<float> problem({.head_dim = d,
                                   .queries = sequence,
                                   .keys = sequence,
                                   .causal = CausalMask::bottom_right,
                                   .batch = 2,
                                   .heads = heads,
                                   .kv_heads = heads});
  AttentionReference<float> const reference(problem);
  Space const space;
  Workspace<Space> workspace(space);
  auto const q = dense<float****>(problem.q, 2, sequence, heads, d);
  auto const k = dense<float****>(problem.k, 2, sequence, heads, d);
  auto const v = dense<float****>(problem.v, 2, sequence, heads, d);
  auto const o = dense<float****>(problem.o, 2, sequence, heads, d);
  auto const d_o = dense<float****>(problem.d_o, 2, sequence, heads, d);
  auto const lse = dense<float***>(problem.lse, 2, heads, sequence);
  using Tensor5 = Kokkos::View<float*****, Kokkos::LayoutRight, Space::memory_space>;

  auto const run = [&](auto const& q_in, auto const& k_in, auto const& v_in, auto const& o_out, auto const& d_o_in,
                       auto const& dq, auto const& dk, auto const& dv) {
    flash_attention_forward(space, q_in, k_in, v_in, problem.options(), o_out, lse);
    flash_attention_backward(space, q_in, k_in, v_in, o_out, lse, d_o_in, problem.options(), dq, dk, dv, workspace);
    auto const read = [&](auto const& view) { return to_host<float>(Tensor<float>(view)); };
    problem.o = read(o_out);
    problem.dq = read(dq);
    problem.dk = read(dk);
    problem.dv = read(dv);
    problem.lse = values_of(lse);
    require_as_good_as_plain(reference.errors(problem));
  };

  // (batch, sequence, q k v, heads, head_dim), as one GEMM computes them; V as an other part of it
  Tensor5 const packed("packed", 2, sequence, 3, heads, d), gradients("gradients", 2, sequence, 3, heads, d);
  auto const slice = [](Tensor5 const& tensor, int part) {
    return Kokkos::subview(tensor, Kokkos::ALL, Kokkos::ALL, part, Kokkos::ALL, Kokkos::ALL);
  };
  Kokkos::deep_copy(slice(packed, 0), q);
  Kokkos::deep_copy(slice(packed, 1), k);
  Kokkos::deep_copy(slice(packed, 2), v);
  run(slice(packed, 0), slice(packed, 1), slice(packed, 2), o, d_o, slice(gradients, 0), slice(gradients, 1),
      slice(gradients, 2));

  // (batch, heads, sequence, head_dim); O as it was, so that dO and O differ in their strides
  using Tensor4 = Kokkos::View<float****, Kokkos::LayoutRight, Space::memory_space>;
  auto const heads_first = [&](auto const& from) {
    Tensor4 const tensor("heads first", 2, heads, sequence, d);
    Kokkos::deep_copy(heads_before_sequence(tensor), from);
    return tensor;
  };
  Tensor4 const q2 = heads_first(q), k2 = heads_first(k), v2 = heads_first(v), d_o2 = heads_first(d_o);
  Tensor4 const dq2("dq", 2, heads, sequence, d), dk2("dk", 2, heads, sequence, d), dv2("dv", 2, heads, sequence, d);
  run(heads_before_sequence(q2), heads_before_sequence(k2), heads_before_sequence(v2), o, heads_before_sequence(d_o2),
      heads_before_sequence(dq2), heads_before_sequence(dk2), heads_before_sequence(dv2));
}

// Rows whose offsets exceed 32 bits: a batch stride far beyond. Of a host's memory only a few pages are touched.
TEST_CASE("strides of flash attention may take offsets past 32 bits", "[attention]") {
  AttentionProblem<float> problem({.head_dim = 16, .queries = 20, .keys = 20, .batch = 2});
  AttentionReference<float> const reference(problem);
  std::size_t const far = std::size_t(1) << 31, part = 20 * 16;
  Kokkos::View<float*, Space::memory_space> const memory(Kokkos::view_alloc(Kokkos::WithoutInitializing, "far apart"),
                                                         far + 8 * part);
  std::size_t used = 0;
  auto const tensor = [&](std::vector<float> const& values) {
    Tensor<float> const view(memory.data() + part * used++, Kokkos::LayoutStride(2, far, 20, 16, 1, 16, 16, 1));
    copy_to(view, values);
    return view;
  };
  auto const q = tensor(problem.q), k = tensor(problem.k), v = tensor(problem.v), o = tensor(problem.o);
  auto const d_o = tensor(problem.d_o), dq = tensor(problem.dq), dk = tensor(problem.dk), dv = tensor(problem.dv);
  auto const lse = dense<float***>(problem.lse, 2, 1, 20);
  Space const space;
  Workspace<Space> workspace(space);
  flash_attention_forward(space, q, k, v, problem.options(), o, lse);
  flash_attention_backward(space, q, k, v, o, lse, d_o, problem.options(), dq, dk, dv, workspace);
  problem.o = to_host<float>(o);
  problem.dq = to_host<float>(dq);
  problem.dk = to_host<float>(dk);
  problem.dv = to_host<float>(dv);
  problem.lse = values_of(lse);
  require_as_good_as_plain(reference.errors(problem));
}

// -------------------------------------------------------------------------------- parts of the keys

TEMPLATE_TEST_CASE("attention over parts of the keys merges into attention over all of them", "[attention]", double,
                   bfloat16) {
  using C = ComputeType<TestType>;
  AttentionProblem<TestType> problem({.head_dim = 32, .queries = 20, .keys = 150, .batch = 2, .heads = 2});
  AttentionReference<TestType> const reference(problem);
  auto const q = to_device(problem.q, 2, 20, 2, 32);
  auto const k = to_device(problem.k, 2, 150, 1, 32), v = to_device(problem.v, 2, 150, 1, 32);
  auto const o = to_device(problem.o, 2, 20, 2, 32);
  auto const lse = dense<C***>(problem.lse, 2, 2, 20);
  Kokkos::View<C*****, Kokkos::LayoutRight, Space::memory_space> const partial_o("partial_o", 4, 2, 20, 2, 32);
  Kokkos::View<C****, Kokkos::LayoutRight, Space::memory_space> const partial_lse("partial_lse", 4, 2, 2, 20);
  Space const space;
  int const bounds[] = {0, 70, 70, 71, 150};  // one part without a key
  for (int part = 0; part < 4; ++part) {
    Kokkos::pair<int, int> const range(bounds[part], bounds[part + 1]);
    auto const of_part = [&](auto const& x) {
      return Kokkos::subview(x, Kokkos::ALL, range, Kokkos::ALL, Kokkos::ALL);
    };
    flash_attention_forward(space, q, of_part(k), of_part(v), problem.options(),
                            Kokkos::subview(partial_o, part, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL),
                            Kokkos::subview(partial_lse, part, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL));
  }
  flash_attention_merge(space, partial_o, partial_lse, o, lse);
  problem.o = to_host(o);
  problem.lse = values_of(lse);
  CHECK(reference.errors(problem).o <= 2);
  CHECK(reference.errors(problem).lse <= 2);

  // In place of a part, and in full precision
  auto const first = Kokkos::subview(partial_o, 0, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
  auto const first_lse = Kokkos::subview(partial_lse, 0, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
  flash_attention_merge(space, partial_o, partial_lse, first, first_lse);
  auto const wide = to_host<C>(Tensor<C>(first));
  for (std::size_t i = 0; i < wide.size(); ++i) problem.o[i] = from_double<TestType>(double(wide[i]));
  CHECK(reference.errors(problem).o <= 2);

  // Nobody saw a key
  Kokkos::deep_copy(partial_lse, -std::numeric_limits<C>::infinity());
  flash_attention_merge(space, partial_o, partial_lse, o, lse);
  for (TestType const x : to_host(o)) CHECK(double(x) == 0);
  for (C const x : values_of(lse)) CHECK(x == -std::numeric_limits<C>::infinity());
}

// A test cannot ask for more workers than there are; so it says in how many shares.
TEST_CASE("keys in shares give what all of them give", "[attention]") {
  if constexpr (std::is_same_v<Space::memory_space, Kokkos::HostSpace>) {
    Space const space;
    for (AttentionCase const& shape : std::vector<AttentionCase>{
             {.head_dim = 32, .queries = 20, .keys = 300, .causal = CausalMask::bottom_right, .batch = 2, .heads = 2},
             {.head_dim = 32,
              .queries = 1,
              .keys = 300,
              .batch = 2,
              .heads = 6,
              .kv_heads = 2,
              .window = {.left = 150}},
             {.head_dim = 32, .queries = 1, .keys = 300, .causal = CausalMask::top_left, .heads = 2},
             {.head_dim = 32, .queries = 1, .keys = 300, .heads = 4, .kv_heads = 2, .sink = true},
             {.head_dim = 32,
              .queries = 9,
              .keys = 200,
              .batch = 3,
              .heads = 2,
              .value_dim = 16,
              .alibi = true,
              .query_lengths = {1, 0, 9},
              .key_lengths = {200, 5, 130}}})
      for (int const splits : {1, 3}) {
        INFO(text_of(shape) << ", in " << splits);
        AttentionProblem<float> problem(shape);
        AttentionReference<float> const reference(problem);
        Workspace<Space> workspace(space);
        int const queries_of_batch = problem.has_lengths() ? problem.first_query.back() : shape.queries;
        Impl::flash_attention_split_forward(space, problem.arguments(), queries_of_batch, workspace, splits);
        CHECK(reference.errors(problem).o <= 2);
        CHECK(reference.errors(problem).lse <= 2);
      }
  }
}

// Tokens one by one and some at once, from a cache that is longer than what it holds
TEST_CASE("decoding step by step equals one pass over the sequence", "[attention]") {
  using TestType = float;
  using C = ComputeType<TestType>;
  auto const window = GENERATE(AttentionWindow{}, AttentionWindow{.left = 100});
  int const heads = GENERATE(1, 6);
  AttentionCase const shape{.head_dim = 32,
                            .queries = 340,
                            .keys = 340,
                            .causal = CausalMask::bottom_right,
                            .batch = 2,
                            .heads = heads,
                            .kv_heads = heads == 6 ? 2 : 1,
                            .window = window};
  AttentionProblem<TestType> problem(shape);
  AttentionReference<TestType> const reference(problem);
  std::size_t const kv_heads = shape.kv_heads, d = shape.head_dim;
  auto const q = to_device(problem.q, 2, 340, heads, d), o = to_device(problem.o, 2, 340, heads, d);
  auto const k = to_device(problem.k, 2, 340, kv_heads, d), v = to_device(problem.v, 2, 340, kv_heads, d);
  auto const lse = dense<C***>(problem.lse, 2, heads, 340);
  auto const k_cache = strided<TestType>(2, 400, kv_heads, d), v_cache = strided<TestType>(2, 400, kv_heads, d);
  Space const space;
  Workspace<Space> workspace(space);
  for (std::size_t at = 0, step = 310; at < 340;
       at += step, step = at < 326 ? 1 : std::min<std::size_t>(14, 340 - at)) {
    Kokkos::pair<std::size_t, std::size_t> const range(at, at + step);
    auto const now = [&](auto const& x) { return Kokkos::subview(x, Kokkos::ALL, range, Kokkos::ALL, Kokkos::ALL); };
    flash_attention_decode(space, now(q), now(k), now(v), k_cache, v_cache, at, problem.options(),
                           FlashAttentionExtras<Space, TestType>(), now(o),
                           Kokkos::subview(lse, Kokkos::ALL, Kokkos::ALL, range), workspace);
  }
  problem.o = to_host(o);
  problem.lse = values_of(lse);
  CHECK(reference.errors(problem).o <= 2);
  CHECK(reference.errors(problem).lse <= 2);

  auto const one = Kokkos::subview(q, Kokkos::ALL, Kokkos::pair<int, int>(0, 1), Kokkos::ALL, Kokkos::ALL);
  auto const one_k = Kokkos::subview(k, Kokkos::ALL, Kokkos::pair<int, int>(0, 1), Kokkos::ALL, Kokkos::ALL);
  auto const one_lse = Kokkos::subview(lse, Kokkos::ALL, Kokkos::ALL, Kokkos::pair<int, int>(0, 1));
  CHECK_THROWS_AS(flash_attention_decode(space, one, one_k, one_k, k_cache, v_cache, 400, problem.options(),
                                         FlashAttentionExtras<Space, TestType>(), one, one_lse, workspace),
                  InvalidArgument);
}

TEST_CASE("another seed gives another mask, the same seed the same", "[attention]") {
  AttentionProblem<float> problem({.head_dim = 32, .queries = 70, .keys = 70, .dropout = 0.5});
  auto const o_of = [&](std::uint64_t seed) {
    auto options = problem.options();
    options.dropout.seed = seed;
    AttentionProblem<float> run = problem;
    run_public(run, options);
    return run.o;
  };
  CHECK(o_of(1) == o_of(1));
  CHECK(o_of(1) != o_of(2));
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
  std::size_t const workspace = flash_attention_backward_workspace_bytes(space, q, q, q, {});
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
  for (AttentionWindow const window : {AttentionWindow{.left = -1}, AttentionWindow{.right = -5}}) {
    FlashAttentionOptions wrong;
    wrong.window = window;
    CHECK_THROWS_AS(forward(q, k, k, wrong, o, lse), InvalidArgument);
  }
  for (double const softcap : {-1.0, std::numeric_limits<double>::infinity()}) {
    FlashAttentionOptions wrong;
    wrong.softcap = softcap;
    CHECK_THROWS_AS(forward(q, k, k, wrong, o, lse), InvalidArgument);
  }
  CHECK_THROWS_AS(forward(q, k, View4("v", 2, 7, 2, 24), options, o, lse), InvalidArgument);  // o has another head_dim
  CHECK_NOTHROW(forward(q, k, View4("v", 2, 7, 2, 24), options, View4("o", 2, 5, 4, 24), lse));

  using Extras = FlashAttentionExtras<Space, float>;
  auto const refused = [&](Extras const& extras) {
    CHECK_THROWS_AS(flash_attention_forward(space, q, k, k, options, extras, o, lse), InvalidArgument);
  };
  Extras wrong;
  wrong.bias = View4("bias", 2, 4, 5, 6);
  refused(wrong);
  wrong.bias = View4("bias", 2, 2, 5, 7);
  refused(wrong);
  wrong = {};
  wrong.alibi_slopes = Kokkos::View<float**, Kokkos::LayoutRight, Space::memory_space>("slopes", 2, 2);
  refused(wrong);
  wrong = {};
  wrong.sink = Kokkos::View<float*, Space::memory_space>("sink", 5);
  refused(wrong);
  wrong = {};
  wrong.lengths = SequenceLengths<Space>(space, {0, 5}, {0, 7});
  refused(wrong);

  using Lengths = std::vector<int>;
  for (auto const& [queries, keys] : std::vector<std::pair<Lengths, Lengths>>{
           {{0, 3, 2}, {0, 3, 4}}, {{0, 3}, {0, 3, 4}}, {{1, 3}, {0, 3}}, {{}, {}}, {{0, 3}, {0, -1}}})
    CHECK_THROWS_AS(SequenceLengths<Space>(space, queries, keys), InvalidArgument);
  View3 const q3("q", 5, 4, 16), k3("k", 7, 2, 16), o3("o", 5, 4, 16);
  Kokkos::View<float**, Kokkos::LayoutRight, Space::memory_space> const lse2("lse", 4, 5);
  auto const with_lengths = [&](Lengths const& queries, Lengths const& keys) {
    Extras extras;
    extras.lengths = SequenceLengths<Space>(space, queries, keys);
    flash_attention_forward(space, q3, k3, k3, options, extras, o3, lse2);
  };
  CHECK_NOTHROW(with_lengths({0, 2, 5}, {0, 7, 7}));
  CHECK_THROWS_AS(with_lengths({0, 2, 6}, {0, 7, 7}), InvalidArgument);
  CHECK_THROWS_AS(with_lengths({0, 2, 5}, {0, 7, 8}), InvalidArgument);
  CHECK_THROWS_AS(flash_attention_forward(space, q3, k3, k3, options, o3, lse2), InvalidArgument);

  Kokkos::View<float*****, Kokkos::LayoutRight, Space::memory_space> const parts("parts", 3, 2, 5, 4, 16);
  CHECK_THROWS_AS(flash_attention_merge(space, parts, View4("lse", 3, 2, 5, 4), o, lse), InvalidArgument);

  FlashAttentionExtraGradients<Space, float> gradients;
  gradients.d_sink = Kokkos::View<float*, Space::memory_space>("d_sink", 4);
  CHECK_THROWS_AS(flash_attention_backward(space, q, k, k, o, lse, o, options, Extras(), q, k, k, gradients, workspace),
                  InvalidArgument);

  Kokkos::View<float****, Kokkos::LayoutLeft, Space::memory_space> const left("left", 2, 7, 2, 16);
  CHECK_THROWS_AS(forward(q, left, k, options, o, lse), InvalidArgument);
  View4 const short_dk("dk", 2, 6, 2, 16);
  CHECK_THROWS_AS(flash_attention_backward(space, q, k, k, o, lse, o, options, q, short_dk, k, workspace),
                  InvalidArgument);
  CHECK_THROWS_AS(flash_attention_backward(space, q, k, k, o, lse, k, options, q, k, k, workspace), InvalidArgument);
}

}  // namespace
