// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <tuple>

#include "RowTesting.hpp"
#include "Sporos_Fp8.hpp"

namespace {

using namespace Sporos::Testing;
using Sporos::bfloat16;
using Sporos::float8_e4m3;
using Sporos::float8_e4m3fnuz;
using Sporos::float8_e5m2;
using Sporos::float8_e5m2fnuz;
using Scalar = Kokkos::View<float, Space>;

Scalar scalar(float value) {
  Scalar const view("scalar");
  Kokkos::deep_copy(view, value);
  return view;
}

float value_of(Scalar const& view) {
  Kokkos::fence("value_of");
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view)();
}

#define ALL_COMBINATIONS                                                                                              \
  (std::tuple<float, float8_e4m3>), (std::tuple<float, float8_e5m2>), (std::tuple<float, float8_e4m3fnuz>),           \
      (std::tuple<float, float8_e5m2fnuz>), (std::tuple<bfloat16, float8_e4m3>), (std::tuple<bfloat16, float8_e5m2>), \
      (std::tuple<bfloat16, float8_e4m3fnuz>), (std::tuple<bfloat16, float8_e5m2fnuz>)

// The conversions themselves are tested exhaustively, so here every element must equal theirs.
TEMPLATE_TEST_CASE("fp8_quantize scales, converts and finds amax; fp8_dequantize goes back", "[kernels][fp8]",
                   ALL_COMBINATIONS) {
  using T = std::tuple_element_t<0, TestType>;
  using Fp8 = std::tuple_element_t<1, TestType>;
  for (auto [rows, columns] : {std::pair{1, 1}, std::pair{37, 1031}, std::pair{0, 4}}) {
    CAPTURE(rows, columns);
    std::size_t const m = std::size_t(rows), n = std::size_t(columns);
    Values const x = random_values<T>(m, n, 1, 0, 700);  // some saturate
    float const factor = 0.71f;
    auto const y = poisoned<Fp8>(m, n);
    auto const amax = scalar(1), scale = scalar(factor);
    Sporos::fp8_quantize(Space(), upload<T>(x), scale, y, amax);

    Values expected(m, n), back(m, n);
    float largest = 1;
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      float const code(Sporos::convert<Fp8>(float(x[i]) * factor, Sporos::Overflow::saturate));
      expected[i] = code;
      back[i] = float(to_storage<T>(code / factor));
      largest = std::max(largest, std::abs(float(x[i])));
    }
    require_identical("y", download(y), expected);
    CHECK(value_of(amax) == largest);

    auto const x_back = poisoned<T>(m, n);
    Sporos::fp8_dequantize(Space(), y, scale, x_back);
    require_identical("x", download(x_back), back);
  }
}

TEST_CASE("What is not finite does not reach amax, and a NaN stays one", "[kernels][fp8]") {
  using Limits = std::numeric_limits<long double>;
  Values x(2, 3, 5);
  x(0, 0) = Limits::infinity();
  x(0, 2) = -Limits::infinity();
  x(1, 1) = Limits::quiet_NaN();
  x(1, 2) = -7;
  auto const amax = scalar(0);
  auto const y = poisoned<float8_e4m3>(2, 3);
  Sporos::fp8_quantize(Space(), upload<float>(x), scalar(1), y, amax);
  CHECK(value_of(amax) == 7);
  Values const values = download(y);
  CHECK(values(0, 0) == 448);
  CHECK(values(0, 2) == -448);
  CHECK(std::isnan(values(1, 1)));
  CHECK(values(1, 2) == -7);

  auto const y_fnuz = poisoned<float8_e4m3fnuz>(2, 3);
  Sporos::fp8_quantize(Space(), upload<float>(x), scalar(1), y_fnuz, amax);
  CHECK(std::isnan(download(y_fnuz)(0, 0)));
}

TEST_CASE("amax gathers over calls", "[kernels][fp8]") {
  auto const amax = scalar(0);
  auto const y = poisoned<float8_e5m2>(4, 5);
  for (float largest : {3.0f, 8.0f, 2.0f})
    Sporos::fp8_quantize(Space(), upload<float>(Values(4, 5, -largest)), scalar(1), y, amax);
  CHECK(value_of(amax) == 8);
}

template <class Fp8>
float updated_scale(float amax, float scale) {
  auto const view = scalar(scale);
  Sporos::fp8_update_scale<Fp8>(Space(), scalar(amax), view);
  return value_of(view);
}

TEST_CASE("fp8_update_scale takes amax to the largest value", "[kernels][fp8]") {
  CHECK(updated_scale<float8_e4m3>(2, 1) == 224);
  CHECK(updated_scale<float8_e5m2>(2, 1) == 28672);
  CHECK(updated_scale<float8_e4m3fnuz>(2, 1) == 120);
  CHECK(updated_scale<float8_e5m2fnuz>(2, 1) == 28672);
}

TEST_CASE("fp8_update_scale keeps the scale where amax tells nothing", "[kernels][fp8]") {
  for (float amax : {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    CHECK(updated_scale<float8_e4m3>(amax, 3) == 3);
}

TEST_CASE("A scale and its reciprocal are normal numbers", "[kernels][fp8]") {
  for (float amax : {1e-45f, 1e-40f, 1e-36f, 1.0f, std::numeric_limits<float>::max()}) {
    CAPTURE(amax);
    for (float scale : {updated_scale<float8_e4m3>(amax, 1), updated_scale<float8_e5m2>(amax, 1),
                        updated_scale<float8_e4m3fnuz>(amax, 1)}) {
      CHECK(std::isnormal(scale));
      CHECK(std::isnormal(1 / scale));
    }
  }
}

TEST_CASE("fp8_quantize refuses extents that differ, and says which", "[kernels][fp8]") {
  CHECK_THROWS_MATCHES(
      Sporos::fp8_quantize(Space(), poisoned<float>(3, 4), scalar(1), poisoned<float8_e4m3>(3, 5), scalar(0)),
      Sporos::InvalidArgument,
      Catch::Matchers::MessageMatches(Catch::Matchers::ContainsSubstring("y is (3, 5); (3, 4) is needed")));
}

}  // namespace
