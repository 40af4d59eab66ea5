// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_PIPELINE_ASYNCCOPY_HPP
#define SPOROS_PIPELINE_ASYNCCOPY_HPP

#include "tile/Sporos_Tile_WarpMma.hpp"

// Blocks on their way from memory to scratch by copies that each thread starts and awaits in groups (cp.async). Rows of the
// matrix start at multiples of 16 bytes and have a multiple of 8 columns.
namespace Sporos::inline SPOROS_LEVEL {

template <class Arch>
concept AsyncCopyArchitecture = WarpMmaArchitecture<Arch> && Arch::copies_asynchronously;

/// Which groups of copies a thread has closed. Groups land in order, so to await one is to let the younger ones fly.
class CopyGroups {
 public:
  SPOROS_FUNCTION int close() { return m_closed++; }
  SPOROS_FUNCTION int younger_than(int group) const { return m_closed - 1 - group; }

 private:
  int m_closed = 0;
};

template <AsyncCopyArchitecture Arch, class T, Use use, int Rows, int Cols, int Stages>
  requires(use != Use::column_values)
class Pipeline<Arch, T, use, Rows, Cols, Stages> {
  static_assert(Stages == 1 || Stages == 2, "m_group remembers one load under way");
  static_assert(Cols % 64 == 0);

 public:
  using Block = BlockInScratch<Arch, T, Rows, Cols>;
  using Left = LeftFromMemory<Arch, T, Rows, Cols>;

  static constexpr bool in_registers = use == Use::left && Left::Registers::registers <= Arch::most_left_registers;

  using Handle = std::conditional_t<in_registers, BlockInRegisters<Arch, Rows, Cols>, Block>;

  struct Storage {
    [[no_unique_address]] WarpMmaBuffer<T, in_registers ? 0 : Stages * Rows * Cols> stages;
  };

  SPOROS_FUNCTION Pipeline(Team<Arch>& team, Storage& storage) : m_team(team), m_storage(storage) {}

  SPOROS_FUNCTION void open(Matrix<T const> const& source, BlockRange const& range) {
    if constexpr (!in_registers) {
      if (m_used) m_team.barrier();  // somebody may still read the last block
    }
    m_source = source;
    m_range = range;
    m_used = true;
    m_occupied = false;
  }

  SPOROS_FUNCTION void load(int n) {
    if (!m_range.contains(n)) return;
    if constexpr (in_registers) {
      m_left.load(m_team, m_source, n);
    } else {
      if (Stages == 1 && m_occupied) return;  // release() does it
      copy(n);
      m_group = m_team.commit_copies();
      m_occupied = true;
    }
  }

  SPOROS_FUNCTION void prefetch(int n) { load(n); }

  /// The barrier serves twice: block n is visible, and nobody reads block n + 1 any more, whose buffer n - 1 may take.
  SPOROS_FUNCTION Handle wait(int n) {
    if constexpr (in_registers) {
      return m_left.block();
    } else {
      m_team.wait_copies(m_group);
      m_team.barrier();
      return Block{{stage(n)}, {nullptr}};
    }
  }

  /// With a single buffer the next block has waited for this one to go.
  SPOROS_FUNCTION void release(int n) {
    if constexpr (Stages == 1 && !in_registers) {
      if (!m_range.contains(n - 1)) return;
      m_team.barrier();
      m_occupied = false;
      load(n - 1);
    }
  }

 private:
  static constexpr int chunks_of_row = 8;  // 128 bytes, which eight lanes copy
  static constexpr int rows_at_once = Arch::Atom::lanes * Arch::warps / chunks_of_row;
  static_assert(Rows % rows_at_once == 0);

  SPOROS_FUNCTION T* stage(int n) const { return m_storage.stages.values + unsigned(n) % Stages * (Rows * Cols); }

  SPOROS_FUNCTION void copy(int n) {
    SwizzledTile<T, Rows, Cols> const tile{stage(n)};
    std::int64_t const first = std::int64_t(n) * Rows;
    Arch::for_each_lane([&](int lane) {
      int const thread = Arch::Atom::lanes * m_team.warp() + lane;
      int const first_row = thread / chunks_of_row, first_chunk = thread % chunks_of_row;
      T const* const from = m_source.row(first + first_row) + 8 * first_chunk;
      std::int64_t const step = rows_at_once * m_source.stride;
      SPOROS_UNROLL
      for (int panel = 0; panel < Cols / 64; ++panel) {
        SPOROS_UNROLL
        for (int i = 0; i < Rows / rows_at_once; ++i) {
          int const row = first_row + i * rows_at_once, chunk = first_chunk + panel * chunks_of_row;
          bool const real = first + row < m_source.rows && 8 * chunk < m_source.columns;
          m_team.copy_async(tile.chunk(row, chunk), real ? from + i * step + 64 * panel : m_source.data, real);
        }
      }
    });
  }

  struct Nothing {};

  Team<Arch>& m_team;
  Storage& m_storage;
  Matrix<T const> m_source;
  BlockRange m_range;
  [[no_unique_address]] std::conditional_t<in_registers, Left, Nothing> m_left;
  int m_group = 0;
  bool m_used = false;
  bool m_occupied = false;  // by a block that has not been released; of interest where there is one buffer
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
