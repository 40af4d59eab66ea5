// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "Sporos_ShardedState.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Space = Kokkos::DefaultExecutionSpace;

Sporos::StateLayout small_layout() {
  Sporos::StateLayout layout;
  layout.add("wte.weight", {7, 5}, true);
  layout.add("scalar", {}, false);
  layout.add("block/weight", {3, 4, 6}, true);
  layout.add("empty", {0, 9}, false);
  layout.add("block/bias", {64}, false);
  return layout;
}

TEST_CASE("StateLayout places tensors behind each other at aligned offsets", "[io][state]") {
  Sporos::StateLayout const layout = small_layout();
  REQUIRE(layout.tensors().size() == 5);
  std::int64_t const offsets[] = {0, 64, 128, 256, 256}, sizes[] = {35, 1, 72, 0, 64};
  for (std::size_t i = 0; i < 5; ++i) {
    CAPTURE(i);
    CHECK(layout.tensors()[i].offset == offsets[i]);
    CHECK(layout.tensors()[i].size == sizes[i]);
  }
  CHECK(layout.size() == 320);
  CHECK(layout.find("block/weight").shape == std::vector<std::int64_t>{3, 4, 6});
  CHECK(layout.find("block/weight").weight_decay);
  CHECK_FALSE(layout.find("block/bias").weight_decay);
  CHECK_THROWS_WITH(layout.find("wte"), ContainsSubstring("\"wte\"") && ContainsSubstring("wte.weight"));
  CHECK(Sporos::StateLayout().size() == 0);
}

TEST_CASE("StateLayout refuses names that a checkpoint file could not tell apart", "[io][state]") {
  for (char const* name :
       {"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a b", "a\n", "\xc3\xa9", "\x7f"}) {
    CAPTURE(name);
    Sporos::StateLayout layout;
    CHECK_THROWS_AS(layout.add(name, {1}, false), Sporos::InvalidArgument);
    CHECK(layout.tensors().empty());
  }
  Sporos::StateLayout layout = small_layout();
  CHECK_THROWS_WITH(layout.add("scalar", {1}, false), ContainsSubstring("taken"));
  CHECK_THROWS_WITH(layout.add("scalar/a", {1}, false), ContainsSubstring("\"scalar\" is a tensor"));
  CHECK_THROWS_WITH(layout.add("block", {1}, false), ContainsSubstring("group of \"block/bias\""));
  CHECK_NOTHROW(
      layout.add("block-2", {1}, false));  // '-' sorts before '/': the group check must not look at the neighbour only
  CHECK_NOTHROW(layout.add("bloc", {1}, false));
  CHECK_THROWS_WITH(layout.add("negative", {2, -1}, false), ContainsSubstring("(2, -1)"));
  std::int64_t const large = std::int64_t(1) << 40;
  CHECK_THROWS_WITH(layout.add("large", {large, large}, false), ContainsSubstring("2^63"));
  CHECK_THROWS_WITH(layout.add("last", {std::numeric_limits<std::int64_t>::max()}, false), ContainsSubstring("2^63"));
  CHECK(layout.tensors().size() == 7);
}

/// Units of no, one, few and many granules, the last one incomplete
Sporos::StateLayout layout_of_units() {
  Sporos::StateLayout layout;
  layout.begin_unit();  // nothing to end yet
  layout.add("table", {5, 1000}, true);
  layout.add("bias", {7}, false);
  layout.begin_unit();
  layout.add("small", {3}, false);
  layout.begin_unit();
  layout.begin_unit();  // nor here
  layout.add("h/weight", {300, 100}, true);
  layout.add("h/bias", {100}, true);
  return layout;
}

TEST_CASE("StateLayout cuts the tensors into units", "[io][state]") {
  using Units = std::vector<Sporos::Interval>;
  CHECK(Sporos::StateLayout().units() == Units{{0, 0}});
  CHECK(small_layout().units() == Units{{0, 320}});
  CHECK(layout_of_units().units() == Units{{0, 5120}, {5120, 5184}, {5184, 35328}});
}

TEST_CASE("StateLayout gives each rank its part of every unit", "[io][state]") {
  for (Sporos::StateLayout const& layout : {layout_of_units(), small_layout(), Sporos::StateLayout()}) {
    auto const units = layout.units();
    for (int const size : {1, 2, 3, 4, 7, 100}) {
      CAPTURE(layout.size(), size);
      for (std::size_t u = 0; u < units.size(); ++u) {
        std::int64_t end = units[u].first, shortest = units[u].size(), longest = 0;
        for (int rank = 0; rank < size; ++rank) {
          Sporos::Interval const part = layout.owned(u, rank, size);
          REQUIRE(part.first == end);
          if (part.size() > 0) REQUIRE((part.first - units[u].first) % Sporos::StateLayout::granule == 0);
          end = part.last;
          shortest = std::min(shortest, part.size());
          longest = std::max(longest, part.size());
        }
        CHECK(end == units[u].last);
        CHECK(longest - shortest < 2 * Sporos::StateLayout::granule);
        CHECK(longest == layout.owned(u, 0, size).size());
      }
      for (int rank = 0; rank < size; ++rank) {
        std::int64_t offset = 0;
        for (auto const& [unit, range, begin] : layout.owned(rank, size)) {
          REQUIRE(range == layout.owned(unit, rank, size));
          REQUIRE(begin == offset);
          offset += range.size();
        }
      }
    }
    CHECK_THROWS_AS(layout.owned(0, 2, 2), Sporos::InvalidArgument);
    CHECK_THROWS_AS(layout.owned(0, -1, 2), Sporos::InvalidArgument);
    CHECK_THROWS_AS(layout.owned(units.size(), 0, 2), Sporos::InvalidArgument);
  }
}

TEMPLATE_TEST_CASE("Each stage shares out one kind of buffer more, and every element is found", "[io][state]",
                   Sporos::bfloat16, float) {
  using Sporos::ZeroStage, Sporos::Interval, Sporos::OwnedPart;
  using State = Sporos::ShardedState<Space, TestType>;
  Sporos::StateLayout const layout = layout_of_units();
  auto const all = std::size_t(layout.size());
  for (int const ranks : {1, 2, 3, 5})
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(ranks, stage);
      std::vector<int> visits(all, 0);
      std::size_t optimizer = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        Space const space;
        State const state(space, layout, {ZeroStage(stage), rank, ranks});
        auto const owned = std::size_t(state.owned_size());
        CHECK(state.parameters().extent(0) == (stage >= 3 ? owned : all));
        CHECK(state.gradients().extent(0) == (stage >= 2 ? owned : all));
        CHECK(state.first_moment().extent(0) == (stage >= 1 ? owned : all));
        CHECK(state.second_moment().extent(0) == (stage >= 1 ? owned : all));
        if (State::has_own_master) CHECK(state.master().extent(0) == (stage >= 1 ? owned : all));
        optimizer += state.bytes().optimizer;

        // Numbered by the logical element, through one way of finding it, and read through the other
        auto const host = Kokkos::create_mirror_view(state.gradients());
        state.for_each_held(state.gradients(), {0, layout.size()}, [&](Interval const& held, auto const& elements) {
          for (std::int64_t i = held.first; i < held.last; ++i)
            host(std::size_t(elements.data() - state.gradients().data() + i - held.first)) = float(i);
        });
        Kokkos::deep_copy(state.gradients(), host);
        for (OwnedPart const& part : state.owned()) {
          auto const values =
              Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.part(state.gradients(), part));
          for (std::int64_t i = 0; i < part.range.size(); ++i) {
            REQUIRE(values(std::size_t(i)) == float(part.range.first + i));
            ++visits[std::size_t(part.range.first + i)];
          }
        }
      }
      CHECK(std::all_of(visits.begin(), visits.end(), [](int count) { return count == 1; }));
      std::size_t const per_element = State::has_own_master ? 12 : 8;
      CHECK(optimizer == all * per_element * std::size_t(stage == 0 ? ranks : 1));
    }
}

TEMPLATE_TEST_CASE("ShardedState has zeroed flat buffers and Views of their tensors", "[io][state]", Sporos::bfloat16,
                   float, double) {
  using State = Sporos::ShardedState<Space, TestType>;
  using Compute = typename State::Compute;
  Space space;
  State state(space, small_layout());
  CHECK(state.step == 0);
  for (auto const& flat : {state.gradients(), state.master(), state.first_moment(), state.second_moment()}) {
    auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), flat);
    REQUIRE(host.extent(0) == 320);
    for (std::size_t i = 0; i < host.extent(0); ++i) REQUIRE(host(i) == Compute(0));
  }
  auto const parameters = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.parameters());
  REQUIRE(parameters.extent(0) == 320);
  for (std::size_t i = 0; i < parameters.extent(0); ++i) REQUIRE(double(parameters(i)) == 0.0);

  constexpr bool own_master = !std::is_same_v<TestType, Compute>;
  CHECK((static_cast<void const*>(state.master().data()) != static_cast<void const*>(state.parameters().data())) ==
        own_master);

  auto const tensor = State::template view<3>(state.parameters(), state.layout().find("block/weight"));
  CHECK(tensor.data() == state.parameters().data() + 128);
  CHECK(tensor.extent(0) == 3);
  CHECK(tensor.extent(1) == 4);
  CHECK(tensor.extent(2) == 6);
  CHECK(tensor.stride(0) == 24);
  CHECK(tensor.stride(1) == 6);
  CHECK(tensor.stride(2) == 1);
  CHECK_THROWS_WITH(State::template view<2>(state.gradients(), state.layout().find("block/weight")),
                    ContainsSubstring("block/weight") && ContainsSubstring("(3, 4, 6)"));
  Sporos::TensorRange beyond = state.layout().find("block/bias");
  beyond.offset += 64;
  CHECK_THROWS_AS(State::template view<1>(state.gradients(), beyond), Sporos::InvalidArgument);
}

}  // namespace
