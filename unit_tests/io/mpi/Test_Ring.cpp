// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "RankGroups.hpp"
#include "Sporos_Ring.hpp"

namespace {

using Sporos::Communicator, Sporos::Ring;
using Space = Kokkos::DefaultExecutionSpace;
template <class Element>
using Block = typename Ring<Space, Element>::Block;

/// What rank `origin` has put at place i; exact in bfloat16
template <class Element>
KOKKOS_FUNCTION Element value(int origin, std::size_t i) {
  return Element(float(16 * origin + int(i % 16)));
}

template <class Element>
void fill(Space const& space, Block<Element> const& block, int origin) {
  Kokkos::parallel_for(
      "fill", Kokkos::RangePolicy<Space>(space, 0, block.extent(0)),
      KOKKOS_LAMBDA(std::size_t i) { block(i) = value<Element>(origin, i); });
}

template <class Element>
std::int64_t count_wrong(Space const& space, Block<Element> const& block, int origin) {
  std::int64_t wrong = 0;
  Kokkos::parallel_reduce(
      "count", Kokkos::RangePolicy<Space>(space, 0, block.extent(0)),
      KOKKOS_LAMBDA(std::size_t i, std::int64_t& sum) {
        sum += float(block(i)) == float(value<Element>(origin, i)) ? 0 : 1;
      },
      wrong);
  return wrong;
}

TEMPLATE_TEST_CASE("Each rank sees the blocks of all ranks, those of the ranks before it first", "[io][mpi][ring]",
                   float, double, Sporos::bfloat16) {
  Communicator const world = Communicator::world();
  Space const space;
  Ring<Space, TestType> ring(world, space);
  REQUIRE(ring.size() == world.size());
  for (std::size_t const size : {std::size_t(0), std::size_t(1), std::size_t(1000), std::size_t(300'000)}) {
    Block<TestType> here("here", size), there("there", size);
    fill<TestType>(space, here, world.rank());
    std::vector<int> origins;
    for (int step = 0; step < ring.size(); ++step) {
      bool const goes_on = step + 1 < ring.size();
      if (goes_on) ring.start(here, there);
      ring.advance();
      origins.push_back(ring.origin(step));
      CHECK(count_wrong<TestType>(space, here, ring.origin(step)) == 0);
      if (goes_on) ring.finish();
      std::swap(here, there);
    }
    for (int step = 0; step < ring.size(); ++step)
      CHECK(origins[std::size_t(step)] == (world.rank() - step + world.size()) % world.size());
  }
}

TEST_CASE("Sums that travel with a block come home with what every rank has added", "[io][mpi][ring]") {
  Communicator const world = Communicator::world();
  Space const space;
  Ring<Space, double> ring(world, space);
  Block<double> here("here", 5000), there("there", 5000);
  for (int step = 0; step < ring.size(); ++step) {
    ring.finish();
    int const mine = world.rank(), whose = ring.origin(step);
    Block<double> const sums = here;
    Kokkos::parallel_for(
        "add", Kokkos::RangePolicy<Space>(space, 0, sums.extent(0)),
        KOKKOS_LAMBDA(std::size_t i) { sums(i) += (1 + mine) * (1 + whose) * double(i); });
    ring.start(here, there);
    std::swap(here, there);
  }
  ring.finish();
  auto const home = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), here);
  double const all = world.size() * (world.size() + 1) / 2;
  for (std::size_t i = 0; i < home.extent(0); ++i) REQUIRE(home(i) == all * (1 + world.rank()) * double(i));
}

TEST_CASE("Two rings of the same ranks do not take each other's blocks", "[io][mpi][ring]") {
  Communicator const world = Communicator::world();
  Space const space;
  Ring<Space, float> one(world, space), two(world, space);
  Block<float> a("a", 20'000), b("b", 20'000), c("c", 20'000), d("d", 20'000);
  fill<float>(space, a, world.rank());
  fill<float>(space, c, 10 + world.rank());
  // In another order on every second rank
  if (world.rank() % 2 == 0) {
    one.start(a, b);
    two.start(c, d);
  } else {
    two.start(c, d);
    one.start(a, b);
  }
  two.finish();
  one.finish();
  CHECK(count_wrong<float>(space, b, one.origin(1)) == 0);
  CHECK(count_wrong<float>(space, d, 10 + one.origin(1)) == 0);
}

TEST_CASE("Blocks that do not fit are refused", "[io][mpi][ring]") {
  Ring<Space, float> ring(Communicator::world(), Space());
  Block<float> const a("a", 10), b("b", 11), c("c", 10);
  CHECK_THROWS_AS(ring.start(a, b), Sporos::InvalidArgument);
  CHECK_THROWS_AS(ring.start(a, a), Sporos::InvalidArgument);
  ring.start(a, c);
  CHECK_THROWS_AS(ring.start(a, c), Sporos::InvalidArgument);
  ring.finish();
}

TEST_CASE("A communicator splits into groups that keep the order of ranks", "[io][mpi][communicator]") {
  Communicator const world = Communicator::world();
  for (int const size : {1, 2, 3}) {
    Communicator const group = world.split(world.rank() / size);
    int const first = world.rank() / size * size;
    CHECK(group.size() == std::min(size, world.size() - first));
    CHECK(group.rank() == world.rank() - first);
    CHECK(group.all_reduce_max(std::int64_t(world.rank())) == first + group.size() - 1);
  }
  CHECK_THROWS_AS(world.split(-1), Sporos::InvalidArgument);
}

}  // namespace
