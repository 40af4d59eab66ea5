// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_EMULATEDATTENTION_HPP
#define SPOROS_TESTING_EMULATEDATTENTION_HPP

#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "AttentionCases.hpp"
#include "AttentionReference.hpp"
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_BiasGradientTile.hpp"
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"
#include "impl/Sporos_FlashAttention_HeadDim.hpp"
#include "impl/Sporos_FlashAttention_Host.hpp"
#include "impl/Sporos_HostLevel.hpp"
#include "tile/Sporos_Emulation.hpp"

// The bodies that GPUs run, on a GPU that is emulated: every lane, every barrier, scratch that starts as garbage.
namespace Sporos {
SPOROS_DECLARE_HOST_KERNELS(Impl::FlashAttentionBackwardHostKernels, flash_attention_backward_kernels)
}

namespace Sporos::Testing {

/// Runs attention on the emulated architecture, with tiles of the given widths of heads: each is compiled, so that a test
/// names those that differ; and the widest that has backward tiles. Scores are what its kernels can do with scores.
template <class Emulated, class Scores, int widest_backward, int... Widths>
class EmulatedAttention {
  using EmulatedTeam = Team<Emulated>;

 public:
  template <class T>
  static void run_forward(AttentionProblem<T>& problem, Emulation::Adversary const& adversary = {}) {
    auto const a = problem.arguments();
    with_width(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
      using Tile = FlashAttentionForwardTile<Emulated, T, HeadDim, Scores>;
      for (int head = 0; head < a.batch * a.heads; ++head)
        for (int tile = 0; tile < Tile::tiles(a); ++tile)
          for (int split = 0; split < a.splits; ++split)
            on_one_team<typename Tile::Scratch>(adversary, [&](EmulatedTeam& team, auto& scratch) {
              Tile(team, scratch).consume({a, head / a.heads, head % a.heads, split}, tile);
            });
    });
    if (a.splits > 1) merge_splits(problem);
  }

  /// What comes before the tiles is the host's, whose blocks of queries are a multiple of those here.
  template <class T>
  static void run_backward(AttentionProblem<T>& problem, int slots, Emulation::Adversary const& adversary = {}) {
    Impl::FlashAttentionBackwardHostKernel<T> const host =
        Impl::flash_attention_backward_kernels(Impl::best_host_level());
    auto const a = problem.arguments();
    auto const tiling = host.tiling(a);
    auto const b = problem.backward_arguments(slots, tiling.queries, tiling.head_dim);
    int const blocks = b.padded_queries / b.query_block;
    for (int head = 0; head < a.batch * a.heads; ++head)
      for (int block = 0; block < blocks; ++block) host.prepare(b, head / a.heads, head % a.heads, block);
    with_width(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
      if constexpr (HeadDim <= widest_backward) {
        using Tile = FlashAttentionBackwardTile<Emulated, T, HeadDim, Scores>;
        REQUIRE(tiling.queries % Tile::queries == 0);
        REQUIRE(tiling.head_dim == HeadDim);
        for (int head = 0; head < a.batch * a.kv_heads; ++head)
          for (int slot = 0; slot < slots; ++slot)
            on_one_team<typename Tile::Scratch>(adversary, [&](EmulatedTeam& team, auto& scratch) {
              Tile(team, scratch).consume(b, head / a.kv_heads, head % a.kv_heads, slot);
            });
        if constexpr (std::is_same_v<Scores, AnyScores>) {
          if (b.d_bias.data) bias_gradient<T, HeadDim>(b, adversary);
        }
      }
    });
    sum_slots(b);
    sum_sink_gradient(problem, b);
  }

  /// Forward and backward, with several slots and seeds. With heads that are too wide for the backward tiles, forward alone
  template <class T>
  static void require_as_good_as_plain(AttentionCase const& shape) {
    if (shape.head_dim <= widest_backward) {
      check_attention<T>(shape, [](AttentionProblem<T>& problem, int slots) {
        Emulation::Adversary const adversary{.seed = unsigned(slots / 2)};
        run_forward(problem, adversary);
        run_backward(problem, slots, adversary);
      });
      return;
    }
    INFO(text_of(shape));
    AttentionProblem<T> problem(shape);
    AttentionReference<T> const reference(problem);
    for (unsigned seed : {0, 1}) {
      CAPTURE(seed);
      AttentionProblem<T> run(shape);
      run_forward(run, {.seed = seed});
      AttentionErrors const errors = reference.errors(run);
      REQUIRE(errors.o <= 2);
      REQUIRE(errors.lse <= 2);
    }
  }

  /// Those of the cases whose scores the kernels take
  template <class T>
  static void require_as_good_as_plain(std::vector<AttentionCase> const& shapes) {
    int run = 0;
    for (AttentionCase const& shape : shapes) {
      bool const plain = shape.softcap == 0 && !shape.alibi && shape.bias_heads == 0;
      if (!plain && std::is_same_v<Scores, PlainScores>) continue;
      require_as_good_as_plain<T>(shape);
      ++run;
    }
    REQUIRE(run > 0);
  }

 private:
  template <class F>
  static void with_width(int head_dim, F const& f) {
    int const width = with_head_dim(head_dim, [](int width) { return width; });
    bool const found = ((width == Widths && (f(HeadDimOf<Widths>()), true)) || ...);
    REQUIRE(found);
  }

  /// kernel(team, scratch) by one team with fresh scratch
  template <class Scratch, class Kernel>
  static void on_one_team(Emulation::Adversary const& adversary, Kernel const& kernel) {
    auto const scratch = std::make_unique<Scratch>();
    std::memset(static_cast<void*>(scratch.get()), adversary.scratch_byte, sizeof(Scratch));
    Emulation::run_team<EmulatedTeam>(adversary, [&](EmulatedTeam& team) { kernel(team, *scratch); });
  }

  template <class T, int HeadDim>
  static void bias_gradient(Impl::FlashAttentionBackwardArguments<T> const& b, Emulation::Adversary const& adversary) {
    using Tile = FlashAttentionBiasGradientTile<Emulated, T, HeadDim>;
    for (int head = 0; head < b.bias_batch * b.bias_heads; ++head)
      for (int tile = 0; tile < Tile::tiles(b.forward); ++tile)
        on_one_team<typename Tile::Scratch>(adversary, [&](EmulatedTeam& team, auto& scratch) {
          Tile(team, scratch).consume(b, head / b.bias_heads, head % b.bias_heads, tile);
        });
  }

  /// dQ = scale · Σ over slots
  template <class T>
  static void sum_slots(Impl::FlashAttentionBackwardArguments<T> const& b) {
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
};

/// Whether some seed and some initial scratch make attention go wrong, or hang
template <class Attention, class T>
bool mutation_shows(AttentionCase const& shape, AttentionReference<T> const& reference, Emulation::Adversary adversary,
                    bool backward = false) {
  for (unsigned seed = 0; seed < 8; ++seed)
    for (auto byte : {Emulation::nan_byte, Emulation::finite_byte}) {
      adversary.seed = seed;
      adversary.scratch_byte = byte;
      AttentionProblem<T> run(shape);
      if (backward) {
        Attention::run_forward(run);
        Attention::run_backward(run, 1, adversary);
        auto const errors = reference.errors(run);
        if (!(errors.dq <= 2 && errors.dk <= 2 && errors.dv <= 2)) return true;
      } else {
        Attention::run_forward(run, adversary);
        if (!(reference.errors(run).o <= 2)) return true;
      }
    }
  return false;
}

}  // namespace Sporos::Testing

#endif
