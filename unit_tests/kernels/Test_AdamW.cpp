// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "RowTesting.hpp"
#include "Sporos_AdamW.hpp"

namespace {

using namespace Sporos::Testing;
using Sporos::AdamWOptions;
using Sporos::bfloat16;
using Sporos::ComputeType;

/// One step of the formula with arithmetic in C
template <class C>
struct Plain {
  Values master, first_moment, second_moment;

  void step(AdamWOptions const& options, double gradient_scale, Values const& gradient) {
    C const beta1 = C(options.beta1), beta2 = C(options.beta2);
    C const correction1 = 1 - std::pow(C(options.beta1), C(options.step));
    C const correction2 = 1 - std::pow(C(options.beta2), C(options.step));
    for (std::size_t i = 0; i < gradient.data.size(); ++i) {
      C const g = C(gradient[i]) * C(gradient_scale);
      C const m = beta1 * C(first_moment[i]) + (1 - beta1) * g;
      C const v = beta2 * C(second_moment[i]) + (1 - beta2) * g * g;
      C const p = C(master[i]);
      first_moment[i] = m;
      second_moment[i] = v;
      master[i] = p - C(options.learning_rate) * (m / correction1 / (std::sqrt(v / correction2) + C(options.epsilon)) +
                                                  C(options.weight_decay) * p);
    }
  }
};

TEMPLATE_TEST_CASE("AdamW follows its formula over several steps", "[kernels][adamw]", double, float, bfloat16) {
  using C = ComputeType<TestType>;
  constexpr int steps = 5;
  constexpr std::size_t most = 10007;
  auto const options = [](int step) {
    return AdamWOptions{.learning_rate = 0.01 * step, .beta1 = 0.8, .beta2 = 0.97, .weight_decay = 0.3, .step = step};
  };
  auto const gradient = [](int step) { return random_values<C>(1, most, std::uint64_t(10 + step), 0, 5); };
  Values const start = random_values<C>(1, most, 1);
  Plain<C> plain{start, Values(1, most), Values(1, most)};
  Plain<long double> exact{start, Values(1, most), Values(1, most)};
  for (int step = 1; step <= steps; ++step) {
    plain.step(options(step), 0.7, gradient(step));
    exact.step(options(step), 0.7, gradient(step));
  }

  for (std::size_t size : {std::size_t(1), std::size_t(4096), most}) {
    CAPTURE(size);
    auto const part = [size](Values const& values) {
      Values first(1, size);
      std::copy_n(values.data.begin(), size, first.data.begin());
      return first;
    };
    auto const master = upload_vector<C>(part(start));
    auto const first_moment = upload_vector<C>(Values(1, size)), second_moment = upload_vector<C>(Values(1, size));
    auto const parameters = poisoned_vector<TestType>(size);
    for (int step = 1; step <= steps; ++step)
      Sporos::adamw(Space(), options(step), 0.7, upload_vector<C>(part(gradient(step))), master, first_moment,
                    second_moment, parameters);
    auto const check = [&](char const* name, Vector<C> const& actual, Values const& plain_values,
                           Values const& exact_values) {
      require_close<C>(name, download(actual), part(exact_values), largest_error(plain_values, exact_values));
    };
    check("master", master, plain.master, exact.master);
    check("first_moment", first_moment, plain.first_moment, exact.first_moment);
    check("second_moment", second_moment, plain.second_moment, exact.second_moment);
    Values rounded = download(master);
    for (auto& x : rounded.data) x = C(to_storage<TestType>(C(x)));
    require_identical("parameters", download(parameters), rounded);
  }
}

// After the first step the corrected moments are g and g², so the step is the learning rate, whatever g.
TEST_CASE("AdamW's first step is the learning rate, and decay is apart from it", "[kernels][adamw]") {
  auto const master = upload_vector<double>(Values(1, 2, 10));
  auto const m = upload_vector<double>(Values(1, 2)), v = upload_vector<double>(Values(1, 2));
  Values gradient(1, 2);
  gradient[0] = 1e3;
  gradient[1] = -1e-3;
  AdamWOptions const options{.learning_rate = 0.5, .weight_decay = 0.2};
  Sporos::adamw(Space(), options, 1, upload_vector<double>(gradient), master, m, v, master);
  Values const result = download(master);
  CHECK(std::abs(double(result[0]) - (10 - 0.5 - 0.5 * 0.2 * 10)) < 1e-9);
  CHECK(std::abs(double(result[1]) - (10 + 0.5 - 0.5 * 0.2 * 10)) < 1e-5);  // epsilon / |g|
}

// 1000 steps of -1e-3 are lost if only the bfloat16 parameter is kept.
TEST_CASE("Steps smaller than half an ulp of bfloat16 add up in the master", "[kernels][adamw]") {
  auto const master = upload_vector<float>(Values(1, 1, 1));
  auto const m = upload_vector<float>(Values(1, 1)), v = upload_vector<float>(Values(1, 1));
  auto const parameters = poisoned_vector<bfloat16>(1);
  auto const gradient = upload_vector<float>(Values(1, 1, 1));
  for (int step = 1; step <= 100; ++step)
    Sporos::adamw(Space(), {.learning_rate = 1e-3, .weight_decay = 0, .step = step}, 1, gradient, master, m, v,
                  parameters);
  CHECK(std::abs(double(download(parameters)[0]) - 0.9) < 0.005);
}

TEST_CASE("AdamW refuses what does not fit, and says what", "[kernels][adamw]") {
  using Catch::Matchers::ContainsSubstring;
  using Catch::Matchers::MessageMatches;
  auto const a = upload_vector<float>(Values(1, 3)), b = upload_vector<float>(Values(1, 4));
  auto const call = [&](AdamWOptions const& options, auto const& gradient) {
    Sporos::adamw(Space(), options, 1, gradient, a, a, a, a);
  };
  CHECK_THROWS_MATCHES(call({.learning_rate = 1}, b), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("gradient is (4); (3) is needed")));
  CHECK_THROWS_MATCHES(call({.learning_rate = 1, .step = 0}, a), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("the step is 0")));
  CHECK_THROWS_MATCHES(call({.learning_rate = 1, .beta2 = 1}, a), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("beta2 is 1")));
  CHECK_THROWS_MATCHES(call({.learning_rate = 1, .epsilon = 0}, a), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("epsilon is 0")));
}

struct Sums {
  double sum, squared_norm;
};

template <class T>
Sums sums(Values const& values) {
  Space const space;
  Sporos::Workspace<Space> workspace(space);
  Kokkos::View<double, Space> const sum("sum"), norm("norm");
  auto const x = upload_vector<T>(values);
  Sporos::sum(space, x, sum, workspace);
  Sporos::squared_norm(space, x, norm, workspace);
  space.fence();
  return {Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), sum)(),
          Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), norm)()};
}

TEMPLATE_TEST_CASE("sum and squared_norm add in double", "[kernels][adamw]", double, float) {
  for (std::size_t size : {0, 1, 15, 4095, 4096, 4097, 300001}) {
    CAPTURE(size);
    Values const x = random_values<TestType>(1, size, 1, 0.5);
    double plain_sum = 0, plain_norm = 0;
    long double exact_sum = 0, exact_norm = 0;
    for (long double v : x.data) {
      plain_sum += double(v);
      plain_norm += double(v) * double(v);
      exact_sum += v;
      exact_norm += v * v;
    }
    Sums const result = sums<TestType>(x);
    double const half_ulp = 0x1p-53 * double(exact_sum + exact_norm);
    CHECK(std::abs(result.sum - double(exact_sum)) <= 2 * std::abs(plain_sum - double(exact_sum)) + half_ulp);
    CHECK(std::abs(result.squared_norm - double(exact_norm)) <=
          2 * std::abs(plain_norm - double(exact_norm)) + half_ulp);
    Sums const again = sums<TestType>(x);
    CHECK(result.sum == again.sum);
    CHECK(result.squared_norm == again.squared_norm);
  }
}

TEMPLATE_TEST_CASE("squared_norms are those of the blocks, wherever a block lies", "[kernels][adamw]", double, float) {
  std::size_t const block = 64, blocks = 5;
  Values const x = random_values<TestType>(1, block * blocks - 9, 1, 0.5);
  Space const space;
  auto const values = upload_vector<TestType>(x);
  auto const norms_of = [&](std::size_t first_block) {
    std::size_t const begin = first_block * block;
    Kokkos::View<double*, Space> const norms("norms", blocks - first_block);
    Kokkos::deep_copy(norms, std::numeric_limits<double>::quiet_NaN());
    Sporos::squared_norms(space, Kokkos::subview(values, std::pair(begin, values.extent(0))), std::int64_t(block),
                          norms);
    space.fence();
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), norms);
  };
  auto const all = norms_of(0);
  double error = 0, plain_error = 0, half_ulp = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    double plain = 0;
    long double exact = 0;
    for (std::size_t i = b * block; i < std::min((b + 1) * block, x.data.size()); ++i) {
      plain += double(x.data[i]) * double(x.data[i]);
      exact += x.data[i] * x.data[i];
    }
    error = std::max(error, std::abs(all(b) - double(exact)));
    plain_error = std::max(plain_error, std::abs(plain - double(exact)));
    half_ulp = std::max(half_ulp, 0x1p-53 * double(exact));
  }
  CHECK(error <= 2 * plain_error + half_ulp);
  for (std::size_t first = 1; first < blocks; ++first) {
    auto const some = norms_of(first);
    for (std::size_t b = first; b < blocks; ++b) CHECK(some(b - first) == all(b));
  }
  Kokkos::View<double*, Space> const few("few", blocks - 1);
  CHECK_THROWS_AS(Sporos::squared_norms(space, values, std::int64_t(block), few), Sporos::InvalidArgument);
  CHECK_THROWS_AS(Sporos::squared_norms(space, values, 0, few), Sporos::InvalidArgument);
}

TEST_CASE("squared_norm neither overflows nor hides what is not finite", "[kernels][adamw]") {
  CHECK(std::abs(sums<float>(Values(1, 10000, 1e20L)).squared_norm / 1e44 - 1) < 1e-6);  // 1e40 overflows a float
  for (std::size_t position : {std::size_t(0), std::size_t(5000), std::size_t(9999)}) {
    Values x(1, 10000, 1);
    x[position] = std::numeric_limits<long double>::quiet_NaN();
    CHECK(std::isnan(sums<float>(x).squared_norm));
    CHECK(std::isnan(sums<float>(x).sum));
    x[position] = -std::numeric_limits<long double>::infinity();
    CHECK(std::isinf(sums<float>(x).squared_norm));
    CHECK(std::isinf(sums<float>(x).sum));
  }
}

TEST_CASE("clip_coefficient clips the norm", "[kernels][adamw]") {
  CHECK(Sporos::clip_coefficient(0, 1) == 1);
  CHECK(Sporos::clip_coefficient(0.25, 1) == 1);
  CHECK(std::abs(Sporos::clip_coefficient(100, 1) - 1 / (10 + 1e-6)) < 1e-15);
  CHECK(Sporos::clip_coefficient(std::numeric_limits<double>::infinity(), 1) == 0);
  CHECK(Sporos::clip_coefficient(std::numeric_limits<double>::quiet_NaN(), 1) == 0);
}

}  // namespace
