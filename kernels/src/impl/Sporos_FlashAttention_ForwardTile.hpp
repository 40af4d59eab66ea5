// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_FORWARDTILE_HPP
#define SPOROS_FLASHATTENTION_FORWARDTILE_HPP

#include "impl/Sporos_FlashAttention_Problem.hpp"
#include "impl/Sporos_FlashAttention_Scores.hpp"
#include "impl/Sporos_FlashAttention_TileShape.hpp"
#include "impl/Sporos_OnlineSoftmax.hpp"
#include "tile/Sporos_Tile.hpp"

namespace Sporos::inline SPOROS_LEVEL {

/// Flash attention forward for one tile of queries of one head, the same text for every architecture:
///
///     O = Z ∘ softmax(S) V,   LSE = log Σ exp(S),   S = scale · Q Kᵀ and what AnyScores says,   Z = dropout mask / (1 − p)
///
/// Algorithm 1 of FlashAttention-2 (arXiv:2307.08691), in the order of FlashAttention-3 (arXiv:2407.08608, section 3.2):
/// the product O += P V of one block is under way while the softmax of the next is computed.
template <class Arch, class T, int HeadDim, class Scores = AnyScores,
          class Shape = FlashAttentionForwardShape<Arch, T, HeadDim>>
  requires TileArchitecture<Arch, T>
class FlashAttentionForwardTile {
 public:
  using C = ComputeType<T>;

  static constexpr int queries = Shape::queries;
  static constexpr int keys = Shape::keys;

  using QueryTile = Pipeline<Arch, T, Use::left, queries, HeadDim, 1>;
  using KeyBlocks = Pipeline<Arch, T, Use::right_transposed, keys, HeadDim, Shape::stages>;
  using ValueBlocks = Pipeline<Arch, T, Use::right, keys, HeadDim, Shape::stages>;
  using Probabilities = Operand<Arch, T, Use::left, queries, keys>;

  struct Scratch {
    typename QueryTile::Storage queries;
    typename KeyBlocks::Storage keys;
    typename ValueBlocks::Storage values;
    [[no_unique_address]] typename Probabilities::Storage probabilities;
  };

  SPOROS_FUNCTION FlashAttentionForwardTile(Team<Arch>& team, Scratch& scratch)
      : m_team(team),
        m_scratch(scratch),
        m_queries(team, scratch.queries),
        m_keys(team, scratch.keys),
        m_values(team, scratch.values) {}

  SPOROS_FUNCTION static int tiles(FlashAttentionArguments<T> const& arguments) {
    return arguments.queries / queries + (arguments.queries % queries != 0);
  }

  /// The producer's role: loads everything that consume() waits for. An architecture with warps
  /// of their own for that calls it for the same sequence of tiles as consume(); elsewhere the consumers prefetch.
  SPOROS_FUNCTION void produce(FlashAttentionHead<T> const& head, int tile) {
    BlockRange const blocks = open(head, tile);
    m_keys.load(blocks.end - 1);
    m_queries.load(tile);  // its only buffer is free later than the next of K
    for (int n = blocks.end - 1; n >= blocks.begin; --n) {
      m_keys.load(n - 1);
      m_values.load(n);
    }
  }

  /// The consumer's role: computes O and LSE of queries tile · queries ... of a head.
  SPOROS_FUNCTION void consume(FlashAttentionHead<T> const& head, int tile) {
    BlockRange const blocks = open(head, tile);
    int const first_query = tile * queries;
    BlockRange const unmasked = head.unmasked_key_blocks(first_query, queries, keys);

    Fragment<Arch, C, queries, keys> S(m_team);
    Probabilities P(m_team, m_scratch.probabilities);
    Fragment<Arch, C, queries, HeadDim> O(m_team);
    OnlineSoftmax<Arch, C, queries> softmax(Scores::softmax_scale(head));
    fill(O, C(0));

    auto const modify = [&](int n) { Scores::modify_queries(S, head, first_query, n * keys); };
    auto const mask = [&](int n) {
      map(S, [&](int row, int column, C score) {
        return head.allows(first_query + row, n * keys + column) ? score : -infinity<C>;
      });
    };
    auto const drop = [&](int n) {
      if (head.drops()) scale_dropped(S, C(0), head.mask_of_queries(first_query, n * keys));
    };
    auto const band = [&](int n) { return head.band_of_queries(first_query, n * keys); };

    m_queries.prefetch(tile);
    m_keys.prefetch(blocks.end - 1);
    auto const Q = m_queries.wait(tile);

    // From the last block to the first: a causal diagonal comes early, and the long rest goes without a mask.
    if (blocks.end > blocks.begin) {
      int n = blocks.end - 1;
      mma_abt(S, Q, m_keys.wait(n), band(n));
      m_keys.prefetch(n - 1);
      m_values.prefetch(n);
      join<0>(S);
      m_keys.release(n);
      modify(n);
      mask(n);
      softmax.exact(S);
      drop(n);
      convert(P, S);

      for (--n; n >= blocks.begin; --n) {
        // S = Q K(n)ᵀ
        auto const K = m_keys.wait(n);
        m_keys.prefetch(n - 1);
        mma_abt(S, Q, K, band(n));

        // O += P V(n + 1), under way until its join
        auto const V = m_values.wait(n + 1);
        m_values.prefetch(n);
        mma_ab(O, P, V, band(n + 1));

        join<1>(S);
        modify(n);
        if (unmasked.contains(n)) {
          bool const fits = softmax.optimistic(S);
          join<0>(O, P);
          if (!fits) {  // rare; S is computed again, which costs less than keeping it
            mma_abt_diverged(S, Q, K);
            modify(n);
            scale_rows(O, softmax.exact(S));
          }
        } else {
          mask(n);
          auto const factor = softmax.exact(S);
          join<0>(O, P);
          scale_rows(O, factor);
        }
        m_keys.release(n);
        m_values.release(n + 1);
        drop(n);
        convert(P, S);
      }

      m_queries.release(tile);
      mma_ab(O, P, m_values.wait(blocks.begin), band(blocks.begin));
      join<0>(O, P);
      m_values.release(blocks.begin);
    } else {
      m_queries.release(tile);
    }

    RowVector<Arch, C, queries> inverse_sum, log_sum;
    softmax.finish(head.sink(), inverse_sum, log_sum);
    if (head.drops()) {
      C const keep_scale = head.keep_scale();
      for_each_row([=](C& inverse) { inverse *= keep_scale; }, inverse_sum);
    }
    scale_rows(O, inverse_sum);
    if (head.stores_partial_o())
      store_rows(m_team, head.partial_o(), first_query, O);
    else
      store_rows(m_team, head.o(), first_query, O);
    store_rows(m_team, head.lse(), first_query, log_sum);
  }

 private:
  SPOROS_FUNCTION BlockRange open(FlashAttentionHead<T> const& head, int tile) {
    BlockRange const blocks = head.visible_key_blocks(tile * queries, queries, keys);
    m_queries.open(head.q(), {tile, tile + 1});
    m_keys.open(head.k(), blocks);
    m_values.open(head.v(), blocks);
    return blocks;
  }

  Team<Arch>& m_team;
  Scratch& m_scratch;
  QueryTile m_queries;
  KeyBlocks m_keys;
  ValueBlocks m_values;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
