// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

#include "EmulatedAttention.hpp"
#include "tile/Sporos_Arch_EmulatedMfma.hpp"
#include "tile/Sporos_Arch_EmulatedSm80.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Sm80 = EmulatedAttention<Arch::Emulated<Arch::Sm80>, PlainScores, 128, 64, 128, 256>;
using Sm80SmallScratch = EmulatedAttention<Arch::Emulated<Arch::Sm80SmallScratch>, PlainScores, 128, 128>;
using Gfx942 = EmulatedAttention<Arch::Emulated<Arch::Gfx942>, PlainScores, 128, 64, 128, 256>;
using Gfx90a = EmulatedAttention<Arch::Emulated<Arch::Gfx90a>, PlainScores, 128, 64>;

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

TEMPLATE_TEST_CASE("features of flash attention on emulated matrix instructions are as good as plain",
                   "[attention][warpmma]", Sm80, Gfx942, Gfx90a) {
  TestType::template require_as_good_as_plain<float16>(attention_feature_cases);
  TestType::template require_as_good_as_plain<bfloat16>(attention_hard_cases);
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

/// Which of these waits, commits or barriers, counted in a warp, the emulator misses when they are left out
template <class Attention>
std::vector<int> shown(AttentionCase const& shape, int Emulation::Adversary::* forgotten,
                       std::vector<int> const& candidates, bool backward = false) {
  AttentionProblem<bfloat16> problem(shape);
  AttentionReference<bfloat16> const reference(problem);
  std::vector<int> found;
  for (int k : candidates) {
    Emulation::Adversary adversary;
    adversary.*forgotten = k;
    if (mutation_shows<Attention>(shape, reference, adversary, backward)) found.push_back(k);
  }
  return found;
}

using Numbers = std::vector<int>;

Numbers up_to(int last) {
  Numbers all;
  for (int k = 0; k <= last; ++k) all.push_back(k);
  return all;
}

// A sample; the next test has them all.
TEST_CASE("the emulator shows that a wait, commit or barrier of matrix instructions is missing",
          "[attention][warpmma][emulation]") {
  using Adversary = Emulation::Adversary;
  AttentionCase const shape{64, 64, 100};
  CHECK(shown<Sm80>(shape, &Adversary::forgotten_wait, {-1}).empty());
  CHECK(shown<Sm80>(shape, &Adversary::forgotten_wait, {1, 3}) == Numbers{1, 3});
  CHECK(shown<Sm80>(shape, &Adversary::forgotten_commit, {2}) == Numbers{2});
  CHECK(shown<Sm80>(shape, &Adversary::forgotten_barrier, {3}) == Numbers{3});
  CHECK(shown<Gfx942>({64, 64, 200}, &Adversary::forgotten_barrier, {5}) == Numbers{5});
}

// All of them, by hand: it takes a minute. Of forward attention the emulator shows every one but the first wait, commit and
// barrier of D = 128, and barriers 0, 4, 8 and 12 of gfx942; why has been reasoned about, not shown.
TEST_CASE("which missing waits, commits and barriers the emulator shows", "[.mutations]") {
  using Adversary = Emulation::Adversary;
  auto const print = [](char const* what, Numbers const& numbers) {
    std::printf("%s:", what);
    for (int k : numbers) std::printf(" %d", k);
    std::printf("\n");
  };
  AttentionCase const forward{64, 64, 100}, wide{128, 64, 100}, backward{64, 100, 130};
  print("sm_80 forward D 64, waits", shown<Sm80>(forward, &Adversary::forgotten_wait, up_to(7)));
  print("sm_80 forward D 64, commits", shown<Sm80>(forward, &Adversary::forgotten_commit, up_to(7)));
  print("sm_80 forward D 64, barriers", shown<Sm80>(forward, &Adversary::forgotten_barrier, up_to(7)));
  print("sm_80 forward D 128, waits", shown<Sm80>(wide, &Adversary::forgotten_wait, up_to(8)));
  print("sm_80 forward D 128, commits", shown<Sm80>(wide, &Adversary::forgotten_commit, up_to(8)));
  print("sm_80 forward D 128, barriers", shown<Sm80>(wide, &Adversary::forgotten_barrier, up_to(8)));
  print("sm_80 backward D 64, waits", shown<Sm80>(backward, &Adversary::forgotten_wait, up_to(29), true));
  print("sm_80 backward D 64, commits", shown<Sm80>(backward, &Adversary::forgotten_commit, up_to(29), true));
  print("sm_80 backward D 64, barriers", shown<Sm80>(backward, &Adversary::forgotten_barrier, up_to(59), true));
  print("gfx942 forward D 64, barriers", shown<Gfx942>({64, 64, 200}, &Adversary::forgotten_barrier, up_to(17)));
  print("gfx942 backward D 64, barriers", shown<Gfx942>(backward, &Adversary::forgotten_barrier, up_to(59), true));
}

}  // namespace
