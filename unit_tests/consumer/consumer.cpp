// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <Sporos_FlashAttention.hpp>
#include <cstdio>

int main(int argc, char** argv) {
  Kokkos::ScopeGuard const kokkos(argc, argv);
  using Space = Kokkos::DefaultExecutionSpace;
  Space const space;

  // (batch, sequence, heads, head_dim); eight heads of queries share two of keys and values
  using Tensor = Kokkos::View<Sporos::bfloat16****, Kokkos::LayoutRight, Space>;
  Tensor q("q", 2, 512, 8, 64), k("k", 2, 512, 2, 64), v("v", 2, 512, 2, 64), o("o", 2, 512, 8, 64);
  Kokkos::View<float***, Kokkos::LayoutRight, Space> lse("lse", 2, 8, 512);
  Kokkos::deep_copy(space, v, Sporos::bfloat16(1.0f));

  Sporos::FlashAttentionOptions options;
  options.causal = Sporos::CausalMask::bottom_right;
  Sporos::flash_attention_forward(space, q, k, v, options, o, lse);

  // With equal scores a query averages the values that it sees.
  auto const result = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, o);
  std::printf("o = %g\n", double(result(1, 511, 7, 63)));
  return double(result(1, 511, 7, 63)) == 1.0 ? 0 : 1;
}
