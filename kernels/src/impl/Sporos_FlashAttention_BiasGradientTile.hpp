// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_BIASGRADIENTTILE_HPP
#define SPOROS_FLASHATTENTION_BIASGRADIENTTILE_HPP

#include "impl/Sporos_FlashAttention_Problem.hpp"
#include "impl/Sporos_FlashAttention_Scores.hpp"
#include "impl/Sporos_FlashAttention_TileShape.hpp"
#include "impl/Sporos_OnlineSoftmax.hpp"
#include "tile/Sporos_Tile.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// The gradient of the bias for one tile of queries by keys, the sum over the batches and heads that share it:
///
///     dBias = Σ P ∘ (Z ∘ dO Vᵀ − δ)
///
/// P and dP are computed once more, two products of the backward pass' five; in exchange nothing of size queries · keys is
/// stored, there are no atomics, and the backward pass of a problem without bias carries nothing of it.
template <class Arch, class T, int HeadDim>
  requires TileArchitecture<Arch, T>
class FlashAttentionBiasGradientTile {
 public:
  using C = ComputeType<T>;
  using Shape = FlashAttentionBackwardShape<Arch, T, HeadDim>;

  static constexpr int keys = Shape::keys;
  static constexpr int queries = Shape::queries;

  using KeyTile = Pipeline<Arch, T, Use::left, keys, HeadDim, 1>;
  using QueryTile = Pipeline<Arch, T, Use::right_transposed, queries, HeadDim, 1>;
  using RowSums = Pipeline<Arch, C, Use::column_values, queries, 1, 1>;

  struct Scratch {
    typename KeyTile::Storage keys;
    typename KeyTile::Storage values;
    typename QueryTile::Storage queries;
    typename QueryTile::Storage output_gradients;
    typename RowSums::Storage lse;
    typename RowSums::Storage delta;
  };

  SPOROS_FUNCTION FlashAttentionBiasGradientTile(Team<Arch>& team, Scratch& scratch)
      : m_team(team),
        m_keys(team, scratch.keys),
        m_values(team, scratch.values),
        m_queries(team, scratch.queries),
        m_output_gradients(team, scratch.output_gradients),
        m_lse(team, scratch.lse),
        m_delta(team, scratch.delta) {}

  /// Tiles of one bias matrix, key tile by key tile
  SPOROS_FUNCTION static int tiles(FlashAttentionArguments<T> const& arguments) {
    return blocks(arguments.keys, keys) * blocks(arguments.queries, queries);
  }

  /// The producer's role, see FlashAttentionForwardTile
  SPOROS_FUNCTION void produce(FlashAttentionBackwardArguments<T> const& arguments, int bias_batch, int bias_head,
                               int tile) {
    for_each_head(arguments, bias_batch, bias_head, [&](FlashAttentionHead<T> const& head) {
      if (!open(arguments, head, tile)) return;
      m_keys.load(key_tile(arguments, tile));
      m_queries.load(query_tile(arguments, tile));
      m_lse.load(query_tile(arguments, tile));
      m_values.load(key_tile(arguments, tile));
      m_output_gradients.load(query_tile(arguments, tile));
      m_delta.load(query_tile(arguments, tile));
    });
  }

  /// The consumer's role
  SPOROS_FUNCTION void consume(FlashAttentionBackwardArguments<T> const& arguments, int bias_batch, int bias_head,
                               int tile) {
    int const m = key_tile(arguments, tile), n = query_tile(arguments, tile);
    int const first_key = m * keys, first_query = n * queries;
    Fragment<Arch, C, keys, queries> S(m_team), dP(m_team), sum(m_team);
    fill(sum, C(0));

    for_each_head(arguments, bias_batch, bias_head, [&](FlashAttentionHead<T> const& head) {
      if (!open(arguments, head, tile)) return;
      m_keys.prefetch(m);
      m_queries.prefetch(n);
      m_lse.prefetch(n);
      auto const K = m_keys.wait(m);
      auto const Q = m_queries.wait(n);
      auto const lse = m_lse.wait(n);
      mma_abt(S, K, Q);
      m_values.prefetch(m);
      m_output_gradients.prefetch(n);
      m_delta.prefetch(n);
      auto const V = m_values.wait(m);
      auto const dO = m_output_gradients.wait(n);
      auto const delta = m_delta.wait(n);
      mma_abt(dP, V, dO);

      join<1>(S);
      probabilities<AddedScores>(S, head, first_key, first_query, false, lse);
      join<0>(dP);
      score_gradients<AddedScores>(dP, S, head, first_key, first_query, lse, delta);
      update(sum, dP, [](int, int, C& total, C& ds) { total += ds; });

      m_keys.release(m);
      m_queries.release(n);
      m_lse.release(n);
      m_values.release(m);
      m_output_gradients.release(n);
      m_delta.release(n);
    });

    // The matrix lies the other way round, so that rows cannot be stored as such.
    FlashAttentionHead<T> const head(arguments.forward, bias_batch, bias_head);
    map(sum, [&](int row, int column, C x) {
      int const query = first_query + column, key = first_key + row;
      if (query < arguments.forward.queries && key < arguments.forward.keys)
        *head.at(arguments.d_bias, query, key) = T(x);
      return x;
    });
  }

 private:
  /// False where the tile of this head is masked altogether
  SPOROS_FUNCTION bool open(FlashAttentionBackwardArguments<T> const& arguments, FlashAttentionHead<T> const& head,
                            int tile) {
    int const m = key_tile(arguments, tile), n = query_tile(arguments, tile);
    if (!head.visible_query_blocks(m * keys, keys, queries).contains(n)) return false;
    m_keys.open(head.k(), {m, m + 1});
    m_values.open(head.v(), {m, m + 1});
    m_queries.open(head.q(), {n, n + 1});
    m_output_gradients.open(head.of_query_head(arguments.d_o), {n, n + 1});
    m_lse.open(head.padded_rows(arguments, arguments.lse_log2), {n, n + 1});
    m_delta.open(head.padded_rows(arguments, arguments.delta), {n, n + 1});
    return true;
  }

  /// The heads that share one bias, in their order
  template <class F>
  SPOROS_FUNCTION static void for_each_head(FlashAttentionBackwardArguments<T> const& arguments, int bias_batch,
                                            int bias_head, F const& f) {
    auto const& a = arguments.forward;
    int const batches = arguments.bias_batch == 1 ? a.batch : 1;
    int const heads = arguments.bias_heads == 1 ? a.heads : 1;
    for (int batch = 0; batch < batches; ++batch)
      for (int head = 0; head < heads; ++head) f(FlashAttentionHead<T>(a, bias_batch + batch, bias_head + head));
  }

  SPOROS_FUNCTION static int key_tile(FlashAttentionBackwardArguments<T> const& arguments, int tile) {
    return tile / blocks(arguments.forward.queries, queries);
  }
  SPOROS_FUNCTION static int query_tile(FlashAttentionBackwardArguments<T> const& arguments, int tile) {
    return tile % blocks(arguments.forward.queries, queries);
  }

  SPOROS_FUNCTION static int blocks(int rows, int block) { return rows / block + (rows % block != 0); }

  Team<Arch>& m_team;
  KeyTile m_keys;
  KeyTile m_values;
  QueryTile m_queries;
  QueryTile m_output_gradients;
  RowSums m_lse;
  RowSums m_delta;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
