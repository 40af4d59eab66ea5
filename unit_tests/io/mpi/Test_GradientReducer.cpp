// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "RankGroups.hpp"
#include "Sporos_GradientReducer.hpp"
#include "Sporos_Random.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace Sporos::Testing;
using Sporos::Communicator, Sporos::Interval, Sporos::OwnedPart, Sporos::StateLayout;
using Space = Kokkos::DefaultExecutionSpace;
template <class C>
using Reducer = Sporos::GradientReducer<Space, C>;
template <class C>
using Gradients = typename Reducer<C>::Gradients;

StateLayout layout_of_units() {
  StateLayout layout;
  layout.add("table", {90, 100}, true);
  layout.add("bias", {77}, false);
  for (int const size : {1, 1023, 5000}) {
    layout.begin_unit();
    layout.add("t" + std::to_string(size), {size}, true);
  }
  return layout;
}

/// Contribution number `leaf` to element i: of many magnitudes, so that sums depend on their order
template <class C>
C gradient(std::int64_t leaf, std::int64_t i) {
  Sporos::RandomStream const random(99, std::uint64_t(leaf));
  return C(std::ldexp(random.uniform(std::uint64_t(2 * i)) - 0.5, int(random.bits(std::uint64_t(2 * i + 1)) % 20)));
}

template <class C>
Gradients<C> gradients(StateLayout const& layout, std::int64_t leaf) {
  Gradients<C> const values("gradients", std::size_t(layout.size()));
  auto const host = Kokkos::create_mirror_view(values);
  for (std::int64_t i = 0; i < layout.size(); ++i) host(std::size_t(i)) = gradient<C>(leaf, i);
  Kokkos::deep_copy(values, host);
  return values;
}

template <class C>
Gradients<C> poisoned(std::int64_t size) {
  Gradients<C> const buffer("buffer", std::size_t(size));
  Kokkos::deep_copy(buffer, std::numeric_limits<C>::quiet_NaN());
  return buffer;
}

template <class View>
auto to_host(View const& view) {
  auto const mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return std::vector<typename View::non_const_value_type>(mirror.data(), mirror.data() + mirror.extent(0));
}

/// Reports all units from the last to the first. The ranks arrive in another order each time.
template <class C>
void report(Reducer<C>& reducer, StateLayout const& layout, C* gradients, std::uint64_t seed) {
  Sporos::RandomStream const random(7, seed);
  auto const units = layout.units();
  for (std::size_t unit = units.size(); unit-- > 0;) {
    auto const place = std::uint64_t(100 * Communicator::world().rank()) + unit;
    std::this_thread::sleep_for(std::chrono::microseconds(random.bits(place) % 300));
    reducer.ready(unit, gradients ? gradients + units[unit].first : nullptr);
  }
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// The sum of leaves [first, first + count): the left half is the largest power of two below count.
template <class C>
C sum_of_tree(std::int64_t first, std::int64_t count, std::int64_t i) {
  if (count == 1) return gradient<C>(first, i);
  std::int64_t left = 1;
  while (2 * left < count) left *= 2;
  return sum_of_tree<C>(first, left, i) + sum_of_tree<C>(first + left, count - left, i);
}

template <class C, class Expected>
std::int64_t count_wrong(std::vector<C> const& sums, std::vector<OwnedPart> const& parts, Expected const& expected) {
  std::int64_t wrong = 0;
  for (OwnedPart const& part : parts)
    for (std::int64_t i = 0; i < part.range.size(); ++i)
      if (sums[std::size_t(part.offset + i)] != expected(part.range.first + i)) ++wrong;
  return wrong;
}

/// All elements, where a buffer holds them all
std::vector<OwnedPart> everything(StateLayout const& layout) { return {{0, {0, layout.size()}, 0}}; }

TEMPLATE_TEST_CASE("Gradients become their sum in rank order, on every rank if asked for", "[io][mpi][reducer]", float,
                   double) {
  using C = TestType;
  Communicator const world = Communicator::world();
  StateLayout const layout = layout_of_units();
  auto const expected = [&](std::int64_t i) {
    C sum = gradient<C>(0, i);
    for (int rank = 1; rank < world.size(); ++rank) sum += gradient<C>(rank, i);
    return sum;
  };
  for (bool const everywhere : {true, false})
    for (std::size_t const bucket_bytes : {1, 100'000, 1 << 24}) {
      CAPTURE(everywhere, bucket_bytes);
      Gradients<C> const buffer = gradients<C>(layout, world.rank());
      Reducer<C> reducer(world, Space(), layout, buffer, {bucket_bytes, 0, everywhere});
      for (int step = 0; step < 2; ++step) {
        Kokkos::deep_copy(buffer, gradients<C>(layout, world.rank()));
        reducer.begin_step();
        reducer.begin_round(all_ranks(world.size()));
        report<C>(reducer, layout, buffer.data(), bucket_bytes);
        reducer.finish_step();
        auto parts = everything(layout);
        if (!everywhere) {
          parts = layout.owned(world.rank(), world.size());
          for (OwnedPart& part : parts) part.offset = part.range.first;
        }
        REQUIRE(count_wrong<C>(to_host(buffer), parts, expected) == 0);
      }
    }
}

TEST_CASE("Over several rounds, of which a rank may miss some, an owner adds in their order", "[io][mpi][reducer]") {
  Communicator const world = Communicator::world();
  StateLayout const layout = layout_of_units();
  int const rank = world.rank(), size = world.size();
  // Rank r contributes from round r on: leaf number 10 · round + rank.
  std::vector<std::vector<int>> rounds;
  for (int round = 0; round < size; ++round) rounds.push_back(all_ranks(round + 1));
  auto const expected = [&](std::int64_t i) {
    float sum = 0;
    for (int round = 0; round < size; ++round)
      for (int const r : rounds[std::size_t(round)]) sum += gradient<float>(10 * round + r, i);
    return sum;
  };
  auto const parts = layout.owned(rank, size);
  Gradients<float> const sums = poisoned<float>(parts.back().offset + parts.back().range.size());
  Reducer<float> reducer(world, Space(), layout, sums, {50'000, 0, false});
  for (int step = 0; step < 2; ++step) {
    Kokkos::deep_copy(sums, std::nanf(""));
    reducer.begin_step();
    for (int round = 0; round < size; ++round) {
      auto const mine = gradients<float>(layout, 10 * round + rank);
      reducer.begin_round(rounds[std::size_t(round)]);
      report<float>(reducer, layout, rank <= round ? mine.data() : nullptr, std::uint64_t(round));
      for (std::size_t unit = 0; unit < layout.units().size(); ++unit) reducer.wait(unit);
      Kokkos::deep_copy(mine, std::nanf(""));  // ours again
    }
    reducer.finish_step();
    REQUIRE(count_wrong<float>(to_host(sums), parts, expected) == 0);
  }
}

TEMPLATE_TEST_CASE("A tree of contributions has the same bits on any number of ranks", "[io][mpi][reducer]", float,
                   double) {
  using C = TestType;
  StateLayout const layout = layout_of_units();
  for (int const leaves : {1, 2, 5, 12})
    for (int ranks = 1; ranks <= Communicator::world().size(); ++ranks) {
      auto const group = first_ranks(ranks);
      if (!group) continue;
      int const rank = group->rank();
      bool const everywhere = leaves % 2 == 0;
      CAPTURE(leaves, ranks, everywhere);
      auto const parts = everywhere ? everything(layout) : layout.owned(rank, ranks);
      Gradients<C> const sums = poisoned<C>(parts.back().offset + parts.back().range.size());
      Reducer<C> reducer(*group, Space(), layout, sums, {30'000, leaves, everywhere});
      reducer.begin_step();
      for (int first = 0; first < leaves; first += ranks) {
        int const contributors = std::min(ranks, leaves - first);
        auto const mine = gradients<C>(layout, first + rank);
        reducer.begin_round(all_ranks(contributors));
        report<C>(reducer, layout, rank < contributors ? mine.data() : nullptr, std::uint64_t(first));
        for (std::size_t unit = 0; unit < layout.units().size(); ++unit) reducer.wait(unit);
      }
      reducer.finish_step();
      REQUIRE(count_wrong<C>(to_host(sums), parts, [&](std::int64_t i) { return sum_of_tree<C>(0, leaves, i); }) == 0);
    }
}

TEST_CASE("A unit is on its way before the step is finished", "[io][mpi][reducer]") {
  Communicator const world = Communicator::world();
  StateLayout const layout = layout_of_units();
  Gradients<float> const buffer("buffer", std::size_t(layout.size()));
  Kokkos::deep_copy(buffer, 1.0f);
  Reducer<float> reducer(world, Space(), layout, buffer, {1 << 20, 0, true});
  reducer.begin_step();
  reducer.begin_round(all_ranks(world.size()));
  auto const units = layout.units();
  reducer.ready(3, buffer.data() + units[3].first);
  bool arrived = false;
  for (int attempt = 0; attempt < 1000000 && !arrived; ++attempt) arrived = reducer.is_finished(3);
  world.barrier();
  REQUIRE(world.all_agree(arrived));
  Kokkos::fence();
  REQUIRE(to_host(buffer).back() == float(world.size()));
  REQUIRE(to_host(buffer).front() == 1.0f);
  for (std::size_t unit = 0; unit < 3; ++unit) reducer.ready(unit, buffer.data() + units[unit].first);
  reducer.finish_step();
  REQUIRE(to_host(buffer) == std::vector<float>(std::size_t(layout.size()), float(world.size())));
}

TEST_CASE("Calls out of place are refused", "[io][mpi][reducer]") {
  Communicator const world = Communicator::world();
  StateLayout const layout = layout_of_units();
  int const size = world.size();
  Gradients<float> const buffer("buffer", std::size_t(layout.size()));
  REQUIRE_THROWS_WITH((Reducer<float>(world, Space(), layout, Gradients<float>("short", 5), {})),
                      ContainsSubstring("has 5 elements"));
  Reducer<float> reducer(world, Space(), layout, buffer, {});
  REQUIRE_THROWS_WITH(reducer.ready(0, buffer.data()), ContainsSubstring("begin_round() has not been called"));
  REQUIRE_THROWS_WITH(reducer.finish_step(), ContainsSubstring("begin_round() has not been called"));
  reducer.begin_step();
  for (auto const& ranks : {std::vector<int>{}, std::vector<int>{-1}, std::vector<int>{size}, std::vector<int>{1, 0}})
    REQUIRE_THROWS_WITH(reducer.begin_round(ranks), ContainsSubstring("contributing ranks"));
  reducer.begin_round(all_ranks(size));
  REQUIRE_THROWS_WITH(reducer.begin_step(), ContainsSubstring("has not been finished"));
  REQUIRE_THROWS_WITH(reducer.ready(4, buffer.data()), ContainsSubstring("unit 4 of 4"));
  REQUIRE_THROWS_WITH(reducer.ready(0, nullptr), ContainsSubstring("without gradients"));
  reducer.ready(0, buffer.data());
  REQUIRE_THROWS_WITH(reducer.ready(0, buffer.data()), ContainsSubstring("reported before"));
  REQUIRE_THROWS_WITH(reducer.finish_step(), ContainsSubstring("unit 1 of 4 was not reported"));
  for (std::size_t unit = 1; unit < 4; ++unit) reducer.ready(unit, buffer.data() + layout.units()[unit].first);
  reducer.finish_step();

  Reducer<float> tree(world, Space(), layout, buffer, {1 << 20, size + 1, false});
  tree.begin_step();
  tree.begin_round(all_ranks(size));
  for (std::size_t unit = 0; unit < 4; ++unit) tree.ready(unit, buffer.data() + layout.units()[unit].first);
  REQUIRE_THROWS_WITH(tree.finish_step(), ContainsSubstring("the tree has " + std::to_string(size + 1) + " leaves"));
}

TEST_CASE("Whether MPI takes device memory can be said from outside", "[io][mpi][reducer]") {
  REQUIRE(::setenv("SPOROS_GPU_AWARE_MPI", "1", 1) == 0);
  REQUIRE(Sporos::mpi_takes_device_memory());
  REQUIRE(::setenv("SPOROS_GPU_AWARE_MPI", "0", 1) == 0);
  REQUIRE_FALSE(Sporos::mpi_takes_device_memory());
  REQUIRE(::setenv("SPOROS_GPU_AWARE_MPI", "yes", 1) == 0);
  REQUIRE_THROWS_WITH(Sporos::mpi_takes_device_memory(), ContainsSubstring("\"yes\"; it must be 0 or 1"));
  REQUIRE(::unsetenv("SPOROS_GPU_AWARE_MPI") == 0);
}

}  // namespace
