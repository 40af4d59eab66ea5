// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <Sporos_Gelu.hpp>
#include <cmath>
#include <cstdio>

// One operation of the compiled library, called as a user would.
int main(int argc, char** argv) {
  Kokkos::ScopeGuard const kokkos(argc, argv);
  Kokkos::DefaultExecutionSpace const space;
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::DefaultExecutionSpace> x("x", 3, 5), y("y", 3, 5);
  Kokkos::deep_copy(space, x, 1.0f);
  Sporos::gelu(space, x, y);
  auto const result = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, y);
  std::printf("gelu(1) = %.6f\n", result(2, 4));
  return std::abs(result(2, 4) - 0.841192f) < 1e-5f ? 0 : 1;
}
