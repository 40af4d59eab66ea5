// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_PIPELINE_REGISTERS_HPP
#define SPOROS_PIPELINE_REGISTERS_HPP

#include "tile/Sporos_Tile_WarpMma.hpp"

// Blocks on their way from memory to scratch through registers, for hardware without asynchronous copies: prefetch starts
// the loads, wait stores what they brought. Pairs of elements of the matrix are aligned, and it has an even number of columns.
namespace Sporos::inline SPOROS_LEVEL {

template <class Arch>
concept RegisterCopyArchitecture = WarpMmaArchitecture<Arch> && !Arch::copies_asynchronously;

/// A thread's share of a block: units of eight rows by two columns. The rows of a unit are those that lie side by side in a
/// chunk of the transposed copy.
template <RegisterCopyArchitecture Arch, class T, int Rows, int Cols>
class BlockShare {
  using Atom = typename Arch::Atom;
  static constexpr int threads = Arch::warps * Atom::lanes;
  static constexpr int pairs = Cols / 2;
  static constexpr int units = Rows / 8 * pairs;
  static constexpr int rounds = (units + threads - 1) / threads;
  static_assert(Rows % Atom::depth == 0 && threads % pairs == 0, "a thread keeps its pair of columns");

 public:
  SPOROS_FUNCTION void load(Team<Arch> const& team, Matrix<T const> const& source, int n) {
    std::int64_t const first = std::int64_t(n) * Rows;
    T const* const from = source.row(first);
    for_each_unit(team, [&](int lane, int round, int pair, int group) {
      SPOROS_UNROLL
      for (int e = 0; e < 8; ++e) {
        int const row = row_of(group, e), column = 2 * pair;
        bool const real = first + row < source.rows && column < source.columns;
        m_pairs(lane, 8 * round + e) = real ? Arch::load_pair(from + row * source.stride + column) : 0;
      }
    });
  }

  SPOROS_FUNCTION void store(Team<Arch> const& team, SwizzledTile<T, Rows, Cols> tile) {
    for_each_unit(team, [&](int lane, int round, int pair, int group) {
      SPOROS_UNROLL
      for (int e = 0; e < 8; ++e) Arch::put(&tile(row_of(group, e), 2 * pair), m_pairs(lane, 8 * round + e));
    });
  }

  SPOROS_FUNCTION void store_transposed(Team<Arch> const& team, SwizzledTile<T, Cols, Rows> tile) {
    for_each_unit(team, [&](int lane, int round, int pair, int group) {
      SPOROS_UNROLL
      for (int half = 0; half < 2; ++half) {
        T* const chunk = tile.chunk(2 * pair + half, group);
        SPOROS_UNROLL
        for (int e = 0; e < 8; e += 2) {
          std::uint32_t const low = m_pairs(lane, 8 * round + e), high = m_pairs(lane, 8 * round + e + 1);
          Arch::put(chunk + e, half == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u));
        }
      }
    });
  }

 private:
  SPOROS_FUNCTION static int row_of(int group, int e) {
    constexpr int chunks = Atom::depth / 8;
    return group / chunks * Atom::depth + Atom::depth_of_accumulator(group % chunks, e);
  }

  /// f(lane, round, pair of columns, group of rows)
  template <class F>
  SPOROS_FUNCTION void for_each_unit(Team<Arch> const& team, F const& f) {
    Arch::for_each_lane([&](int lane) {
      int const thread = Atom::lanes * team.warp() + lane;
      SPOROS_UNROLL
      for (int round = 0; round < rounds; ++round) {
        int const group = thread / pairs + round * (threads / pairs);
        if (units % threads == 0 || group < Rows / 8) f(lane, round, thread % pairs, group);
      }
    });
  }

  typename Arch::template Registers<std::uint32_t, 8 * rounds> m_pairs;
};

template <RegisterCopyArchitecture Arch, class T, Use use, int Rows, int Cols, int Stages>
  requires(use != Use::column_values)
class Pipeline<Arch, T, use, Rows, Cols, Stages> {
 public:
  using Block = BlockInScratch<Arch, T, Rows, Cols>;
  using Left = LeftFromMemory<Arch, T, Rows, Cols>;

  // Left factors stay in registers, of which there are plenty, while scratch is scarce.
  static constexpr bool has_left = includes(use, Use::left);
  static constexpr bool has_plain = includes(use, Use::right_transposed);
  static constexpr bool has_transposed = includes(use, Use::right) || includes(use, Use::left_transposed);

  using Handle = std::conditional_t<
      !has_left, Block,
      std::conditional_t<has_transposed, BlockInBoth<Arch, T, Rows, Cols>, BlockInRegisters<Arch, Rows, Cols>>>;

  struct Storage {
    [[no_unique_address]] WarpMmaBuffer<T, has_plain ? Rows * Cols : 0> plain;
    [[no_unique_address]] WarpMmaBuffer<T, has_transposed ? Rows * Cols : 0> transposed;
  };

  SPOROS_FUNCTION Pipeline(Team<Arch>& team, Storage& storage)
      : m_team(team), m_block{{storage.plain.values}, {storage.transposed.values}} {}

  SPOROS_FUNCTION void open(Matrix<T const> const& source, BlockRange const& range) {
    m_source = source;
    m_range = range;
  }

  SPOROS_FUNCTION void load(int n) {
    if (!m_range.contains(n)) return;
    if constexpr (has_left) m_left.load(m_team, m_source, n);
    if constexpr (has_plain || has_transposed) m_share.load(m_team, m_source, n);
  }

  SPOROS_FUNCTION void prefetch(int n) { load(n); }

  /// Before the first barrier the team may still read the last block, after the second this one is complete.
  SPOROS_FUNCTION Handle wait(int) {
    if constexpr (has_plain || has_transposed) {
      m_team.barrier();
      if constexpr (has_plain) m_share.store(m_team, m_block.plain);
      if constexpr (has_transposed) m_share.store_transposed(m_team, m_block.transposed);
      m_team.barrier();
    }
    if constexpr (has_left && has_transposed)
      return Handle(m_left.block(), m_block);
    else if constexpr (has_left)
      return m_left.block();
    else
      return m_block;
  }

  SPOROS_FUNCTION void release(int) {}

 private:
  struct Nothing {};

  Team<Arch>& m_team;
  Block m_block;
  Matrix<T const> m_source;
  BlockRange m_range;
  [[no_unique_address]] std::conditional_t<has_left, Left, Nothing> m_left;
  [[no_unique_address]] std::conditional_t<has_plain || has_transposed, BlockShare<Arch, T, Rows, Cols>, Nothing>
      m_share;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
