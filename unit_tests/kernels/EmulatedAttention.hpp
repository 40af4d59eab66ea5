// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_EMULATEDATTENTION_HPP
#define SPOROS_TESTING_EMULATEDATTENTION_HPP

#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <memory>

#include "AttentionReference.hpp"
#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
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
/// names those that differ; and the widest that has backward tiles.
template <class Emulated, int widest_backward, int... Widths>
class EmulatedAttention {
  using EmulatedTeam = Team<Emulated>;

 public:
  template <class T>
  static void run_forward(AttentionProblem<T>& problem, Emulation::Adversary const& adversary = {}) {
    auto const a = problem.arguments();
    with_width(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
      using Tile = FlashAttentionForwardTile<Emulated, T, HeadDim>;
      for (int head = 0; head < a.batch * a.heads; ++head)
        for (int tile = 0; tile < Tile::tiles(a); ++tile)
          on_one_team<typename Tile::Scratch>(adversary, [&](EmulatedTeam& team, auto& scratch) {
            Tile(team, scratch).consume({a, head / a.heads, head % a.heads}, tile);
          });
    });
  }

  /// What comes before the tiles is the host's, whose blocks of queries are a multiple of those here.
  template <class T>
  static void run_backward(AttentionProblem<T>& problem, int slots, Emulation::Adversary const& adversary = {}) {
    Impl::FlashAttentionBackwardHostKernel<T> const host =
        Impl::flash_attention_backward_kernels(Impl::best_host_level());
    auto const a = problem.arguments();
    auto const tiling = host.tiling(a);
    int const blocks = (a.queries + tiling.queries - 1) / tiling.queries;
    auto const b = problem.backward_arguments(slots, blocks * tiling.queries, tiling.head_dim);
    for (int head = 0; head < a.batch * a.heads; ++head)
      for (int block = 0; block < blocks; ++block) host.prepare(b, head / a.heads, head % a.heads, block);
    with_width(a.head_dim, [&]<int HeadDim>(HeadDimOf<HeadDim>) {
      if constexpr (HeadDim <= widest_backward) {
        using Tile = FlashAttentionBackwardTile<Emulated, T, HeadDim>;
        REQUIRE(tiling.queries % Tile::queries == 0);
        REQUIRE(tiling.head_dim == HeadDim);
        for (int head = 0; head < a.batch * a.kv_heads; ++head)
          for (int slot = 0; slot < slots; ++slot)
            on_one_team<typename Tile::Scratch>(adversary, [&](EmulatedTeam& team, auto& scratch) {
              Tile(team, scratch).consume(b, head / a.kv_heads, head % a.kv_heads, slot);
            });
      }
    });
    sum_slots(b);
  }

  /// Forward and backward; with heads that are too wide for the backward tiles, forward alone
  template <class T>
  static void require_as_good_as_plain(AttentionCase const& shape) {
    INFO(text_of(shape));
    AttentionProblem<T> problem(shape);
    AttentionReference<T> const reference(problem);
    for (unsigned seed : {0, 1}) {
      CAPTURE(seed);
      AttentionProblem<T> run(shape);
      run_forward(run, {.seed = seed});
      if (shape.head_dim <= widest_backward) run_backward(run, 1 + 2 * int(seed), {.seed = seed});
      AttentionErrors const errors = reference.errors(run);
      REQUIRE(errors.o <= 2);
      REQUIRE(errors.lse <= 2);
      if (shape.head_dim > widest_backward) continue;
      REQUIRE(errors.dq <= 2);
      REQUIRE(errors.dk <= 2);
      REQUIRE(errors.dv <= 2);
    }
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

  /// dQ = scale · Σ over slots
  template <class T>
  static void sum_slots(Impl::FlashAttentionBackwardArguments<T> const& b) {
    auto const& a = b.forward;
    std::int64_t const rows = std::int64_t(a.batch) * a.heads * b.padded_queries;
    for (int head = 0; head < a.batch * a.heads; ++head)
      for (int query = 0; query < a.queries; ++query)
        for (int d = 0; d < a.head_dim; ++d) {
          std::int64_t const row = std::int64_t(head) * b.padded_queries + query;
          ComputeType<T> sum = 0;
          for (int slot = 0; slot < b.slots; ++slot) sum += b.dq_sums[(slot * rows + row) * b.padded_head_dim + d];
          b.dq.data[head / a.heads * b.dq.batch_stride + query * b.dq.sequence_stride +
                    head % a.heads * b.dq.head_stride + d] = T(a.scale * sum);
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
