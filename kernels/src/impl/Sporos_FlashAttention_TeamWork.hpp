// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_TEAMWORK_HPP
#define SPOROS_FLASHATTENTION_TEAMWORK_HPP

#include "impl/Sporos_FlashAttention_BackwardTile.hpp"
#include "impl/Sporos_FlashAttention_ForwardTile.hpp"

// Flash attention as items for teams that live as long as the launch. With plain scores and without dropout: what either
// takes for each of the 88 scores that a thread has would take the registers of everything else.
namespace Sporos::inline SPOROS_LEVEL {

/// In which order the tiles of all heads are taken. Where they differ in length, the longest come first; but heads come in
/// sections whose other tensors fit into the L2 cache together.
struct FlashAttentionOrder {
  int heads;
  int tiles;    // of a head
  int section;  // heads
  bool last_first;

  struct Item {
    int head;
    int tile;
  };

  SPOROS_FUNCTION Item operator[](int item) const {
    int const of_section = section * tiles;
    int const first = item / of_section * section;
    int const left = heads - first < section ? heads - first : section;
    int const i = item % of_section;
    int const tile = i / left;
    return {first + i % left, last_first ? tiles - 1 - tile : tile};
  }

  /// Sections of so many heads that two tensors of `rows` rows take 32 of the cache's 50 MiB; of one where all tiles are
  /// equally long.
  static FlashAttentionOrder of(int heads, int tiles, bool causal, bool last_first, std::int64_t rows, int head_dim) {
    std::int64_t const bytes = rows * head_dim * 4;
    std::int64_t const fit = bytes > 0 ? (std::int64_t(32) << 20) / bytes : heads;
    int const section = !causal || fit < 1 ? 1 : fit < heads ? int(fit) : heads > 0 ? heads : 1;
    return {heads, tiles, section, last_first};
  }
};

/// What a kernel need not know of, so that it has its registers for other things
enum class FlashAttentionHeads {
  simple,  // every head has keys of its own, and all sequences are equally long
  any,
};

/// The same, where the compiler sees what is not asked for
template <FlashAttentionHeads Heads, class T>
SPOROS_FUNCTION FlashAttentionArguments<T> plain(FlashAttentionArguments<T> arguments) {
  arguments.dropout = {};
  arguments.splits = 1;
  arguments.partial_o.data = nullptr;
  if constexpr (Heads == FlashAttentionHeads::simple) {
    arguments.kv_heads = arguments.heads;
    arguments.cumulative_queries = nullptr;
  }
  return arguments;
}

template <class T>
FlashAttentionHeads heads_of(FlashAttentionArguments<T> const& a) {
  bool const simple = a.heads == a.kv_heads && a.cumulative_queries == nullptr;
  return simple ? FlashAttentionHeads::simple : FlashAttentionHeads::any;
}

template <class Arch, class T, int HeadDim, class Shape = FlashAttentionForwardShape<Arch, T, HeadDim>>
struct FlashAttentionForwardWork {
  using Tile = FlashAttentionForwardTile<Arch, T, HeadDim, PlainScores, Shape>;

  FlashAttentionArguments<T> m_arguments;
  FlashAttentionOrder m_order;

  explicit FlashAttentionForwardWork(FlashAttentionArguments<T> const& a)
      : m_arguments(a),
        m_order(FlashAttentionOrder::of(a.batch * a.heads, Tile::tiles(a), a.right < a.unbounded, true, a.keys,
                                        a.head_dim)) {}

  SPOROS_FUNCTION int items() const { return m_order.heads * m_order.tiles; }

  SPOROS_FUNCTION void produce(Tile& kernel, int item) const {
    auto const [head, tile] = m_order[item];
    auto const a = plain<FlashAttentionHeads::any>(m_arguments);
    kernel.produce({a, head / a.heads, head % a.heads}, tile);
  }
  SPOROS_FUNCTION void consume(Tile& kernel, int item) const {
    auto const [head, tile] = m_order[item];
    auto const a = plain<FlashAttentionHeads::any>(m_arguments);
    kernel.consume({a, head / a.heads, head % a.heads}, tile);
  }
};

/// One item for each slot; the first have the most queries where the mask is causal.
template <class Arch, class T, int HeadDim, FlashAttentionHeads Heads,
          class Shape = FlashAttentionBackwardShape<Arch, T, HeadDim>>
struct FlashAttentionBackwardWork {
  using Tile = FlashAttentionBackwardTile<Arch, T, HeadDim, PlainScores, Shape>;

  FlashAttentionBackwardArguments<T> m_arguments;
  FlashAttentionOrder m_order;

  explicit FlashAttentionBackwardWork(FlashAttentionBackwardArguments<T> const& b)
      : m_arguments(b),
        m_order(FlashAttentionOrder::of(
            b.forward.batch * b.forward.kv_heads, b.slots, b.forward.right < b.forward.unbounded, false,
            b.forward.queries * (b.forward.heads / b.forward.kv_heads), b.forward.head_dim)) {}

  SPOROS_FUNCTION int items() const { return m_order.heads * m_order.tiles; }

  SPOROS_FUNCTION void produce(Tile& kernel, int item) const {
    auto const [head, slot] = m_order[item];
    auto const b = arguments();
    kernel.produce(b, head / b.forward.kv_heads, head % b.forward.kv_heads, slot);
  }
  SPOROS_FUNCTION void consume(Tile& kernel, int item) const {
    auto const [head, slot] = m_order[item];
    auto const b = arguments();
    kernel.consume(b, head / b.forward.kv_heads, head % b.forward.kv_heads, slot);
  }

 private:
  SPOROS_FUNCTION FlashAttentionBackwardArguments<T> arguments() const {
    auto b = m_arguments;
    b.forward = plain<Heads>(b.forward);
    return b;
  }
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
