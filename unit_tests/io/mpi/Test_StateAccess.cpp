// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CheckpointFixtures.hpp"
#include "RankGroups.hpp"
#include "Sporos_Checkpoint.hpp"
#include "Sporos_StateAccess.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace Sporos::Testing;
using Sporos::Communicator, Sporos::Interval, Sporos::OwnedPart, Sporos::ShardedAccess, Sporos::ShardedState,
    Sporos::StateLayout, Sporos::ZeroStage;
using Space = Kokkos::DefaultExecutionSpace;

constexpr std::size_t layers = 4;

/// A table, some layers of one size, a small last unit
StateLayout layout_of_layers() {
  StateLayout layout;
  layout.add("table", {31, 100}, true);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    layout.begin_unit();
    layout.add("h." + std::to_string(layer) + ".weight", {97, 51}, true);
    layout.add("h." + std::to_string(layer) + ".bias", {51}, false);
  }
  layout.begin_unit();
  layout.add("last", {5}, false);
  return layout;
}

template <class Element>
using Unmanaged = Kokkos::View<Element*, Space::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Element i of a buffer after `version` changes: exact in bfloat16
float value_of(std::int64_t i, int version) { return float((i * 7 + version * 31) % 251 - 125); }

/// Fills what the state holds of a buffer; parts that others own become NaN.
template <class State, class Flat>
void fill_owned(State const& state, Flat const& flat, int version) {
  using Element = typename Flat::value_type;
  Kokkos::deep_copy(flat, Element(std::nanf("")));
  for (OwnedPart const& owned : state.owned()) {
    auto const part = state.part(flat, owned);
    auto const host = Kokkos::create_mirror_view(part);
    for (std::int64_t i = 0; i < owned.range.size(); ++i)
      host(std::size_t(i)) = Element(value_of(owned.range.first + i, version));
    Kokkos::deep_copy(part, host);
  }
}

template <class Element>
std::int64_t count_wrong(Element const* unit, Interval const& range, int version) {
  auto const host = Kokkos::create_mirror_view_and_copy(
      Kokkos::HostSpace(), Unmanaged<Element>(const_cast<Element*>(unit), std::size_t(range.size())));
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < range.size(); ++i)
    if (float(host(std::size_t(i))) != value_of(range.first + i, version)) ++wrong;
  return wrong;
}

TEMPLATE_TEST_CASE("In every stage a unit's parameters are there from call to release", "[io][mpi][access]",
                   Sporos::bfloat16, float, double) {
  Communicator const world = Communicator::world();
  StateLayout const layout = layout_of_layers();
  auto const units = layout.units();
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    Space const space;
    using State = ShardedState<Space, TestType>;
    State const state(space, layout, {ZeroStage(stage), world.rank(), world.size()});
    ShardedAccess<Space, TestType> access(world, state, {});
    for (int version = 0; version < 3; ++version) {
      if (stage == 0)  // where nothing is shared out, everybody updates everything
        fill_owned(State(space, layout), state.parameters(), version);
      else
        fill_owned(state, state.parameters(), version);
      access.parameters_changed();
      // Forwards, the table once more, and backwards, as a model goes
      std::vector<std::size_t> order;
      for (std::size_t unit = 0; unit < units.size(); ++unit) order.push_back(unit);
      order.push_back(0);
      for (std::size_t unit = units.size(); unit-- > 1;) order.push_back(unit);
      for (std::size_t n = 0; n < order.size(); ++n) {
        std::optional<std::size_t> next;
        if (n + 1 < order.size()) next = order[n + 1];
        // One that was announced wrongly must not do harm.
        if (version == 2 && n == 3) next = 0;
        auto const* const unit = access.parameters(order[n], next);
        REQUIRE(count_wrong(unit, units[order[n]], version) == 0);
        access.release(order[n]);
      }
    }
    // In stage 3 the table, two layers and the last unit, however many layers there are
    std::int64_t const lent = units[0].size() + 2 * units[1].size() + units.back().size();
    REQUIRE(access.bytes().parameters == (stage == 3 ? std::size_t(lent) * sizeof(TestType) : 0));
  }
}

struct AddValues {
  Unmanaged<float> gradients;
  std::int64_t first;
  float factor;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { gradients(i) += factor * float((first + i) % 13); }
};

/// A backward pass from the last unit to the first, which touches the table twice
void run_backward(ShardedAccess<Space, float>& access, StateLayout const& layout, float factor) {
  using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
  auto const units = layout.units();
  auto const add = [&](std::size_t unit, float by) {
    Unmanaged<float> const gradients(access.gradients(unit), std::size_t(units[unit].size()));
    Kokkos::parallel_for("test::add", Policy(Space(), 0, units[unit].size()),
                         AddValues{gradients, units[unit].first, by});
  };
  add(0, 0.25f * factor);
  for (std::size_t unit = units.size(); unit-- > 1;) {
    add(unit, factor);
    access.ready(unit);
  }
  add(0, 0.75f * factor);
  access.ready(0);
}

TEST_CASE("In every stage the owners get the sums over ranks and rounds", "[io][mpi][access]") {
  Communicator const world = Communicator::world();
  StateLayout const layout = layout_of_layers();
  int const size = world.size();
  for (int stage = 0; stage <= 3; ++stage)
    for (bool const tree : {false, true}) {
      CAPTURE(stage, tree);
      Space const space;
      ShardedState<Space, float> const state(space, layout, {ZeroStage(stage), world.rank(), size});
      // In the first of three rounds the last rank has nothing to do; where the sum is a tree, in the last.
      std::vector<int> all, some;
      for (int r = 0; r < size; ++r) all.push_back(r);
      some.assign(all.begin(), size == 1 ? all.end() : all.end() - 1);
      std::vector<std::vector<int>> rounds{some, all, all};
      if (tree) std::swap(rounds.front(), rounds.back());
      int contributions = 0;
      for (auto const& ranks : rounds) contributions += int(ranks.size());
      ShardedAccess<Space, float> access(world, state,
                                         {.bucket_bytes = 40'000, .tree_leaves = tree ? contributions : 0});
      for (int step = 0; step < 2; ++step) {
        access.begin_step();
        float expected = 0;  // whole numbers: sums are exact, in any order
        for (std::size_t round = 0; round < rounds.size(); ++round) {
          access.begin_round(rounds[round], round + 1 == rounds.size());
          auto const factor = [&](int rank) { return float(4 * (rank + 2 * int(round) + step + 1)); };
          for (int const rank : rounds[round]) expected += factor(rank);
          if (world.rank() < int(rounds[round].size()))
            run_backward(access, layout, factor(world.rank()));
          else
            for (std::size_t unit = layout.units().size(); unit-- > 0;) access.ready(unit);
        }
        access.finish_step();
        auto parts = state.owned();
        if (stage == 0) parts = {{0, {0, layout.size()}, 0}};
        std::int64_t wrong = 0;
        for (OwnedPart const& part : parts) {
          auto const sums =
              Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.part(state.gradients(), part));
          for (std::int64_t i = 0; i < part.range.size(); ++i)
            if (sums(std::size_t(i)) != expected * float((part.range.first + i) % 13)) ++wrong;
        }
        REQUIRE(wrong == 0);
      }
      auto const units = layout.units();
      std::int64_t const most = units[0].size() + 2 * units[1].size() + units.back().size();
      REQUIRE(access.bytes().gradients <= (stage >= 2 ? std::size_t(most) * sizeof(float) : 0));
    }
}

TEMPLATE_TEST_CASE("What a rank holds in stage 3 falls with their number", "[io][mpi][access]", Sporos::bfloat16,
                   float) {
  Communicator const world = Communicator::world();
  StateLayout const layout = layout_of_layers();
  Space const space;
  std::size_t const whole = ShardedState<Space, TestType>(space, layout).bytes().sum();
  std::size_t const per_element = whole / std::size_t(layout.size());
  ShardedState<Space, TestType> const state(space, layout, {ZeroStage::parameters, world.rank(), world.size()});
  std::size_t held = 0;
  for (std::size_t const one : world.all_gather(state.bytes().sum())) held += one;
  REQUIRE(held == whole);  // nothing twice
  // No rank has more than its share but for one granule of each unit.
  std::size_t const share = whole / std::size_t(world.size());
  std::size_t const granules = layout.units().size() * std::size_t(StateLayout::granule);
  REQUIRE(state.bytes().sum() <= share + granules * per_element);
}

TEST_CASE("A state of another rank is refused", "[io][mpi][access]") {
  Communicator const world = Communicator::world();
  Space const space;
  ShardedState<Space, float> const other(space, layout_of_layers(), {ZeroStage::gradients, 1, world.size() + 1});
  REQUIRE_THROWS_WITH((ShardedAccess<Space, float>(world, other, {})),
                      ContainsSubstring("rank 1 of " + std::to_string(world.size() + 1)));
  REQUIRE_THROWS_WITH((Sporos::StateAccess<Space, float>(other)), ContainsSubstring("needs a ShardedAccess"));
}

template <class State, class Function>
void for_each_buffer_of(State const& a, State const& b, Function const& function) {
  function(a.parameters(), b.parameters());
  if (State::has_own_master) function(a.master(), b.master());
  function(a.first_moment(), b.first_moment());
  function(a.second_moment(), b.second_moment());
}

/// Gives a state what it holds of one that holds all.
template <class State>
void copy_held(State const& whole, State const& state) {
  for_each_buffer_of(whole, state, [&](auto const& from, auto const& to) {
    state.for_each_held(to, {0, whole.layout().size()}, [&](Interval const& held, auto const& elements) {
      Kokkos::deep_copy(elements, Kokkos::subview(from, std::pair(held.first, held.last)));
    });
  });
}

struct Comparison {
  std::int64_t wrong = 0, compared = 0;
};

/// Compares the bits of what a state holds with one that holds all.
template <class State>
Comparison compare_held(State const& whole, State const& state) {
  Comparison result;
  for_each_buffer_of(whole, state, [&](auto const& from, auto const& to) {
    auto const expected = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), from);
    state.for_each_held(to, {0, whole.layout().size()}, [&](Interval const& held, auto const& elements) {
      auto const found = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), elements);
      for (std::int64_t i = 0; i < held.size(); ++i)
        result.wrong +=
            std::memcmp(&found(std::size_t(i)), &expected(std::size_t(held.first + i)), sizeof(found(0))) != 0;
      result.compared += held.size();
    });
  });
  return result;
}

TEMPLATE_TEST_CASE("A checkpoint of any stage and number of ranks is read in any other", "[io][mpi][checkpoint]",
                   Sporos::bfloat16, float) {
  Communicator const world = Communicator::world();
  SharedDirectory const directory(world);
  Space const space;
  using State = ShardedState<Space, TestType>;
  StateLayout const layout = layout_of_layers();
  State whole(space, layout);
  fill(whole);
  for (int const writers : {1, world.size()})
    for (int stage = 0; stage <= 3; ++stage) {
      std::string const path = directory / (std::to_string(writers) + "-" + std::to_string(stage));
      if (auto const some = first_ranks(writers)) {
        State state(space, layout, {ZeroStage(stage), some->rank(), writers});
        copy_held(whole, state);
        state.step = 77;
        Sporos::CheckpointWriter writer(*some, {.directory = path});
        writer.save(state, {}, 12);
        writer.wait();
      }
      for (int readers = 1; readers <= world.size(); ++readers) {
        world.barrier();
        auto const some = first_ranks(readers);
        if (!some) continue;
        int const stage_now = (stage + readers + writers) % 4;
        CAPTURE(writers, stage, readers, stage_now);
        auto const reader = Sporos::CheckpointReader::newest_valid(*some, path, {});
        REQUIRE(reader);
        State state(space, layout, {ZeroStage(stage_now), some->rank(), readers});
        reader->load(state);
        REQUIRE(state.step == 77);
        auto const [wrong, compared] = compare_held(whole, state);
        REQUIRE(wrong == 0);
        REQUIRE(compared >= 3 * state.owned_size());
      }
    }
}

TEMPLATE_TEST_CASE("From stage 3 on three ranks by way of 0 on all to 2 on two, no bit and no step is lost",
                   "[io][mpi][checkpoint]", Sporos::bfloat16, float) {
  Communicator const world = Communicator::world();
  SharedDirectory const directory(world);
  Space const space;
  using State = ShardedState<Space, TestType>;
  StateLayout const layout = layout_of_layers();
  State whole(space, layout);
  fill(whole);
  struct Leg {
    int ranks;
    ZeroStage stage;
  };
  std::int64_t step = 0;
  for (Leg const leg : {Leg{std::min(3, world.size()), ZeroStage::parameters}, Leg{world.size(), ZeroStage::nothing},
                        Leg{std::min(2, world.size()), ZeroStage::gradients}}) {
    world.barrier();
    ++step;
    auto const some = first_ranks(leg.ranks);
    if (!some) continue;
    CAPTURE(leg.ranks, int(leg.stage));
    State state(space, layout, {leg.stage, some->rank(), leg.ranks});
    if (step == 1) {
      copy_held(whole, state);
      state.step = 77;
    } else {
      auto const reader = Sporos::CheckpointReader::newest_valid(*some, directory / "c", {});
      REQUIRE(reader);
      REQUIRE(reader->step() == step - 1);
      reader->load(state);
    }
    REQUIRE(state.step == 77);
    REQUIRE(compare_held(whole, state).wrong == 0);
    Sporos::CheckpointWriter writer(*some, {.directory = directory / "c"});
    writer.save(state, {}, step);
    writer.wait();
  }
}

}  // namespace
