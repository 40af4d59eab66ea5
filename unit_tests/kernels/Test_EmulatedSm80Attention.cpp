// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/generators/catch_generators.hpp>
#include <cmath>

#include "EmulatedAttention.hpp"
#include "tile/Sporos_Arch_EmulatedSm80.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Attention = EmulatedAttention<Arch::Emulated<Arch::Sm80>, 64, 128, 256>;

// 1: a lone pair; 17: less than a block; 129: one row in the last; 200: several blocks.
// Jumps: 2 stays below the bound of the optimistic softmax; 150 exceeds any exponent of a float.
TEST_CASE("flash attention on an emulated sm_80 is as good as plain", "[attention][sm80]") {
  auto const shape = GENERATE(
      AttentionCase{64, 1, 1}, AttentionCase{64, 17, 17, CausalMask::bottom_right},
      AttentionCase{64, 64, 64, CausalMask::none, 2}, AttentionCase{64, 129, 129, CausalMask::bottom_right, 150},
      AttentionCase{64, 129, 200, CausalMask::none, 150},
      AttentionCase{64, 129, 64, CausalMask::bottom_right},  // rows without a key
      AttentionCase{64, 70, 0},
      AttentionCase{.head_dim = 32, .queries = 50, .keys = 80, .batch = 2, .heads = 6, .kv_heads = 2},
      AttentionCase{.head_dim = 40,
                    .queries = 60,
                    .keys = 90,
                    .causal = CausalMask::bottom_right,
                    .heads = 2,
                    .kv_heads = 2,
                    .dropout = 0.3},
      AttentionCase{128, 140, 130, CausalMask::top_left, 150}, AttentionCase{80, 40, 70},
      AttentionCase{256, 70, 100, CausalMask::bottom_right}, AttentionCase{200, 20, 36});
  Attention::require_as_good_as_plain<bfloat16>(shape);
}

TEST_CASE("on an emulated sm_80 a NaN in a key reaches exactly the queries that see it", "[attention][sm80]") {
  AttentionCase const shape{
      .head_dim = 64, .queries = 80, .keys = 80, .causal = CausalMask::bottom_right, .nan_key = 40};
  AttentionProblem<bfloat16> problem(shape);
  AttentionReference<bfloat16> const reference(problem);
  Attention::run_forward(problem);
  CHECK(reference.errors(problem).o <= 2);
  CHECK(reference.errors(problem).lse <= 2);
  CHECK(std::isnan(problem.lse[40]));
  CHECK_FALSE(std::isnan(problem.lse[39]));
}

}  // namespace
