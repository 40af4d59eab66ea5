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

TEST_CASE("StateLayout gives each rank its part", "[io][state]") {
  Sporos::StateLayout layout;
  for (std::int64_t const elements : {0, 1, 64, 65, 64 * 7, 64 * 1000 + 3}) {
    if (elements > 0) layout.add("t" + std::to_string(elements), {elements}, false);
    for (int const size : {1, 2, 3, 4, 7, 100}) {
      CAPTURE(layout.size(), size);
      std::int64_t end = 0, shortest = layout.size(), longest = 0;
      for (int rank = 0; rank < size; ++rank) {
        auto const [first, last] = layout.owned(rank, size);
        REQUIRE(first == end);
        REQUIRE(first % Sporos::StateLayout::alignment == 0);
        end = last;
        shortest = std::min(shortest, last - first);
        longest = std::max(longest, last - first);
      }
      CHECK(end == layout.size());
      CHECK(longest - shortest <= Sporos::StateLayout::alignment);
    }
  }
  CHECK_THROWS_AS(layout.owned(2, 2), Sporos::InvalidArgument);
  CHECK_THROWS_AS(layout.owned(-1, 2), Sporos::InvalidArgument);
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
