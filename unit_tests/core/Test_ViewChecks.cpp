// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "Sporos_ViewChecks.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Sporos::InvalidArgument;
namespace Impl = Sporos::Impl;

using Matrix = Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace>;
using Cube = Kokkos::View<float***, Kokkos::LayoutRight, Kokkos::HostSpace>;

TEST_CASE("extents() lists them", "[core][view_checks]") {
  CHECK(Impl::extents(Cube("x", 2, 3, 4)) == "(2, 3, 4)");
  CHECK(Impl::extents(Kokkos::View<int*, Kokkos::HostSpace>("x", 5)) == "(5)");
  CHECK(Impl::extents(Kokkos::View<int, Kokkos::HostSpace>("x")) == "()");
}

TEST_CASE("require_unit_stride lets rows be apart, but not their elements", "[core][view_checks]") {
  Matrix const x("x", 4, 6);
  CHECK_NOTHROW(Impl::require_unit_stride("x", x));
  CHECK_NOTHROW(Impl::require_unit_stride("x", Kokkos::subview(x, Kokkos::ALL, std::pair(1, 3))));
  // A column has the stride of rows.
  CHECK_THROWS_MATCHES(Impl::require_unit_stride("x", Kokkos::subview(x, Kokkos::ALL, 1)), InvalidArgument,
                       MessageMatches(ContainsSubstring("x is (4) with stride 6")));
  // One element has no neighbour.
  CHECK_NOTHROW(Impl::require_unit_stride("x", Kokkos::subview(x, std::pair(0, 1), 1)));
  CHECK_THROWS_AS(
      Impl::require_unit_stride("x", Kokkos::View<float**, Kokkos::LayoutLeft, Kokkos::HostSpace>("x", 2, 2)),
      InvalidArgument);
}

TEST_CASE("require_contiguous refuses gaps and column-major order", "[core][view_checks]") {
  Cube const x("x", 2, 3, 4);
  CHECK_NOTHROW(Impl::require_contiguous("x", x));
  CHECK_NOTHROW(Impl::require_contiguous("x", Kokkos::subview(x, 1, Kokkos::ALL, Kokkos::ALL)));
  CHECK_THROWS_MATCHES(Impl::require_contiguous("x", Kokkos::subview(x, Kokkos::ALL, std::pair(0, 2), Kokkos::ALL)),
                       InvalidArgument,
                       MessageMatches(ContainsSubstring("x is (2, 2, 4) with stride 12 in dimension 0") &&
                                      ContainsSubstring("would be 8")));
  CHECK_THROWS_AS(
      Impl::require_contiguous("x", Kokkos::View<float**, Kokkos::LayoutLeft, Kokkos::HostSpace>("x", 2, 2)),
      InvalidArgument);
}

TEST_CASE("require_same_extents names both Views", "[core][view_checks]") {
  CHECK_NOTHROW(Impl::require_same_extents("a", Matrix("a", 2, 3), "b", Matrix("b", 2, 3)));
  CHECK_THROWS_MATCHES(Impl::require_same_extents("a", Matrix("a", 2, 3), "b", Matrix("b", 2, 4)), InvalidArgument,
                       MessageMatches(ContainsSubstring("a is (2, 3), b is (2, 4)")));
}

TEST_CASE("require_rows and require_vector say what is needed", "[core][view_checks]") {
  CHECK_NOTHROW(Impl::require_rows("y", Matrix("y", 2, 3), 2, 3));
  CHECK_THROWS_MATCHES(Impl::require_rows("y", Matrix("y", 2, 3), 3, 2), InvalidArgument,
                       MessageMatches(ContainsSubstring("y is (2, 3); (3, 2) is needed")));
  CHECK_THROWS_AS(
      Impl::require_rows("y", Kokkos::View<float**, Kokkos::LayoutLeft, Kokkos::HostSpace>("y", 2, 2), 2, 2),
      InvalidArgument);
  CHECK_NOTHROW(Impl::require_rows_or_none("y", Matrix(), 2, 3));
  CHECK_THROWS_AS(Impl::require_rows_or_none("y", Matrix("y", 1, 3), 2, 3), InvalidArgument);

  Matrix const x("x", 4, 6);
  CHECK_NOTHROW(Impl::require_vector("row", Kokkos::subview(x, 1, Kokkos::ALL), 6));
  CHECK_THROWS_MATCHES(Impl::require_vector("row", Kokkos::subview(x, 1, Kokkos::ALL), 5), InvalidArgument,
                       MessageMatches(ContainsSubstring("row is (6); (5) is needed")));
  CHECK_THROWS_AS(Impl::require_vector("column", Kokkos::subview(x, Kokkos::ALL, 1), 4), InvalidArgument);
}

TEST_CASE("require_dropout takes probabilities from 0 to below 1", "[core][view_checks]") {
  for (double p : {0.0, 0.5, 0.999}) CHECK_NOTHROW(Impl::require_dropout({.probability = p}));
  for (double p : {-0.1, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_AS(Impl::require_dropout({.probability = p}), InvalidArgument);
}

TEST_CASE("A host space reaches host memory", "[core][view_checks]") {
  STATIC_REQUIRE(Impl::is_accessible<Kokkos::DefaultHostExecutionSpace, Matrix>);
}

}  // namespace
