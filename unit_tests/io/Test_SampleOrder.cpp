// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "Sporos_Error.hpp"
#include "Sporos_SampleOrder.hpp"

namespace {

using Sporos::SampleOrder;

std::vector<std::int64_t> epoch_of(SampleOrder const& order, std::int64_t epoch) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < order.samples(); ++i) samples.push_back(order(epoch * order.samples() + i));
  return samples;
}

// Around every power of two, where the width of the halves changes
TEST_CASE("Every epoch visits each sample once", "[io][order]") {
  std::vector<std::int64_t> sizes;
  for (std::int64_t power = 1; power <= 4096; power *= 2)
    for (std::int64_t size : {power - 1, power, power + 1})
      if (size > 0) sizes.push_back(size);
  sizes.push_back(99991);
  for (std::int64_t const size : sizes)
    for (std::int64_t const epoch : {0, 1, 1000000}) {
      std::vector<std::int64_t> visited = epoch_of(SampleOrder(size, 42), epoch);
      std::sort(visited.begin(), visited.end());
      bool each_once = true;
      for (std::int64_t i = 0; i < size; ++i) each_once = each_once && visited[std::size_t(i)] == i;
      CAPTURE(size, epoch);
      REQUIRE(each_once);
    }
}

TEST_CASE("Epochs and seeds have orders of their own", "[io][order]") {
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull})
    for (std::int64_t epoch = 0; epoch < 10; ++epoch) orders.insert(epoch_of(SampleOrder(1000, seed), epoch));
  REQUIRE(orders.size() == 40);
  REQUIRE(epoch_of(SampleOrder(1000, 7), 3) == epoch_of(SampleOrder(1000, 7), 3));
}

// A uniform order has each sample at each place equally often: chi-square over places × samples of small epochs. For a
// uniformly random permutation the statistic has mean (n-1)² and a standard deviation of about √2 (n-1); six of them
// are allowed, and the seed is fixed, so that this never fails by chance.
TEST_CASE("Each sample is at each place equally often", "[io][order]") {
  for (std::int64_t const size : {2, 3, 5, 8, 17}) {
    SampleOrder const order(size, 2026);
    std::int64_t const epochs = 20000;
    std::vector<double> count(std::size_t(size * size), 0);
    for (std::int64_t i = 0; i < epochs * size; ++i) count[std::size_t(i % size * size + order(i))] += 1;
    double const expected = double(epochs) / double(size);
    double chi_square = 0;
    for (double const c : count) chi_square += (c - expected) * (c - expected) / expected;
    double const freedom = double((size - 1) * (size - 1));
    CAPTURE(size, chi_square);
    REQUIRE(chi_square < freedom + 6 * std::sqrt(2 * freedom) + 6);
  }
}

// Pairs: the sample after sample s must be anything. 16 samples, 240 ordered pairs.
TEST_CASE("Neighbours in the order are independent", "[io][order]") {
  std::int64_t const size = 16, epochs = 40000;
  SampleOrder const order(size, 5);
  std::vector<double> count(std::size_t(size * size), 0);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
    for (std::int64_t i = 0; i + 1 < size; ++i)
      count[std::size_t(order(epoch * size + i) * size + order(epoch * size + i + 1))] += 1;
  double const expected = double(epochs * (size - 1)) / double(size * (size - 1));
  double chi_square = 0;
  for (std::int64_t a = 0; a < size; ++a)
    for (std::int64_t b = 0; b < size; ++b) {
      double const c = count[std::size_t(a * size + b)];
      if (a == b)
        REQUIRE(c == 0);
      else
        chi_square += (c - expected) * (c - expected) / expected;
    }
  double const freedom = double(size * (size - 1));
  CAPTURE(chi_square);
  REQUIRE(chi_square < freedom + 6 * std::sqrt(2 * freedom));
}

TEST_CASE("Sizes beyond 32 bits stay in range and differ", "[io][order]") {
  std::int64_t const size = (std::int64_t(1) << 40) + 12345;
  SampleOrder const order(size, 1);
  std::set<std::int64_t> visited;
  for (std::int64_t i = 0; i < 1000; ++i) {
    std::int64_t const sample = order(i * 1000003);
    REQUIRE(sample >= 0);
    REQUIRE(sample < size);
    visited.insert(sample);
  }
  REQUIRE(visited.size() == 1000);
  REQUIRE(*visited.rbegin() > std::int64_t(1) << 39);  // of 1000 uniform ones surely
}

TEST_CASE("The sequential order counts", "[io][order]") {
  SampleOrder const order = SampleOrder::sequential(5);
  for (std::int64_t i = 0; i < 12; ++i) REQUIRE(order(i) == i % 5);
}

// Runs are resumed by counter, also after an update of the library.
TEST_CASE("The order is the same in every version", "[io][order]") {
  SampleOrder const order(1000, 42);
  std::vector<std::int64_t> first;
  for (std::int64_t i = 0; i < 6; ++i) first.push_back(order(i));
  first.push_back(order(1000));
  REQUIRE(first == std::vector<std::int64_t>{59, 241, 97, 183, 729, 133, 335});
}

TEST_CASE("No samples and negative counters are refused", "[io][order]") {
  REQUIRE_THROWS_AS(SampleOrder(0, 1), Sporos::InvalidArgument);
  REQUIRE_THROWS_AS(SampleOrder(-5, 1), Sporos::InvalidArgument);
  REQUIRE_THROWS_AS(SampleOrder(5, 1)(-1), Sporos::InvalidArgument);
}

}  // namespace
