// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_BACKWARDTILE_HPP
#define SPOROS_FLASHATTENTION_BACKWARDTILE_HPP

#include "impl/Sporos_FlashAttention_Problem.hpp"
#include "impl/Sporos_FlashAttention_Scores.hpp"
#include "impl/Sporos_FlashAttention_TileShape.hpp"
#include "impl/Sporos_OnlineSoftmax.hpp"
#include "tile/Sporos_Tile.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// Flash attention backward for the key tiles of one slot of one head of K and V, the same text for every architecture:
///
///     P = exp(S − LSE),   dV = (Z ∘ P)ᵀ dO,   dS = P ∘ (Z ∘ dO Vᵀ − δ),   dK = scale · dSᵀ Q,   dQ = scale · dS K
///
/// with S = scale · Q Kᵀ and what AnyScores says, whose derivative dS is multiplied by. Algorithm 2 of FlashAttention-2
/// (arXiv:2307.08691): keys stay, queries stream past; δ = Σ dO ∘ O, less the gradient of LSE, comes from a pass before.
/// Fragments stand transposed, keys are their rows: so P and dS are left factors as they lie. Query heads that share K and V
/// follow one another over the same dK and dV, without atomics: the result is the same bit for bit in every run, unless
/// shared_sums lets all slots add to one dQ.
template <class Arch, class T, int HeadDim, class Scores = AnyScores,
          class Shape = FlashAttentionBackwardShape<Arch, T, HeadDim>>
  requires TileArchitecture<Arch, T>
class FlashAttentionBackwardTile {
 public:
  using C = ComputeType<T>;

  static constexpr int keys = Shape::keys;
  static constexpr int queries = Shape::queries;

  using KeyTile = Pipeline<Arch, T, Use::left | Use::left_transposed, keys, HeadDim, 1>;
  using ValueTile = Pipeline<Arch, T, Use::left, keys, HeadDim, 1>;
  using QueryBlocks = Pipeline<Arch, T, Use::right_transposed | Use::right, queries, HeadDim, Shape::stages>;
  using RowSums = Pipeline<Arch, C, Use::column_values, queries, 1, Shape::stages>;
  using Probabilities = Operand<Arch, T, Use::left, keys, queries>;
  using ScoreGradients = Operand<Arch, T, Use::left | Use::right, keys, queries>;

  struct Scratch {
    typename KeyTile::Storage keys;
    typename ValueTile::Storage values;
    typename QueryBlocks::Storage queries;
    typename QueryBlocks::Storage output_gradients;
    typename RowSums::Storage lse;
    typename RowSums::Storage delta;
    [[no_unique_address]] typename Probabilities::Storage probabilities;
    [[no_unique_address]] typename ScoreGradients::Storage score_gradients;
  };

  SPOROS_FUNCTION FlashAttentionBackwardTile(Team<Arch>& team, Scratch& scratch)
      : m_team(team),
        m_scratch(scratch),
        m_keys(team, scratch.keys),
        m_values(team, scratch.values),
        m_queries(team, scratch.queries),
        m_output_gradients(team, scratch.output_gradients),
        m_lse(team, scratch.lse),
        m_delta(team, scratch.delta) {}

  SPOROS_FUNCTION static int tiles(FlashAttentionArguments<T> const& arguments) {
    return arguments.keys / keys + (arguments.keys % keys != 0);
  }

  /// The producer's role, see FlashAttentionForwardTile
  SPOROS_FUNCTION void produce(FlashAttentionBackwardArguments<T> const& arguments, int batch, int kv_head, int slot) {
    for_each_tile(arguments, batch, slot, [&](int tile) {
      open_tile(arguments, batch, kv_head, tile);
      m_keys.load(tile);
      m_values.load(tile);
      for_each_query_head(arguments, kv_head, [&](int head) {
        BlockRange const blocks = open_queries(arguments, batch, head, tile);
        for (int n = blocks.end - 1; n >= blocks.begin; --n) {
          m_queries.load(n);
          m_lse.load(n);
          m_output_gradients.load(n);
          m_delta.load(n);
        }
      });
    });
  }

  /// The consumer's role: dK and dV of the slot's tiles, and their share of dQ.
  SPOROS_FUNCTION void consume(FlashAttentionBackwardArguments<T> const& arguments, int batch, int kv_head, int slot) {
    for_each_tile(arguments, batch, slot, [&](int tile) {
      open_tile(arguments, batch, kv_head, tile);
      m_keys.prefetch(tile);
      m_values.prefetch(tile);
      auto const K = m_keys.wait(tile);
      auto const V = m_values.wait(tile);

      Fragment<Arch, C, keys, HeadDim> dK(m_team), dV(m_team);
      fill(dK, C(0));
      fill(dV, C(0));
      for_each_query_head(arguments, kv_head,
                          [&](int head) { accumulate(arguments, batch, head, tile, slot, K, V, dK, dV); });
      m_keys.release(tile);
      m_values.release(tile);

      FlashAttentionHead<T> const head(arguments.forward, batch, kv_head * group(arguments));
      C const scale = head.scale();
      C const keep_scale = head.keep_scale();
      map(dK, [=](int, int, C x) { return x * scale; });
      if (head.drops()) map(dV, [=](int, int, C x) { return x * keep_scale; });
      store_rows(m_team, head.of_kv_head(arguments.dk), tile * keys, dK);
      store_rows(m_team, head.of_kv_head(arguments.dv), tile * keys, dV);
    });
  }

 private:
  /// What the queries of one head add to dK and dV of a tile, and the tile to their dQ
  template <class KeyHandle, class ValueHandle>
  SPOROS_FUNCTION void accumulate(FlashAttentionBackwardArguments<T> const& arguments, int batch, int query_head,
                                  int tile, int slot, KeyHandle const& K, ValueHandle const& V,
                                  Fragment<Arch, C, keys, HeadDim>& dK, Fragment<Arch, C, keys, HeadDim>& dV) {
    FlashAttentionHead<T> const head(arguments.forward, batch, query_head);
    BlockRange const blocks = open_queries(arguments, batch, query_head, tile);
    int const first_key = tile * keys;
    BlockRange const unmasked = head.unmasked_query_blocks(first_key, keys, queries);
    Matrix<C> const dq_sums = head.dq_sums(arguments, slot);

    Fragment<Arch, C, keys, queries> S(m_team), dP(m_team);
    Probabilities P(m_team, m_scratch.probabilities);
    ScoreGradients dS(m_team, m_scratch.score_gradients);
    ColumnSums<Arch, C, HeadDim, queries> dQ(m_team);

    prefetch(blocks.end - 1);
    for (int n = blocks.end - 1; n >= blocks.begin; --n) {
      Band const band = head.band_of_keys(first_key, n * queries);
      auto const Q = m_queries.wait(n);
      auto const lse = m_lse.wait(n);
      mma_abt(S, K, Q, band);
      auto const dO = m_output_gradients.wait(n);
      auto const delta = m_delta.wait(n);
      mma_abt(dP, V, dO, band);
      prefetch(n - 1);

      join<1>(S);
      probabilities<Scores>(S, head, first_key, n * queries, unmasked.contains(n), lse);
      // Dropout marks P, which is complete only when dS is.
      bool const early = Shape::issues_early && !head.drops();
      if (early) {
        convert(P, S);
        mma_ab(dV, P, dO, band);
        join<1>(dP);
      } else {
        join<0>(dP);
      }
      score_gradients<Scores>(dP, S, head, first_key, n * queries, lse, delta);
      if (!early) {
        convert(P, S);
        mma_ab(dV, P, dO, band);
      }
      convert(dS, dP);

      dQ.open(dq_sums, n * queries);
      mma_atb(dQ, K, dS, band);
      mma_ab(dK, dS, Q, band);
      join<1>(dV, dQ, P);
      m_output_gradients.release(n);
      m_delta.release(n);
      dQ.add();
      join<0>(dK, dS);
      m_queries.release(n);
      m_lse.release(n);
    }
    if (blocks.end > blocks.begin) finish(dQ, K, dS);
  }

  SPOROS_FUNCTION void prefetch(int n) {
    m_queries.prefetch(n);
    m_lse.prefetch(n);
    m_output_gradients.prefetch(n);
    m_delta.prefetch(n);
  }

  SPOROS_FUNCTION void open_tile(FlashAttentionBackwardArguments<T> const& arguments, int batch, int kv_head,
                                 int tile) {
    FlashAttentionHead<T> const head(arguments.forward, batch, kv_head * group(arguments));
    m_keys.open(head.k(), {tile, tile + 1});
    m_values.open(head.v(), {tile, tile + 1});
  }

  SPOROS_FUNCTION BlockRange open_queries(FlashAttentionBackwardArguments<T> const& arguments, int batch,
                                          int query_head, int tile) {
    FlashAttentionHead<T> const head(arguments.forward, batch, query_head);
    BlockRange const blocks = head.visible_query_blocks(tile * keys, keys, queries);
    m_queries.open(head.q(), blocks);
    m_output_gradients.open(head.of_query_head(arguments.d_o), blocks);
    m_lse.open(head.padded_rows(arguments, arguments.lse_log2), blocks);
    m_delta.open(head.padded_rows(arguments, arguments.delta), blocks);
    return blocks;
  }

  SPOROS_FUNCTION static int group(FlashAttentionBackwardArguments<T> const& arguments) {
    return arguments.forward.heads / arguments.forward.kv_heads;
  }

  template <class F>
  SPOROS_FUNCTION static void for_each_query_head(FlashAttentionBackwardArguments<T> const& arguments, int kv_head,
                                                  F const& f) {
    int const heads = group(arguments);
    for (int i = 0; i < heads; ++i) f(kv_head * heads + i);
  }

  /// To and fro over the slots, because causal tiles differ in cost
  template <class F>
  SPOROS_FUNCTION static void for_each_tile(FlashAttentionBackwardArguments<T> const& arguments, int batch, int slot,
                                            F const& f) {
    int const rows = FlashAttentionHead<T>(arguments.forward, batch, 0).keys();
    int const end = rows / keys + (rows % keys != 0);
    for (int round = 0; round * arguments.slots < end; ++round) {
      int const tile = round * arguments.slots + (round % 2 == 0 ? slot : arguments.slots - 1 - slot);
      if (tile < end) f(tile);
    }
  }

  Team<Arch>& m_team;
  Scratch& m_scratch;
  KeyTile m_keys;
  ValueTile m_values;
  QueryBlocks m_queries;
  QueryBlocks m_output_gradients;
  RowSums m_lse;
  RowSums m_delta;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
