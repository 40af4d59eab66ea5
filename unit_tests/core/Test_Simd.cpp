// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "tile/Sporos_Simd.hpp"

namespace {

using Sporos::bfloat16;
using Sporos::lanes;
using Sporos::Vector;

/// f on every element of x, vector by vector
template <class T, class F>
std::vector<T> apply(F const& f, std::vector<T> x) {
  while (x.size() % lanes<T>) x.push_back(T(0));
  for (std::size_t i = 0; i < x.size(); i += lanes<T>) Sporos::store(&x[i], f(Sporos::load(&x[i])));
  return x;
}

// Errors in units of the last place, which is a relative error of up to epsilon.
template <class T, class Exact, class F>
double largest_error(F const& f, double from, double to) {
  std::vector<T> x;
  for (int i = 0; i <= 200000; ++i) x.push_back(T(from + (to - from) * i / 200000));
  auto const y = apply<T>(f, x);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Exact const exact = std::exp2(Exact(x[i]));
    worst = std::max(worst, double(std::abs(Exact(y[i]) - exact) / exact) / std::numeric_limits<T>::epsilon());
  }
  return worst;
}

TEST_CASE("exp2 is as exact as its documentation says", "[core][simd]") {
  REQUIRE(largest_error<float, double>([](auto x) { return Sporos::exp2(x); }, -126, 127) <= 1);
  REQUIRE(largest_error<double, long double>([](auto x) { return Sporos::exp2(x); }, -1022, 1023) <= 1.5);
  // Of degree 4 the polynomial dominates, 2.6e-6.
  REQUIRE(largest_error<float, double>([](auto x) { return Sporos::exp2<4>(x); }, -126, 127) * 0x1p-23 <= 3e-6);
}

TEMPLATE_TEST_CASE("exp2 of what is no usual number", "[core][simd]", float, double) {
  using Limits = std::numeric_limits<TestType>;
  int const largest = Limits::max_exponent;
  auto const y = apply<TestType>(
      [](auto x) { return Sporos::exp2(x); },
      {-Limits::infinity(), TestType(-largest), TestType(-10 * largest), Limits::infinity(), TestType(largest),
       Limits::max(), Limits::quiet_NaN(), TestType(0), TestType(-0.0), TestType(1)});
  for (int i : {0, 1, 2}) REQUIRE(y[std::size_t(i)] == 0);
  for (int i : {3, 4, 5}) REQUIRE(y[std::size_t(i)] == Limits::infinity());
  REQUIRE(std::isnan(y[6]));
  REQUIRE(y[7] == 1);
  REQUIRE(y[8] == 1);
  REQUIRE(y[9] == 2);
}

// Every bfloat16, the ties above it, and their neighbours: where rounding decides.
TEST_CASE("Vectors are rounded to bfloat16 as single numbers are", "[core][simd]") {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000; ++high)
    for (std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(Sporos::bits_as<float>(high << 16 | low));
  while (x.size() % lanes<float>) x.push_back(0);
  std::vector<bfloat16> y(x.size());
  for (std::size_t i = 0; i < x.size(); i += lanes<float>) Sporos::store_as(&y[i], Sporos::load(&x[i]));
  for (std::size_t i = 0; i < x.size(); ++i)
    if (y[i].bits != bfloat16(x[i]).bits) {
      CAPTURE(i, x[i], y[i].bits, bfloat16(x[i]).bits);
      FAIL("rounded differently");
    }
}

TEST_CASE("Vectors of bfloat16 are widened exactly", "[core][simd]") {
  for (std::uint32_t first = 0; first < 0x10000; first += lanes<float>) {
    bfloat16 x[lanes<float>];
    for (int i = 0; i < lanes<float>; ++i) x[i] = bfloat16::from_bits(std::uint16_t(first + i));
    Vector<float> const y = Sporos::load_as<float>(x);
    for (int i = 0; i < lanes<float>; ++i)
      if (Sporos::bits_as<std::uint32_t>(float(y[i])) >> 16 != first + i) FAIL("widened " << first + i << " wrongly");
  }
}

TEMPLATE_TEST_CASE("transpose turns rows into columns", "[core][simd]", std::uint32_t, std::uint64_t) {
  constexpr int n = lanes<TestType>;
  Vector<TestType> rows[n];
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < n; ++c) rows[r][c] = TestType(100 * r + c);
  Sporos::transpose<TestType>(rows);
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < n; ++c) REQUIRE(rows[r][c] == TestType(100 * c + r));
}

TEMPLATE_TEST_CASE("A part of a vector is loaded and stored without its neighbours", "[core][simd]", float, double,
                   bfloat16) {
  using C = Sporos::ComputeType<TestType>;
  for (int count = 0; count < lanes<C>; ++count) {
    std::vector<TestType> memory(std::size_t(count) + 1, TestType(C(7)));  // the sanitizer watches its end
    for (int i = 0; i < count; ++i) memory[std::size_t(i)] = TestType(C(i + 1));
    Vector<C> const v = Sporos::load_first<C>(memory.data(), count);
    for (int i = 0; i < lanes<C>; ++i) REQUIRE(v[i] == (i < count ? C(i + 1) : C(0)));
    Sporos::store_first(memory.data(), v + C(1), count);
    for (int i = 0; i < count; ++i) REQUIRE(C(memory[std::size_t(i)]) == C(i + 2));
    REQUIRE(C(memory.back()) == C(7));
  }
}

TEST_CASE("The largest and smallest pass a NaN from the second operand", "[core][simd]") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  Vector<float> const one = Sporos::splat(1.0f);
  Vector<float> const missing = Sporos::splat(nan);
  REQUIRE(std::isnan(Sporos::max(one, missing)[0]));
  REQUIRE(std::isnan(Sporos::min(one, missing)[0]));
  REQUIRE(Sporos::max(missing, one)[0] == 1);
  REQUIRE(Sporos::max(one, Sporos::splat(2.0f))[0] == 2);
  REQUIRE(Sporos::min(one, Sporos::splat(2.0f))[0] == 1);
}

TEST_CASE("The number of each lane, and the sum over lanes", "[core][simd]") {
  Vector<float> const v = Sporos::lane_index<float>();
  for (int i = 0; i < lanes<float>; ++i) REQUIRE(v[i] == float(i));
  REQUIRE(Sporos::sum_of_lanes<float>(v) == lanes<float> * (lanes<float> - 1) / 2);
}

}  // namespace
