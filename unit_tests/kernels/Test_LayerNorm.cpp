// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "NormTesting.hpp"

namespace {

using namespace Sporos::Testing;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Sporos::bfloat16;
using Sporos::Dropout;

TEMPLATE_TEST_CASE("LayerNorm is as exact as plain loops", "[kernels][layernorm]", double, float, bfloat16) {
  test_norm_values<TestType, true>(0, 1);
}

// Here the difference of mean square and squared mean would lose everything.
TEMPLATE_TEST_CASE("LayerNorm is exact where the mean is large", "[kernels][layernorm]", double, float) {
  test_norm_values<TestType, true>(1000, 0.01);
}

// Its gradient is exactly 0, of which rounding leaves an ulp of gamma dy, times rstd.
TEMPLATE_TEST_CASE("LayerNorm of a single column is beta", "[kernels][layernorm]", double, float) {
  using C = TestType;
  Values const dy = random_values<C>(6, 1, 5);
  auto const gamma = upload_vector<C>(Values(1, 1, 3)), beta = upload_vector<C>(Values(1, 1, 0.5));
  Norm<C, true> const forward(upload<C>(random_values<C>(6, 1, 1)), Matrix<C>(), gamma, beta, Dropout());
  require_identical("y", download(forward.y), Values(6, 1, 0.5));
  auto const dx = poisoned<C>(6, 1);
  auto const dgamma = upload_vector<C>(Values(1, 1)), dbeta = upload_vector<C>(Values(1, 1));
  norm_backward(upload<C>(dy), Matrix<C>(), forward, gamma, Dropout(), dx, dx, dgamma, dbeta);
  Values const gradient = download(dx);
  for (std::size_t r = 0; r < 6; ++r)
    CHECK(std::abs(gradient[r]) <= std::numeric_limits<C>::epsilon() * 3 * std::abs(dy[r]) / std::sqrt(epsilon));
  CHECK(download(dgamma)[0] == 0);
}

TEST_CASE("LayerNorm's gradients agree with central differences", "[kernels][layernorm]") {
  test_norm_gradient<true>(Dropout());
  test_norm_gradient<true>(Dropout{.probability = 0.4, .seed = 3, .stream = 4});
}

TEMPLATE_TEST_CASE("LayerNorm drops by the index of the element", "[kernels][layernorm]", double, float, bfloat16) {
  test_norm_dropout<TestType, true>();
}

TEMPLATE_TEST_CASE("LayerNorm works in place and repeats its bits", "[kernels][layernorm]", double, float, bfloat16) {
  test_norm_aliases<TestType, true>();
}

TEST_CASE("LayerNorm refuses what does not fit, and says what", "[kernels][layernorm]") {
  auto const x = poisoned<float>(3, 4), wide = poisoned<float>(3, 5);
  auto const four = poisoned_vector<float>(4), three = poisoned_vector<float>(3);
  auto const call = [&](auto const& residual, auto const& gamma, auto const& y, auto const& mean, double p) {
    Sporos::residual_dropout_layernorm(Space(), x, residual, gamma, four, Dropout{.probability = p}, epsilon, x, y,
                                       mean, three);
  };
  CHECK_NOTHROW(call(x, four, x, three, 0));
  CHECK_THROWS_MATCHES(call(wide, four, x, three, 0), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("residual is (3, 5); (3, 4) is needed")));
  CHECK_THROWS_MATCHES(call(x, three, x, three, 0), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("gamma is (3); (4) is needed")));
  CHECK_THROWS_MATCHES(call(x, four, wide, three, 0), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("y is (3, 5); (3, 4) is needed")));
  CHECK_THROWS_MATCHES(call(x, four, x, four, 0), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("mean is (4); (3) is needed")));
  CHECK_THROWS_MATCHES(call(x, four, x, three, 1), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("the dropout probability is 1")));
  Kokkos::View<float**, Kokkos::LayoutLeft, Space> const columns_first("columns first", 3, 4);
  CHECK_THROWS_MATCHES(call(x, four, columns_first, three, 0), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("y is (3, 4) with stride 3")));
}

}  // namespace
