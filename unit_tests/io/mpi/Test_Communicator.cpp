// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../TokenFiles.hpp"
#include "Sporos_Communicator.hpp"
#include "Sporos_TokenDataset.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::AgreedError;
using Sporos::Communicator;

TEST_CASE("Reductions give every rank the same and follow rank order", "[io][mpi][communicator]") {
  Communicator const world = Communicator::world();
  int const size = world.size(), rank = world.rank();

  // 1e16 - 1e16 + 1 is 1 in this order and 0 in the opposite one: rank order is the promise.
  auto const value_of = [](int r) { return r % 3 == 0 ? 1e16 : r % 3 == 1 ? -1e16 : 1.0; };
  double expected = 0;
  for (int r = 0; r < size; ++r) expected += value_of(r);
  REQUIRE(world.all_reduce_sum(value_of(rank)) == expected);

  REQUIRE(world.all_reduce_sum(std::int64_t(rank + 1)) == std::int64_t(size) * (size + 1) / 2);
  REQUIRE(world.all_reduce_max(std::int64_t(-5 - rank)) == -5);
  REQUIRE(world.all_reduce_max(-1.5 * (size - rank)) == -1.5);
  REQUIRE(std::isnan(world.all_reduce_max(rank == size - 1 ? std::nan("") : 1.0)));
  REQUIRE(std::isnan(world.all_reduce_sum(rank == 0 ? std::nan("") : 1.0)));

  REQUIRE(world.all_agree(true));
  REQUIRE_FALSE(world.all_agree(rank != size - 1));
  REQUIRE(world.all_equal(77));
  REQUIRE(world.all_equal(rank == size - 1 ? 1 : 0) == (size == 1));

  std::vector<int> const ranks = world.all_gather(10 * rank);
  REQUIRE(int(ranks.size()) == size);
  for (int r = 0; r < size; ++r) REQUIRE(ranks[std::size_t(r)] == 10 * r);
}

TEST_CASE("Each rank may give another number of values", "[io][mpi][communicator]") {
  Communicator const world = Communicator::world();
  std::vector<double> const mine(std::size_t(3 * world.rank()), 0.5 + world.rank());  // nothing on rank 0
  auto const all = world.all_gather(mine);
  REQUIRE(int(all.size()) == world.size());
  for (int r = 0; r < world.size(); ++r)
    REQUIRE(all[std::size_t(r)] == std::vector<double>(std::size_t(3 * r), 0.5 + r));
}

TEST_CASE("A broadcast carries texts of any length from any rank", "[io][mpi][communicator]") {
  Communicator const world = Communicator::world();
  for (int root = 0; root < world.size(); ++root)
    for (std::size_t const length : {std::size_t(0), std::size_t(1), std::size_t(1) << 20}) {
      std::string const sent(length, char('a' + root));
      std::string text = world.rank() == root ? sent : "something else";
      world.broadcast(text, root);
      REQUIRE(text == sent);
    }
  double number = world.rank() == 0 ? 2.5 : 0.0;
  world.broadcast(number);
  REQUIRE(number == 2.5);
}

TEST_CASE("An error on one rank is thrown on all with its text", "[io][mpi][communicator]") {
  Communicator const world = Communicator::world();
  REQUIRE_NOTHROW(world.agree_no_error(""));
  for (int failing = 0; failing < world.size(); ++failing) {
    // Every rank from `failing` on has an error; that of the lowest counts.
    std::string const mine = world.rank() >= failing ? "no bread on " + std::to_string(world.rank()) : "";
    std::string const expected =
        (world.size() == 1 ? "" : "(rank " + std::to_string(failing) + ") ") + "no bread on " + std::to_string(failing);
    std::string caught;
    try {
      world.agree_no_error(mine);
    } catch (AgreedError const& error) {
      caught = error.what();
    }
    REQUIRE(caught == expected);
  }
}

TEST_CASE("A file that one rank cannot read stops all of them", "[io][mpi][communicator]") {
  Communicator const world = Communicator::world();
  std::optional<Sporos::Testing::TemporaryFile> file;
  if (world.rank() != world.size() - 1) file.emplace("input.txt", "some text");
  std::string const path = file ? file->path() : "/nowhere/input.txt";
  REQUIRE_THROWS_WITH(world.run_agreed([&] { (void)Sporos::TokenDataset::open(path, 256); }),
                      ContainsSubstring("/nowhere/input.txt: cannot be opened"));
  REQUIRE_THROWS_AS(world.run_agreed([&] {
    if (world.rank() == 0) throw std::runtime_error("");
  }),
                    AgreedError);
  REQUIRE_NOTHROW(world.run_agreed([] {}));
}

TEST_CASE("A duplicate carries messages of its own, from another thread", "[io][mpi][communicator]") {
  Communicator const world = Communicator::world();
  Communicator const duplicate = world.duplicate();
  int relation = MPI_UNEQUAL;
  MPI_Comm_compare(world.handle(), duplicate.handle(), &relation);
  REQUIRE(relation == MPI_CONGRUENT);
  REQUIRE(Sporos::MpiEnvironment().thread_multiple());

  std::int64_t wrong = 0;
  std::thread thread([&wrong, duplicate] {
    for (std::int64_t i = 0; i < 2000; ++i) wrong += duplicate.all_reduce_sum(i) != i * duplicate.size() ? 1 : 0;
  });
  std::int64_t also_wrong = 0;
  for (std::int64_t i = 0; i < 2000; ++i) also_wrong += world.all_reduce_sum(-i) != -i * world.size() ? 1 : 0;
  thread.join();
  REQUIRE(wrong == 0);
  REQUIRE(also_wrong == 0);
}

TEST_CASE("An environment made while MPI runs leaves it running", "[io][mpi][communicator]") {
  {
    Sporos::MpiEnvironment const second;
  }
  int finalized = 0;
  MPI_Finalized(&finalized);
  REQUIRE(finalized == 0);
  REQUIRE(Communicator::world().all_agree(true));
}

}  // namespace
