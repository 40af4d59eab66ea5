// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <bit>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>

#include "RowTesting.hpp"
#include "Sporos_CrossEntropy.hpp"

namespace {

using namespace Sporos::Testing;
using Sporos::bfloat16;
using Sporos::ComputeType;

/// The formulas as plain loops with arithmetic in C
template <class C>
struct Plain {
  Values loss, log_sum_exp, dlogits;

  Plain(Values const& logits, std::vector<int> const& targets, double scale)
      : loss(1, logits.rows), log_sum_exp(1, logits.rows), dlogits(logits.rows, logits.columns) {
    for (std::size_t r = 0; r < logits.rows; ++r) {
      C largest = -std::numeric_limits<C>::infinity(), sum = 0;
      for (std::size_t c = 0; c < logits.columns; ++c) largest = std::max(largest, C(logits(r, c)));
      for (std::size_t c = 0; c < logits.columns; ++c) sum += std::exp(C(logits(r, c)) - largest);
      C const lse = largest + std::log(sum);
      log_sum_exp[r] = lse;
      if (targets[r] == -1) continue;
      loss[r] = lse - C(logits(r, std::size_t(targets[r])));
      for (std::size_t c = 0; c < logits.columns; ++c)
        dlogits(r, c) = C(scale) * (std::exp(C(logits(r, c)) - lse) - C(int(c) == targets[r]));
    }
  }
};

std::vector<int> some_targets(std::size_t rows, std::size_t columns) {
  std::vector<int> targets(rows);
  for (std::size_t r = 0; r < rows; ++r) targets[r] = r % 5 == 3 ? -1 : int((r * 7919) % columns);
  return targets;
}

template <class T, class Gradient>
void test_values(double width) {
  using C = ComputeType<T>;
  for (auto [rows, columns] :
       {std::pair{1, 1}, std::pair{50, 7}, std::pair{40, 256}, std::pair{24, 50257}, std::pair{0, 3}}) {
    CAPTURE(rows, columns, width);
    std::size_t const m = std::size_t(rows), n = std::size_t(columns);
    Values const logits = random_values<T>(m, n, 1, 0, width);
    std::vector<int> const targets = some_targets(m, n);
    double const scale = 1.0 / 64;
    auto const logits_view = upload<T>(logits);
    auto const targets_view = upload_ints(targets);
    auto const loss = poisoned_vector<C>(m), log_sum_exp = poisoned_vector<C>(m);
    auto const dlogits = poisoned<Gradient>(m, n);
    Sporos::cross_entropy(Space(), logits_view, targets_view, loss, log_sum_exp);
    Sporos::cross_entropy_backward(Space(), logits_view, targets_view, log_sum_exp, scale, dlogits);

    Plain<C> const plain(logits, targets, scale);
    Plain<long double> const exact(logits, targets, scale);
    require_close<C>("loss", download(loss), exact.loss, largest_error(plain.loss, exact.loss));
    require_close<C>("log_sum_exp", download(log_sum_exp), exact.log_sum_exp,
                     largest_error(plain.log_sum_exp, exact.log_sum_exp));
    require_close<Gradient>("dlogits", download(dlogits), exact.dlogits, largest_error(plain.dlogits, exact.dlogits));
  }
}

TEMPLATE_TEST_CASE("Cross entropy is as exact as plain loops", "[kernels][cross_entropy]", double, float, bfloat16) {
  test_values<TestType, TestType>(3);
}

// exp of these would overflow.
TEMPLATE_TEST_CASE("Cross entropy of huge logits", "[kernels][cross_entropy]", double, float, bfloat16) {
  test_values<TestType, TestType>(1000);
}

TEST_CASE("Cross entropy of logits in float, gradient in bfloat16", "[kernels][cross_entropy]") {
  test_values<float, bfloat16>(3);
}

TEST_CASE("Cross entropy's gradient agrees with central differences", "[kernels][cross_entropy]") {
  std::size_t const rows = 5, columns = 9;
  Values const logits = random_values<double>(rows, columns, 1, 0, 3);
  auto const targets = upload_ints(some_targets(rows, columns));
  auto const loss = poisoned_vector<double>(rows), log_sum_exp = poisoned_vector<double>(rows);
  auto const total = [&](Values const& v) {
    Sporos::cross_entropy(Space(), upload<double>(v), targets, loss, log_sum_exp);
    return 0.25 * dot(download(loss), Values(1, rows, 1));
  };
  total(logits);
  auto const dlogits = poisoned<double>(rows, columns);
  Sporos::cross_entropy_backward(Space(), upload<double>(logits), targets, log_sum_exp, 0.25, dlogits);
  require_gradient("logits", logits, download(dlogits), total);
}

TEMPLATE_TEST_CASE("Cross entropy's gradient may replace the logits", "[kernels][cross_entropy]", double, float,
                   bfloat16) {
  using C = ComputeType<TestType>;
  std::size_t const rows = 6, columns = 1031;
  Values const logits = random_values<TestType>(rows, columns, 1, 0, 3);
  auto const in_place = upload<TestType>(logits), apart = poisoned<TestType>(rows, columns);
  auto const targets = upload_ints(some_targets(rows, columns));
  auto const loss = poisoned_vector<C>(rows), log_sum_exp = poisoned_vector<C>(rows);
  Sporos::cross_entropy(Space(), in_place, targets, loss, log_sum_exp);
  Sporos::cross_entropy_backward(Space(), in_place, targets, log_sum_exp, 1, apart);
  Sporos::cross_entropy_backward(Space(), in_place, targets, log_sum_exp, 1, in_place);
  require_identical("dlogits", download(in_place), download(apart));
}

TEST_CASE("Every NaN among the logits shows, whatever its bits", "[kernels][cross_entropy]") {
  for (std::uint32_t const bits : {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
    CAPTURE(bits);
    Kokkos::View<float**, Kokkos::LayoutRight, Space> const logits("logits", 1, 20);
    auto const host = Kokkos::create_mirror_view(logits);
    host(0, 7) = std::bit_cast<float>(bits);
    Kokkos::deep_copy(logits, host);
    auto const loss = poisoned_vector<float>(1), log_sum_exp = poisoned_vector<float>(1);
    Kokkos::deep_copy(loss, 0.0f);
    Sporos::cross_entropy(Space(), logits, upload_ints({3}), loss, log_sum_exp);
    CHECK(std::isnan(download(loss)[0]));
  }
}

TEMPLATE_TEST_CASE("A class of logit -infinity has no probability; a NaN and a wrong target show",
                   "[kernels][cross_entropy]", double, float) {
  using Limits = std::numeric_limits<long double>;
  std::size_t const rows = 5, columns = 40;
  Values logits(rows, columns, -Limits::infinity());
  logits(0, 17) = 10;                 // certain
  logits(1, 3) = logits(1, 39) = -2;  // one of two
  for (std::size_t c = 0; c < columns; ++c) logits(2, c) = logits(3, c) = logits(4, c) = 1;
  logits(2, 20) = Limits::quiet_NaN();
  auto const view = upload<TestType>(logits);
  auto const targets = upload_ints({17, 39, 5, int(columns), -2});
  auto const loss = poisoned_vector<TestType>(rows), log_sum_exp = poisoned_vector<TestType>(rows);
  auto const dlogits = poisoned<TestType>(rows, columns);
  Sporos::cross_entropy(Space(), view, targets, loss, log_sum_exp);
  Sporos::cross_entropy_backward(Space(), view, targets, log_sum_exp, 1, dlogits);
  Values const losses = download(loss), gradient = download(dlogits);
  CHECK(losses[0] == 0);
  CHECK(std::abs(losses[1] - std::log(2.0L)) < 1e-6);
  for (std::size_t r = 2; r < rows; ++r) CHECK(std::isnan(losses[r]));
  for (std::size_t c = 0; c < columns; ++c) {
    CHECK(gradient(0, c) == 0);
    long double const expected = c == 3 ? 0.5 : c == 39 ? -0.5 : 0;
    CHECK(std::abs(gradient(1, c) - expected) < 1e-6);
    for (std::size_t r = 2; r < rows; ++r) CHECK(std::isnan(gradient(r, c)));
  }
}

// The vectorised exp alone, against the library's in double
TEST_CASE("exponential() is exact to 1.5e-7 where softmax needs it", "[kernels][cross_entropy]") {
  double largest = 0;
  for (float x = -87; x <= 1; x += 0x1p-13f) {
    double const exact = std::exp(double(x));
    largest = std::max(largest, std::abs(double(Sporos::Impl::exponential(x)) - exact) / exact);
  }
  CHECK(largest < 1.5e-7);
  CHECK(Sporos::Impl::exponential(0.0f) == 1);
  CHECK(Sporos::Impl::exponential(-1e30f) == 0);
  CHECK(Sporos::Impl::exponential(-std::numeric_limits<float>::infinity()) == 0);
  CHECK(std::isnan(Sporos::Impl::exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("Cross entropy refuses what does not fit, and says what", "[kernels][cross_entropy]") {
  using Catch::Matchers::ContainsSubstring;
  using Catch::Matchers::MessageMatches;
  auto const logits = poisoned<float>(3, 4);
  auto const targets = upload_ints({0, 1, 2});
  auto const three = poisoned_vector<float>(3), four = poisoned_vector<float>(4);
  CHECK_THROWS_MATCHES(Sporos::cross_entropy(Space(), logits, upload_ints({0, 1}), three, three),
                       Sporos::InvalidArgument, MessageMatches(ContainsSubstring("targets is (2); (3) is needed")));
  CHECK_THROWS_MATCHES(Sporos::cross_entropy(Space(), logits, targets, four, three), Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("loss is (4); (3) is needed")));
  CHECK_THROWS_MATCHES(Sporos::cross_entropy_backward(Space(), logits, targets, three, 1, poisoned<float>(3, 5)),
                       Sporos::InvalidArgument,
                       MessageMatches(ContainsSubstring("dlogits is (3, 5); (3, 4) is needed")));
}

}  // namespace
