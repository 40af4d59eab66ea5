// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "NormTesting.hpp"

namespace {

using namespace Sporos::Testing;
using Sporos::bfloat16;
using Sporos::Dropout;

TEMPLATE_TEST_CASE("RMSNorm is as exact as plain loops", "[kernels][rmsnorm]", double, float, bfloat16) {
  test_norm_values<TestType, false>(0.5, 1);
}

TEST_CASE("RMSNorm's gradients agree with central differences", "[kernels][rmsnorm]") {
  test_norm_gradient<false>(Dropout());
  test_norm_gradient<false>(Dropout{.probability = 0.4, .seed = 3, .stream = 4});
}

TEMPLATE_TEST_CASE("RMSNorm drops by the index of the element", "[kernels][rmsnorm]", double, float, bfloat16) {
  test_norm_dropout<TestType, false>();
}

TEMPLATE_TEST_CASE("RMSNorm works in place and repeats its bits", "[kernels][rmsnorm]", double, float, bfloat16) {
  test_norm_aliases<TestType, false>();
}

TEST_CASE("RMSNorm refuses what does not fit, and says what", "[kernels][rmsnorm]") {
  auto const x = poisoned<float>(3, 4);
  auto const four = poisoned_vector<float>(4), three = poisoned_vector<float>(3);
  CHECK_NOTHROW(Sporos::residual_dropout_rmsnorm(Space(), x, x, four, Dropout(), epsilon, x, x, three));
  CHECK_THROWS_MATCHES(
      Sporos::residual_dropout_rmsnorm(Space(), x, x, four, Dropout(), epsilon, x, x, four), Sporos::InvalidArgument,
      Catch::Matchers::MessageMatches(Catch::Matchers::ContainsSubstring("rstd is (4); (3) is needed")));
}

}  // namespace
