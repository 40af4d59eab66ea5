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

/// The same, where the compiler sees what is not asked for
template <class T>
SPOROS_FUNCTION FlashAttentionArguments<T> plain(FlashAttentionArguments<T> arguments) {
  arguments.dropout = {};
  arguments.splits = 1;
  arguments.partial_o.data = nullptr;
  return arguments;
}

template <class Arch, class T, int HeadDim>
struct FlashAttentionForwardWork {
  using Tile = FlashAttentionForwardTile<Arch, T, HeadDim, PlainScores>;

  FlashAttentionArguments<T> m_arguments;
  FlashAttentionOrder m_order;

  explicit FlashAttentionForwardWork(FlashAttentionArguments<T> const& a)
      : m_arguments(a),
        m_order(FlashAttentionOrder::of(a.batch * a.heads, Tile::tiles(a), a.right < a.unbounded, true, a.keys, a.head_dim)) {}

  SPOROS_FUNCTION int items() const { return m_order.heads * m_order.tiles; }

  SPOROS_FUNCTION void produce(Tile& kernel, int item) const {
    auto const [head, tile] = m_order[item];
    auto const a = plain(m_arguments);
    kernel.produce({a, head / a.heads, head % a.heads}, tile);
  }
  SPOROS_FUNCTION void consume(Tile& kernel, int item) const {
    auto const [head, tile] = m_order[item];
    auto const a = plain(m_arguments);
    kernel.consume({a, head / a.heads, head % a.heads}, tile);
  }
};

/// One item for each slot; the first have the most queries where the mask is causal.
template <class Arch, class T, int HeadDim>
struct FlashAttentionBackwardWork {
  using Tile = FlashAttentionBackwardTile<Arch, T, HeadDim, PlainScores>;

  FlashAttentionBackwardArguments<T> m_arguments;
  FlashAttentionOrder m_order;

  explicit FlashAttentionBackwardWork(FlashAttentionBackwardArguments<T> const& b)
      : m_arguments(b),
        m_order(FlashAttentionOrder::of(b.forward.batch * b.forward.kv_heads, b.slots, b.forward.right < b.forward.unbounded, false,
                                        b.forward.queries * (b.forward.heads / b.forward.kv_heads),
                                        b.forward.head_dim)) {}

  SPOROS_FUNCTION int items() const { return m_order.heads * m_order.tiles; }

  SPOROS_FUNCTION void produce(Tile& kernel, int item) const {
    auto const [head, slot] = m_order[item];
    int const kv_heads = m_arguments.forward.kv_heads;
    auto b = m_arguments;
    b.forward = plain(b.forward);
    kernel.produce(b, head / kv_heads, head % kv_heads, slot);
  }
  SPOROS_FUNCTION void consume(Tile& kernel, int item) const {
    auto const [head, slot] = m_order[item];
    int const kv_heads = m_arguments.forward.kv_heads;
    auto b = m_arguments;
    b.forward = plain(b.forward);
    kernel.consume(b, head / kv_heads, head % kv_heads, slot);
  }
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
