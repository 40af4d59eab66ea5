// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "Sporos_Gelu.hpp"
#include "Sporos_StorageTypes.hpp"
#include "impl/Sporos_Gelu_Host.hpp"
#include "impl/Sporos_HostLevel.hpp"

namespace Sporos {
SPOROS_DECLARE_HOST_KERNELS(Impl::GeluHostKernels, gelu_host_kernels)
}

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::bfloat16;
using Sporos::ComputeType;
using Space = Kokkos::DefaultExecutionSpace;

/// The formula as the documentation has it
template <class Number>
Number gelu_plain(Number x) {
  Number const u = Number(std::sqrt(2 / M_PI)) * (x + Number(0.044715) * x * x * x);
  return Number(0.5) * x * (1 + std::tanh(u));
}

/// Without the cancellation of 1 + tanh
template <class Number>
Number gelu_exact(Number x) {
  Number const u = std::sqrt(2 / Number(M_PIl)) * (x + Number(0.044715L) * x * x * x);
  return x / (1 + std::exp(-2 * u));
}

template <class Number>
Number gelu_derivative_exact(Number x) {
  Number const factor = std::sqrt(2 / Number(M_PIl));
  Number const e = std::exp(-2 * factor * (x + Number(0.044715L) * x * x * x));
  Number const s = 1 / (1 + e);
  return s + x * s * (1 - s) * 2 * factor * (1 + 3 * Number(0.044715L) * x * x);
}

template <class T>
using ExactOf = std::conditional_t<std::is_same_v<T, double>, long double, double>;

/// -30 ... 30, dense around 0, and numbers so large that their cube overflows
template <class T>
std::vector<T> arguments() {
  std::vector<T> x;
  for (int i = -3000; i <= 3000; ++i) x.push_back(T(ComputeType<T>(0.01 * i)));
  for (int e = -20; e < 7; ++e)
    for (double sign : {-1., 1.}) x.push_back(T(ComputeType<T>(sign * std::ldexp(1.37, e))));
  x.push_back(T(ComputeType<T>(1e30)));
  x.push_back(T(ComputeType<T>(-1e30)));
  return x;
}

/// Errors are relative to |x|, the size of what the result is made from. The tolerance is twice the error of the plain
/// formula in the same precision, rounded to T.
template <class T>
void check(std::vector<T> const& x, std::vector<T> const& dy, std::vector<T> const& y, std::vector<T> const& dx) {
  using C = ComputeType<T>;
  using E = ExactOf<T>;
  E plain_error = 0;
  std::vector<E> error_y, error_dx;
  for (std::size_t i = 0; i < x.size(); ++i) {
    E const value = E(double(x[i])), size = std::abs(value) + std::numeric_limits<C>::min();
    E const exact = gelu_exact(value);
    if (std::abs(value) < 1e9)
      plain_error = std::max(plain_error, std::abs(E(double(T(gelu_plain(C(x[i]))))) - exact) / size);
    error_y.push_back(std::abs(E(double(y[i])) - exact) / size);
    E const slope = std::abs(value) < 1e9 ? gelu_derivative_exact(value) : E(value > 0 ? 1 : 0);
    error_dx.push_back(std::abs(E(double(dx[i])) - E(double(dy[i])) * slope));
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(double(x[i]), double(y[i]), double(dx[i]), double(dy[i]), double(plain_error));
    if (!(error_y[i] <= 2 * plain_error)) FAIL("gelu is wrong");
    // Three terms of size 1 instead of one
    if (!(error_dx[i] <= 6 * plain_error * std::abs(E(double(dy[i]))))) FAIL("its derivative is wrong");
  }
}

template <class T>
std::vector<T> upstream(std::size_t count) {
  std::vector<T> dy;
  for (std::size_t i = 0; i < count; ++i) dy.push_back(T(ComputeType<T>(0.5 + double(i % 7) / 4)));
  return dy;
}

TEMPLATE_TEST_CASE("Every host level has gelu and its derivative", "[kernels][gelu]", double, float, bfloat16) {
  auto const x = arguments<TestType>();
  auto const dy = upstream<TestType>(x.size());
  TestType const nan(std::numeric_limits<ComputeType<TestType>>::quiet_NaN());
  for (auto level : Sporos::Impl::supported_host_levels()) {
    CAPTURE(name_of(level));
    Sporos::Impl::GeluHostKernel<TestType> const kernel = Sporos::Impl::gelu_host_kernels(level);
    std::vector<TestType> y(x.size(), nan), dx(x.size(), nan);
    kernel.forward(x.data(), y.data(), std::int64_t(x.size()));
    kernel.backward(dy.data(), x.data(), dx.data(), std::int64_t(x.size()));
    check(x, dy, y, dx);
  }
}

// One row, rows that no vector length divides, more than one piece of work a row, gaps between rows.
TEMPLATE_TEST_CASE("gelu and gelu_backward on Views", "[kernels][gelu]", double, float, bfloat16) {
  using View = Kokkos::View<TestType**, Kokkos::LayoutRight, Space>;
  TestType const nan(std::numeric_limits<ComputeType<TestType>>::quiet_NaN());
  auto const values = arguments<TestType>();
  Space const space;
  for (auto [rows, columns, gap] : {std::tuple{1, 1, 0}, std::tuple{5, 131, 0}, std::tuple{3, 20001, 0},
                                    std::tuple{5, 131, 6}, std::tuple{2, 9000, 1}, std::tuple{0, 4, 0}}) {
    CAPTURE(rows, columns, gap);
    View const all_x("x", rows, columns + gap), all_y("y", rows, columns + gap), all_dy("dy", rows, columns + gap),
        all_dx("dx", rows, columns + gap);
    auto const host_x = Kokkos::create_mirror_view(all_x);
    auto const host_dy = Kokkos::create_mirror_view(all_dy);
    std::vector<TestType> x, y, dx;
    auto const dy = upstream<TestType>(std::size_t(rows) * columns);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns + gap; ++c) {
        std::size_t const i = std::size_t(r) * columns + c;
        host_x(r, c) = c < columns ? values[i * 31 % values.size()] : nan;
        host_dy(r, c) = c < columns ? dy[i] : nan;
        if (c < columns) x.push_back(host_x(r, c));
      }
    Kokkos::deep_copy(all_x, host_x);
    Kokkos::deep_copy(all_dy, host_dy);
    Kokkos::deep_copy(all_y, nan);
    Kokkos::deep_copy(all_dx, nan);
    auto const inner = [&, columns = columns](View const& all) {
      return Kokkos::subview(all, Kokkos::ALL, Kokkos::pair(0, columns));
    };
    Sporos::gelu(space, inner(all_x), inner(all_y));
    Sporos::gelu_backward(space, inner(all_dy), inner(all_x), inner(all_dx));
    Sporos::gelu_backward(space, inner(all_dy), inner(all_x), inner(all_dy));  // in place
    space.fence();
    auto const host_y = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), all_y);
    auto const host_dx = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), all_dx);
    auto const host_place = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), all_dy);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns + gap; ++c) {
        if (c < columns) {
          y.push_back(host_y(r, c));
          dx.push_back(host_dx(r, c));
          if (double(host_place(r, c)) != double(host_dx(r, c))) FAIL("in place differs");
        } else {
          REQUIRE(std::isnan(double(host_y(r, c))));
          REQUIRE(std::isnan(double(host_dx(r, c))));
        }
      }
    if (rows > 1) check(x, dy, y, dx);
    if (rows == 1) REQUIRE(std::isfinite(double(y[0])));
  }
}

TEST_CASE("gelu_backward equals central differences in float64", "[kernels][gelu]") {
  using View = Kokkos::View<double**, Kokkos::LayoutRight, Space>;
  constexpr int columns = 401;
  double const step = 1e-5;
  Space const space;
  View const x("x", 1, columns), low("low", 1, columns), high("high", 1, columns), dy("dy", 1, columns),
      dx("dx", 1, columns);
  auto const host_x = Kokkos::create_mirror_view(x);
  for (int c = 0; c < columns; ++c) host_x(0, c) = 0.02 * c - 4;
  auto const shifted = [&](View const& to, double by) {
    auto const host = Kokkos::create_mirror_view(to);
    for (int c = 0; c < columns; ++c) host(0, c) = host_x(0, c) + by;
    Kokkos::deep_copy(to, host);
    Sporos::gelu(space, to, to);
    space.fence();
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), to);
  };
  Kokkos::deep_copy(x, host_x);
  Kokkos::deep_copy(dy, 1.0);
  Kokkos::deep_copy(dx, std::numeric_limits<double>::quiet_NaN());
  auto const below = shifted(low, -step), above = shifted(high, step);
  Sporos::gelu_backward(space, dy, x, dx);
  space.fence();
  auto const host_dx = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), dx);
  for (int c = 0; c < columns; ++c)
    REQUIRE(std::abs(host_dx(0, c) - (above(0, c) - below(0, c)) / (2 * step)) <=
            1e-6 * std::max(1.0, std::abs(host_dx(0, c))));
}

TEMPLATE_TEST_CASE("gelu passes a NaN on", "[kernels][gelu]", double, float, bfloat16) {
  using C = ComputeType<TestType>;
  Kokkos::View<TestType**, Kokkos::LayoutRight, Space> const x("x", 1, 40), y("y", 1, 40), dx("dx", 1, 40);
  Kokkos::deep_copy(x, TestType(C(1)));
  Kokkos::deep_copy(Kokkos::subview(x, 0, 21), TestType(std::numeric_limits<C>::quiet_NaN()));
  Space const space;
  Sporos::gelu(space, x, y);
  Sporos::gelu_backward(space, x, x, dx);
  space.fence();
  auto const host_y = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), y);
  auto const host_dx = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), dx);
  for (int c = 0; c < 40; ++c) {
    REQUIRE(std::isnan(double(host_y(0, c))) == (c == 21));
    REQUIRE(std::isnan(double(host_dx(0, c))) == (c == 21));
  }
}

TEST_CASE("gelu refuses extents that differ, and says which", "[kernels][gelu]") {
  using View = Kokkos::View<float**, Kokkos::LayoutRight, Space>;
  View const x("x", 3, 4), y("y", 3, 5);
  REQUIRE_THROWS_WITH(Sporos::gelu(Space(), x, y), ContainsSubstring("x is (3, 4), y is (3, 5)"));
  REQUIRE_THROWS_WITH(Sporos::gelu_backward(Space(), y, x, x), ContainsSubstring("dy is (3, 5), x is (3, 4)"));
}

}  // namespace
