// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <vector>

#include "EmulatedAttention.hpp"
#include "tile/Sporos_Arch_EmulatedMfma.hpp"
#include "tile/Sporos_Arch_EmulatedSm80.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Sm80 = EmulatedAttention<Arch::Emulated<Arch::Sm80>, 128, 64, 128, 256>;
using Sm80SmallScratch = EmulatedAttention<Arch::Emulated<Arch::Sm80SmallScratch>, 128, 128>;
using Gfx942 = EmulatedAttention<Arch::Emulated<Arch::Gfx942>, 128, 64, 128, 256>;
using Gfx90a = EmulatedAttention<Arch::Emulated<Arch::Gfx90a>, 128, 64>;

// 1: a lone pair; 17: less than a block; 129: one row in the last; 200: several blocks.
// Jumps: 2 stays below the bound of the optimistic softmax; 150 exceeds any exponent of a float.
AttentionCase const narrow_heads[] = {
    {64, 1, 1},
    {64, 17, 17, CausalMask::bottom_right},
    {64, 64, 64, CausalMask::none, 2},
    {64, 129, 129, CausalMask::bottom_right, 150},
    {64, 129, 200, CausalMask::none, 150},
    {64, 129, 64, CausalMask::bottom_right},  // rows without a key
    {64, 70, 0},
    {.head_dim = 32, .queries = 50, .keys = 80, .batch = 2, .heads = 6, .kv_heads = 2},
    {.head_dim = 40,
     .queries = 60,
     .keys = 90,
     .causal = CausalMask::bottom_right,
     .heads = 2,
     .kv_heads = 2,
     .dropout = 0.3},
};
AttentionCase const wide_heads[] = {{128, 140, 130, CausalMask::top_left, 150}, {80, 40, 70}};
AttentionCase const widest_heads[] = {{256, 70, 100, CausalMask::bottom_right}, {200, 20, 36}};

TEMPLATE_TEST_CASE("flash attention on emulated matrix instructions is as good as plain", "[attention][warpmma]", Sm80,
                   Gfx942, Gfx90a) {
  for (auto const& shape : narrow_heads) TestType::template require_as_good_as_plain<bfloat16>(shape);
}

TEMPLATE_TEST_CASE("flash attention of wide heads on emulated matrix instructions is as good as plain",
                   "[attention][warpmma]", Sm80, Sm80SmallScratch, Gfx942) {
  for (auto const& shape : wide_heads) TestType::template require_as_good_as_plain<bfloat16>(shape);
}

TEMPLATE_TEST_CASE("flash attention of the widest heads on emulated matrix instructions is as good as plain",
                   "[attention][warpmma]", Sm80, Gfx942) {
  for (auto const& shape : widest_heads) TestType::template require_as_good_as_plain<bfloat16>(shape);
}

TEMPLATE_TEST_CASE("with emulated matrix instructions a NaN in a key reaches exactly the queries that see it",
                   "[attention][warpmma]", Sm80, Gfx942) {
  AttentionCase const shape{
      .head_dim = 64, .queries = 80, .keys = 80, .causal = CausalMask::bottom_right, .nan_key = 40};
  AttentionProblem<bfloat16> problem(shape);
  AttentionReference<bfloat16> const reference(problem);
  TestType::run_forward(problem);
  CHECK(reference.errors(problem).o <= 2);
  CHECK(reference.errors(problem).lse <= 2);
  CHECK(std::isnan(problem.lse[40]));
  CHECK_FALSE(std::isnan(problem.lse[39]));
}

}  // namespace
