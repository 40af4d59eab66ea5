// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>

#include "EmulatedAttention.hpp"
#include "tile/Sporos_Arch_EmulatedSimt.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Emulated = Arch::Emulated<Arch::Simt>;

// The shapes of tiles follow from the bytes in a row, so that one type with all widths will do.
using Attention = EmulatedAttention<Emulated, 256, 64>;
using WideAttention = EmulatedAttention<Emulated, 256, 64, 128, 256>;

// 1: a lone pair; 17: less than a block; 64: whole blocks; 129: one row in the last.
// Jumps: 2 stays below the bound of the optimistic softmax; 150 exceeds any exponent of a float.
TEMPLATE_TEST_CASE("flash attention on an emulated GPU is as good as plain", "[attention][simt]", double, float,
                   bfloat16) {
  int const length = GENERATE(1, 17, 64, 129);
  auto const causal = GENERATE(CausalMask::none, CausalMask::bottom_right);
  Attention::require_as_good_as_plain<TestType>({64, length, length, causal,
                                                 length == 129  ? 150.0f
                                                 : length == 64 ? 2.0f
                                                                : 0.0f});
}

TEMPLATE_TEST_CASE("flash attention of other shapes on an emulated GPU is as good as plain", "[attention][simt]",
                   double, float, bfloat16) {
  auto const shape =
      GENERATE(AttentionCase{64, 129, 64, CausalMask::bottom_right},  // rows without a key
               AttentionCase{64, 70, 0},
               AttentionCase{.head_dim = 32, .queries = 50, .keys = 80, .batch = 2, .heads = 6, .kv_heads = 2},
               AttentionCase{.head_dim = 40,
                             .queries = 60,
                             .keys = 90,
                             .causal = CausalMask::bottom_right,
                             .heads = 2,
                             .kv_heads = 2,
                             .dropout = 0.3});
  Attention::require_as_good_as_plain<TestType>(shape);
}

TEST_CASE("flash attention of wide heads on an emulated GPU is as good as plain", "[attention][simt]") {
  auto const shape = GENERATE(AttentionCase{128, 40, 70, CausalMask::top_left}, AttentionCase{200, 20, 36});
  WideAttention::require_as_good_as_plain<float>(shape);
}

// In the backward pass 0 · NaN is NaN, whatever the mask says.
TEST_CASE("on an emulated GPU a NaN in a key reaches exactly the queries that see it", "[attention][simt]") {
  AttentionCase const shape{
      .head_dim = 64, .queries = 80, .keys = 80, .causal = CausalMask::bottom_right, .nan_key = 40};
  AttentionProblem<float> problem(shape);
  AttentionReference<float> const reference(problem);
  Attention::run_forward(problem);
  CHECK(reference.errors(problem).o <= 2);
  CHECK(reference.errors(problem).lse <= 2);
  CHECK(std::isnan(problem.lse[40]));
  CHECK_FALSE(std::isnan(problem.lse[39]));
}

// Three key blocks. Barriers 2 w and 2 w + 1 are those of wait w, of Q, K2, K1, V2, K0, V1, V0: the first lets the team
// finish with the buffer's last block, the second completes the new one. Others back up the rest: 0, 2 and 6 come before
// a buffer's first block; 1, 8 and 10 have a whole other wait between what they order.
// A NaN score alone would not show them all: a row that meets one is computed again, perhaps when the copy is complete.
TEST_CASE("every barrier of attention is needed, and the emulator shows it", "[attention][simt][emulation]") {
  AttentionCase const shape{64, 64, 96};
  AttentionProblem<float> problem(shape);
  AttentionReference<float> const reference(problem);
  auto const shown = [&](int barrier) {
    return mutation_shows<Attention>(shape, reference, {.forgotten_barrier = barrier});
  };
  CHECK_FALSE(shown(-1));
  for (int barrier : {3, 4, 5, 7, 9, 11, 12, 13}) {
    CAPTURE(barrier);
    CHECK(shown(barrier));
  }
}

}  // namespace
