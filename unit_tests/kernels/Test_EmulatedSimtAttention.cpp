// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <cstring>
#include <memory>

#include "AttentionCases.hpp"
#include "AttentionReference.hpp"
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_BiasGradientTile.hpp"
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"
#include "impl/Sporos_FlashAttention_Host.hpp"
#include "impl/Sporos_HostLevel.hpp"
#include "tile/Sporos_Arch_EmulatedSimt.hpp"

// The bodies that GPUs run, on a GPU that is emulated: every lane, every barrier, scratch that starts as garbage.
namespace Sporos {
SPOROS_DECLARE_HOST_KERNELS(Impl::FlashAttentionBackwardHostKernels, flash_attention_backward_kernels)
}

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Emulated = Arch::Emulated<Arch::Simt>;
using SimtTeam = Team<Emulated>;

/// kernel(team, scratch) by one team with fresh scratch
template <class Scratch, class Kernel>
void on_one_team(Emulation::Adversary const& adversary, Kernel const& kernel) {
  auto const scratch = std::make_unique<Scratch>();
  std::memset(static_cast<void*>(scratch.get()), adversary.scratch_byte, sizeof(Scratch));
  Emulation::run_team<SimtTeam>(adversary, [&](SimtTeam& team) { kernel(team, *scratch); });
}

/// f(width of the tiles). The shapes of tiles follow from the bytes in a row, so that one type with all widths will do.
template <class T, class F>
void with_width(int head_dim, F const& f) {
  if constexpr (std::is_same_v<T, float>) {
    with_head_dim(head_dim, f);
  } else {
    REQUIRE(head_dim <= 64);
    f(HeadDimOf<64>());
  }
}

template <class T>
void run_forward(AttentionProblem<T>& problem, Emulation::Adversary const& adversary = {}) {
  auto const a = problem.arguments();
  with_width<T>(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Tile = FlashAttentionForwardTile<Emulated, T, HeadDim>;
    for (int head = 0; head < a.batch * a.heads; ++head)
      for (int tile = 0; tile < Tile::tiles(a); ++tile)
        for (int split = 0; split < a.splits; ++split)
          on_one_team<typename Tile::Scratch>(adversary, [&](SimtTeam& team, auto& scratch) {
            Tile(team, scratch).consume({a, head / a.heads, head % a.heads, split}, tile);
          });
  });
  if (a.splits > 1) merge_splits(problem);
}

/// dQ = scale · Σ over slots
template <class T>
void sum_slots(Impl::FlashAttentionBackwardArguments<T> const& b) {
  auto const& a = b.forward;
  for (int i = 0; i < a.batch * a.heads; ++i) {
    FlashAttentionHead<T> const head(a, i / a.heads, i % a.heads);
    for (int query = 0; query < head.queries(); ++query)
      for (int d = 0; d < b.dq.width; ++d) {
        ComputeType<T> sum = 0;
        for (int slot = 0; slot < b.slots; ++slot) sum += head.dq_sums(b, slot).row(query)[d];
        head.of_query_head(b.dq).row(query)[d] = T(a.scale * sum);
      }
  }
}

/// What comes before the tiles is the host's, whose blocks of queries are a multiple of those here.
template <class T>
void run_backward(AttentionProblem<T>& problem, int slots, Emulation::Adversary const& adversary = {}) {
  Impl::FlashAttentionBackwardHostKernel<T> const host =
      Impl::flash_attention_backward_kernels(Impl::best_host_level());
  auto const a = problem.arguments();
  auto const tiling = host.tiling(a);
  auto const b = problem.backward_arguments(slots, tiling.queries, tiling.head_dim);
  int const blocks = b.padded_queries / b.query_block;
  for (int head = 0; head < a.batch * a.heads; ++head)
    for (int block = 0; block < blocks; ++block) host.prepare(b, head / a.heads, head % a.heads, block);
  with_width<T>(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
    using Tile = FlashAttentionBackwardTile<Emulated, T, HeadDim>;
    REQUIRE(tiling.queries % Tile::queries == 0);
    REQUIRE(tiling.head_dim == HeadDim);
    for (int head = 0; head < a.batch * a.kv_heads; ++head)
      for (int slot = 0; slot < slots; ++slot)
        on_one_team<typename Tile::Scratch>(adversary, [&](SimtTeam& team, auto& scratch) {
          Tile(team, scratch).consume(b, head / a.kv_heads, head % a.kv_heads, slot);
        });
    if (!b.d_bias.data) return;
    using BiasTile = FlashAttentionBiasGradientTile<Emulated, T, HeadDim>;
    for (int head = 0; head < b.bias_batch * b.bias_heads; ++head)
      for (int tile = 0; tile < BiasTile::tiles(a); ++tile)
        on_one_team<typename BiasTile::Scratch>(adversary, [&](SimtTeam& team, auto& scratch) {
          BiasTile(team, scratch).consume(b, head / b.bias_heads, head % b.bias_heads, tile);
        });
  });
  sum_slots(b);
  sum_sink_gradient(problem, b);
}

/// slots 1 and 3 of check_attention() are seeds 0 and 1
template <class T>
void run(AttentionProblem<T>& problem, int slots) {
  Emulation::Adversary const adversary{.seed = unsigned(slots / 2)};
  run_forward(problem, adversary);
  run_backward(problem, slots, adversary);
}

template <class T>
void require_as_good_as_plain(AttentionCase const& shape) {
  check_attention<T>(shape, run<T>);
}

// 1: a lone pair; 17: less than a block; 64: whole blocks; 129: one row in the last.
// Jumps: 2 stays below the bound of the optimistic softmax; 150 exceeds any exponent of a float.
TEMPLATE_TEST_CASE("flash attention on an emulated GPU is as good as plain", "[attention][simt]", double, float,
                   bfloat16) {
  int const length = GENERATE(1, 17, 64, 129);
  auto const causal = GENERATE(CausalMask::none, CausalMask::bottom_right);
  require_as_good_as_plain<TestType>({64, length, length, causal, length == 129 ? 150.0f : length == 64 ? 2.0f : 0.0f});
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
  require_as_good_as_plain<TestType>(shape);
}

TEST_CASE("flash attention of wide heads on an emulated GPU is as good as plain", "[attention][simt]") {
  auto const shape = GENERATE(AttentionCase{128, 40, 70, CausalMask::top_left}, AttentionCase{200, 20, 36});
  require_as_good_as_plain<float>(shape);
}

TEMPLATE_TEST_CASE("every feature of flash attention on an emulated GPU is as good as plain", "[attention][simt]",
                   float, float16) {
  check_attention<TestType>(attention_feature_cases, run<TestType>);
}

TEST_CASE("the hard cases of flash attention on an emulated GPU are as good as plain", "[attention][simt]") {
  check_attention<float>(attention_hard_cases, run<float>);
}

// In the backward pass 0 · NaN is NaN, whatever the mask says.
TEST_CASE("on an emulated GPU a NaN in a key reaches exactly the queries that see it", "[attention][simt]") {
  AttentionCase const shape{
      .head_dim = 64, .queries = 80, .keys = 80, .causal = CausalMask::bottom_right, .nan_key = 40};
  AttentionProblem<float> problem(shape);
  AttentionReference<float> const reference(problem);
  run_forward(problem);
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
  auto const goes_wrong = [&](Emulation::Adversary adversary) {
    AttentionProblem<float> run(shape);
    run_forward(run, adversary);
    return !(reference.errors(run).o <= 2);
  };
  auto const shown = [&](int barrier) {
    for (unsigned seed = 0; seed < 8; ++seed)
      for (auto byte : {Emulation::nan_byte, Emulation::finite_byte})
        if (goes_wrong({.seed = seed, .forgotten_barrier = barrier, .scratch_byte = byte})) return true;
    return false;
  };
  CHECK_FALSE(shown(-1));
  for (int barrier : {3, 4, 5, 7, 9, 11, 12, 13}) {
    CAPTURE(barrier);
    CHECK(shown(barrier));
  }
}

}  // namespace
