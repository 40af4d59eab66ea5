// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <type_traits>

#include "Sporos_Workspace.hpp"

namespace {

using Space = Kokkos::DefaultExecutionSpace;
using Workspace = Sporos::Workspace<Space>;

TEST_CASE("A workspace grows to the largest request and stays there", "[core][workspace]") {
  Workspace workspace{Space()};
  CHECK(workspace.bytes() == 0);
  auto const doubles = workspace.take<double>(100);
  CHECK(doubles.extent(0) == 100);
  CHECK(workspace.bytes() == 800);

  auto const floats = workspace.take<float>(10);  // fits: the same memory
  CHECK(workspace.bytes() == 800);
  CHECK(static_cast<void*>(floats.data()) == static_cast<void*>(doubles.data()));

  workspace.reserve(2000);
  CHECK(workspace.bytes() == 2000);
  workspace.reserve(1000);
  CHECK(workspace.bytes() == 2000);
}

TEST_CASE("Memory of a workspace can be written and read, and is aligned for vectors", "[core][workspace]") {
  Workspace workspace{Space()};
  auto const x = workspace.take<double>(1000);
  CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 64 == 0);
  Kokkos::deep_copy(x, 2.5);
  auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
  CHECK(host(0) == 2.5);
  CHECK(host(999) == 2.5);
}

TEST_CASE("Nothing may be taken from a workspace", "[core][workspace]") {
  Workspace workspace{Space()};
  CHECK(workspace.take<double>(0).extent(0) == 0);
  CHECK(workspace.bytes() == 0);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<Workspace>);
}

}  // namespace
