// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TILE_WARPMMA_HPP
#define SPOROS_TILE_WARPMMA_HPP

#include <type_traits>

#include "tile/Sporos_Tile.hpp"
#include "tile/Sporos_WarpMma_Layout.hpp"

// The tile layer over matrix instructions of one warp (mma.sync, MFMA), written once for GPUs and for their emulators. On a
// GPU for_each_lane(f) calls f for the lane that executes it, and Registers<T, N> are N registers of that lane; an emulator
// calls f for all lanes of a warp and keeps all their values. Only the instructions are emulated: every line below is
// tested on a CPU. How blocks come into scratch is in Sporos_Pipeline_AsyncCopy.hpp and Sporos_Pipeline_Registers.hpp.
namespace Sporos::inline SPOROS_LEVEL {

template <class Arch>
concept WarpMmaArchitecture = requires { typename Arch::WarpMmaInstructions; };

/// How the warps of a team share a Rows x Cols matrix: first its rows; if there are too few, its columns, too.
template <WarpMmaArchitecture Arch, int Rows, int Cols>
struct WarpGrid {
  using Atom = typename Arch::Atom;
  static constexpr int row_warps = Rows / Atom::rows < Arch::warps ? Rows / Atom::rows : Arch::warps;
  static constexpr int column_warps = Arch::warps / row_warps;
  static constexpr int row_atoms = Rows / (row_warps * Atom::rows);  // of a warp
  static constexpr int column_atoms = Cols / (column_warps * Atom::columns);
  static_assert(row_warps * row_atoms * Atom::rows == Rows && column_warps * column_atoms * Atom::columns == Cols &&
                    row_warps * column_warps == Arch::warps,
                "every warp has as many atoms");

  SPOROS_FUNCTION static constexpr int first_row(int warp) { return warp % row_warps * row_atoms * Atom::rows; }
  SPOROS_FUNCTION static constexpr int first_column(int warp) {
    return warp / row_warps * column_atoms * Atom::columns;
  }
};

/// Slot i of those of a lane
struct WarpMmaSlot {
  int lane;
  int i;
};

template <WarpMmaArchitecture Arch, int Rows>
class RowValues<Arch, float, Rows> {
  using Atom = typename Arch::Atom;

 public:
  static constexpr int slots = WarpGrid<Arch, Rows, 16 * Rows>::row_atoms * Atom::slots;

  SPOROS_FUNCTION float& operator()(WarpMmaSlot slot) { return m_values(slot.lane, slot.i); }
  SPOROS_FUNCTION float operator()(WarpMmaSlot slot) const { return m_values(slot.lane, slot.i); }

  template <class F>
  SPOROS_FUNCTION static void for_each_slot(F const& f) {
    Arch::for_each_lane([&](int lane) {
      SPOROS_UNROLL
      for (int i = 0; i < slots; ++i) f(WarpMmaSlot{lane, i});
    });
  }

  /// Of the slot, relative to the first row of the warp
  SPOROS_FUNCTION static int row(WarpMmaSlot slot) {
    return slot.i / Atom::slots * Atom::rows + Atom::slot_row(slot.lane, slot.i % Atom::slots);
  }

  typename Arch::template Registers<float, slots> m_values;
};

template <WarpMmaArchitecture Arch, int Rows, int Cols>
class Fragment<Arch, float, Rows, Cols> {
 public:
  using Grid = WarpGrid<Arch, Rows, Cols>;
  using Atom = typename Arch::Atom;

  SPOROS_FUNCTION explicit Fragment(Team<Arch> const& team)
      : m_first_row(Grid::first_row(team.warp())), m_first_column(Grid::first_column(team.warp())) {}
  Fragment(Fragment const&) = delete;
  Fragment& operator=(Fragment const&) = delete;

  template <class F>
  SPOROS_FUNCTION void for_each(F const& f) {
    m_token.check_joined();
    walk([&](int lane, int i, int j, int a) {
      f(m_atom[i][j](lane, a), slot(lane, i, a), row(lane, i, a), column(lane, j, a));
    });
  }

  template <class F>
  SPOROS_FUNCTION void for_each_with(Fragment& y, F const& f) {
    m_token.check_joined();
    y.m_token.check_joined();
    walk([&](int lane, int i, int j, int a) {
      f(m_atom[i][j](lane, a), y.m_atom[i][j](lane, a), slot(lane, i, a), row(lane, i, a), column(lane, j, a));
    });
  }

  /// f(lane, atom row, atom column, accumulator)
  template <class F>
  SPOROS_FUNCTION static void walk(F const& f) {
    Arch::for_each_lane([&](int lane) {
      SPOROS_UNROLL
      for (int j = 0; j < Grid::column_atoms; ++j) {
        SPOROS_UNROLL
        for (int i = 0; i < Grid::row_atoms; ++i) {
          SPOROS_UNROLL
          for (int a = 0; a < Atom::accumulators; ++a) f(lane, i, j, a);
        }
      }
    });
  }

  SPOROS_FUNCTION static WarpMmaSlot slot(int lane, int i, int a) { return {lane, i * Atom::slots + Atom::slot(a)}; }
  SPOROS_FUNCTION int row(int lane, int i, int a) const {
    return m_first_row + i * Atom::rows + Atom::accumulator(lane, a).row;
  }
  SPOROS_FUNCTION int column(int lane, int j, int a) const {
    return m_first_column + j * Atom::columns + Atom::accumulator(lane, a).column;
  }

  typename Arch::template Registers<float, Atom::accumulators> m_atom[Grid::row_atoms][Grid::column_atoms];
  int m_first_row;
  int m_first_column;
  [[no_unique_address]] typename Arch::ProductToken m_token;
};

/// First all of a lane's numbers are drawn, in a loop that is one: side by side they would want more registers than there are.
template <WarpMmaArchitecture Arch, int Rows, int Cols, class Mask>
SPOROS_FUNCTION void scale_dropped(Fragment<Arch, float, Rows, Cols>& x, float factor, Mask const& mask) {
  using Grid = WarpGrid<Arch, Rows, Cols>;
  constexpr int accumulators = Arch::Atom::accumulators;
  constexpr int elements = Grid::row_atoms * Grid::column_atoms * accumulators;  // of a lane
  x.m_token.check_joined();
  Arch::for_each_lane([&](int lane) {
    std::uint32_t kept[(elements + 31) / 32];
    SPOROS_UNROLL
    for (int word = 0; word < (elements + 31) / 32; ++word) {
      kept[word] = 0;
      SPOROS_NO_UNROLL
      for (int bit = 0; bit < 32 && 32 * word + bit < elements; ++bit) {
        int const atom = (32 * word + bit) / accumulators, a = bit % accumulators;
        bool const keeps =
            mask.keeps(x.row(lane, atom % Grid::row_atoms, a), x.column(lane, atom / Grid::row_atoms, a));
        kept[word] |= std::uint32_t(keeps) << bit;
      }
    }
    SPOROS_UNROLL
    for (int e = 0; e < elements; ++e) {
      int const atom = e / accumulators;
      float& element = x.m_atom[atom % Grid::row_atoms][atom / Grid::row_atoms](lane, e % accumulators);
      element *= kept[e / 32] >> e % 32 & 1 ? 1.0f : factor;
    }
  });
}

// ------------------------------------------------------------------------------------- factors

/// What a lane holds of a factor of one atom
template <WarpMmaArchitecture Arch>
using WarpMmaFactor = typename Arch::template Registers<std::uint32_t, 4>;

/// A left factor of Rows x Cols in registers
template <WarpMmaArchitecture Arch, int Rows, int Cols>
struct LeftRegisters {
  using Atom = typename Arch::Atom;
  static constexpr int row_atoms = WarpGrid<Arch, Rows, 16 * Rows>::row_atoms;
  static constexpr int steps = Cols / Atom::depth;
  static constexpr int registers = 4 * row_atoms * steps;  // of a lane

  /// f(register, row, column) of the two elements in every register
  template <class F>
  SPOROS_FUNCTION void for_each_pair(int first_row, F const& f) {
    Arch::for_each_lane([&](int lane) {
      SPOROS_UNROLL
      for (int i = 0; i < row_atoms; ++i) {
        SPOROS_UNROLL
        for (int k = 0; k < steps; ++k) {
          SPOROS_UNROLL
          for (int r = 0; r < 4; ++r) {
            Position const at = Atom::left_pair(lane, r);
            f(m_atom[i][k](lane, r), first_row + i * Atom::rows + at.row, k * Atom::depth + at.column);
          }
        }
      }
    });
  }

  WarpMmaFactor<Arch> m_atom[row_atoms][steps];
};

/// A handle on it
template <WarpMmaArchitecture Arch, int Rows, int Cols>
struct BlockInRegisters {
  LeftRegisters<Arch, Rows, Cols> const& registers;

  SPOROS_FUNCTION WarpMmaFactor<Arch> left(typename Arch::Lanes, int /*first_row*/, int i, int k) const {
    return registers.m_atom[i][k];
  }
};

/// A handle on a block in scratch. Where no instruction transposes, products along its rows read a second copy, which lies
/// transposed, with its rows in the order of accumulators.
template <WarpMmaArchitecture Arch, class T, int Rows, int Cols>
struct BlockInScratch {
  using Atom = typename Arch::Atom;
  using Factor = WarpMmaFactor<Arch>;
  using Lanes = typename Arch::Lanes;
  static constexpr int depth_chunks = Atom::depth / 8;

  /// Atom i of those from first_row on, step k of the depth; left: the depth runs along the columns of the block
  SPOROS_FUNCTION Factor left(Lanes lanes, int first_row, int i, int k) const {
    return Arch::load(lanes, [&](int lane) {
      Position const at = Atom::left_chunk(lane);
      return plain.chunk(first_row + i * Atom::rows + at.row, depth_chunks * k + at.column);
    });
  }
  SPOROS_FUNCTION Factor right_transposed(Lanes lanes, int first_column, int j, int k) const {
    return Arch::load(lanes, [&](int lane) {
      Position const at = Atom::right_transposed_chunk(lane);
      return plain.chunk(first_column + j * Atom::columns + at.row, depth_chunks * k + at.column);
    });
  }

  /// ... the depth runs along its rows
  SPOROS_FUNCTION Factor left_transposed(Lanes lanes, int first_row, int i, int k) const {
    if constexpr (Arch::loads_transposed)
      return Arch::load_transposed(lanes, [&](int lane) {
        Position const at = Atom::left_transposed_chunk(lane);
        return plain.chunk(k * Atom::depth + at.row, first_row / 8 + i * (Atom::rows / 8) + at.column);
      });
    else
      return Arch::load(lanes, [&](int lane) {
        Position const at = Atom::left_chunk(lane);
        return transposed.chunk(first_row + i * Atom::rows + at.row, depth_chunks * k + at.column);
      });
  }
  SPOROS_FUNCTION Factor right(Lanes lanes, int first_column, int j, int k) const {
    if constexpr (Arch::loads_transposed)
      return Arch::load_transposed(lanes, [&](int lane) {
        Position const at = Atom::right_chunk(lane);
        return plain.chunk(k * Atom::depth + at.row, first_column / 8 + j * (Atom::columns / 8) + at.column);
      });
    else
      return Arch::load(lanes, [&](int lane) {
        Position const at = Atom::right_transposed_chunk(lane);
        return transposed.chunk(first_column + j * Atom::columns + at.row, depth_chunks * k + at.column);
      });
  }

  SwizzledTile<T, Rows, Cols> plain;
  SwizzledTile<T, Cols, Rows> transposed;
};

/// A block of which products take left factors from registers, all others from scratch
template <WarpMmaArchitecture Arch, class T, int Rows, int Cols>
struct BlockInBoth : BlockInScratch<Arch, T, Rows, Cols> {
  using Scratch = BlockInScratch<Arch, T, Rows, Cols>;

  SPOROS_FUNCTION BlockInBoth(BlockInRegisters<Arch, Rows, Cols> registers, Scratch const& scratch)
      : Scratch(scratch), m_registers(registers) {}

  SPOROS_FUNCTION WarpMmaFactor<Arch> left(typename Arch::Lanes lanes, int first_row, int i, int k) const {
    return m_registers.left(lanes, first_row, i, k);
  }

  BlockInRegisters<Arch, Rows, Cols> m_registers;
};

/// Bytes of scratch, or none
template <class T, int Size>
struct alignas(128) WarpMmaBuffer {
  T values[Size];
};
template <class T>
struct WarpMmaBuffer<T, 0> {
  static constexpr T* values = nullptr;
};

/// In registers as a left factor, if a warp holds whole rows of the fragment; else, and for Aᵀ B, in scratch.
template <WarpMmaArchitecture Arch, class T, Use use, int Rows, int Cols>
class Operand<Arch, T, use, Rows, Cols> {
 public:
  using Grid = WarpGrid<Arch, Rows, Cols>;
  using Block = BlockInScratch<Arch, T, Rows, Cols>;

  static constexpr bool in_registers = includes(use, Use::left) && Grid::column_warps == 1;
  static constexpr bool left_in_scratch = includes(use, Use::left) && !in_registers;
  static constexpr bool has_transposed = includes(use, Use::right) && !Arch::loads_transposed;
  static constexpr bool has_plain = left_in_scratch || (includes(use, Use::right) && Arch::loads_transposed);

  struct Storage {
    [[no_unique_address]] WarpMmaBuffer<T, has_plain ? Rows * Cols : 0> plain;
    [[no_unique_address]] WarpMmaBuffer<T, has_transposed ? Rows * Cols : 0> transposed;
  };

  SPOROS_FUNCTION Operand(Team<Arch>& team, Storage& storage)
      : m_team(team), m_block{{storage.plain.values}, {storage.transposed.values}} {}

  SPOROS_FUNCTION WarpMmaFactor<Arch> left(typename Arch::Lanes lanes, int first_row, int i, int k) const {
    if constexpr (in_registers)
      return m_registers.m_atom[i][k];
    else
      return m_block.left(lanes, first_row, i, k);
  }

  LeftRegisters<Arch, in_registers ? Rows : Grid::Atom::rows, in_registers ? Cols : Grid::Atom::depth> m_registers;
  Team<Arch>& m_team;
  Block m_block;
  [[no_unique_address]] typename Arch::ProductToken m_token;
};

/// Pair r of step k of the depth, if the accumulators of atom row i become a left factor: numbers 8 k + 2 r and the next,
/// counted over all atoms of the row
template <class T, WarpMmaArchitecture Arch, int Rows, int Cols>
SPOROS_FUNCTION std::uint32_t pack_pair(Fragment<Arch, float, Rows, Cols> const& S, int lane, int i, int k, int r) {
  constexpr int accumulators = Arch::Atom::accumulators;
  int const first = 8 * k + 2 * r;
  auto const& atom = S.m_atom[i][first / accumulators];
  return Arch::template pack<T>(atom(lane, first % accumulators), atom(lane, first % accumulators + 1));
}

template <WarpMmaArchitecture Arch, class T, Use use, int Rows, int Cols>
SPOROS_FUNCTION void convert(Operand<Arch, T, use, Rows, Cols>& P, Fragment<Arch, float, Rows, Cols> const& S) {
  using Factor = Operand<Arch, T, use, Rows, Cols>;
  using Grid = typename Factor::Grid;
  using Atom = typename Arch::Atom;
  constexpr bool in_scratch = Factor::has_plain || Factor::has_transposed;
  P.m_token.check_joined();
  S.m_token.check_joined();
  if constexpr (in_scratch) P.m_team.barrier();  // somebody may still read the last one
  Arch::for_each_lane([&](int lane) {
    SPOROS_UNROLL
    for (int i = 0; i < Grid::row_atoms; ++i) {
      SPOROS_UNROLL
      for (int k = 0; k < Grid::column_atoms * Atom::accumulators / 8; ++k) {
        SPOROS_UNROLL
        for (int r = 0; r < 4; ++r) {
          std::uint32_t const pair = pack_pair<T>(S, lane, i, k, r);
          if constexpr (Factor::in_registers) P.m_registers.m_atom[i][k](lane, r) = pair;
          if constexpr (Factor::has_plain) {
            Position const at = Atom::left_pair(lane, r);
            Arch::put(&P.m_block.plain(S.m_first_row + i * Atom::rows + at.row,
                                       S.m_first_column + k * Atom::depth + at.column),
                      pair);
          }
          if constexpr (Factor::has_transposed) {
            constexpr int accumulators = Atom::accumulators;
            int const first = 8 * k + 2 * r;
            int const row = S.row(lane, i, first % accumulators);
            int const column = S.column(lane, first / accumulators, first % accumulators);
            int const place = row / Atom::depth * Atom::depth + Atom::place_of_row(row % Atom::depth);
            Arch::put(&P.m_block.transposed(column, place), T::from_bits(typename T::Bits(pair)));
            Arch::put(&P.m_block.transposed(column + 1, place), T::from_bits(typename T::Bits(pair >> 16)));
          }
        }
      }
    }
  });
  if constexpr (in_scratch) P.m_team.barrier();
}

// ------------------------------------------------------------------------------------- products

/// C += A B over Steps atoms of depth; left(lanes, i, k) and right(lanes, j, k) yield the factors of atom row i and
/// atom column j.
template <class T, int Steps, WarpMmaArchitecture Arch, int Rows, int Cols, class Left, class Right>
SPOROS_FUNCTION void multiply_add(Fragment<Arch, float, Rows, Cols>& C, Left const& left, Right const& right) {
  using Grid = WarpGrid<Arch, Rows, Cols>;
  typename Arch::Lanes const lanes;
  SPOROS_UNROLL
  for (int k = 0; k < Steps; ++k) {
    WarpMmaFactor<Arch> a[Grid::row_atoms];
    SPOROS_UNROLL
    for (int i = 0; i < Grid::row_atoms; ++i) a[i] = left(lanes, i, k);
    SPOROS_UNROLL
    for (int j = 0; j < Grid::column_atoms; ++j) {
      WarpMmaFactor<Arch> const b = right(lanes, j, k);
      SPOROS_UNROLL
      for (int i = 0; i < Grid::row_atoms; ++i) Arch::template mma<T>(C.m_atom[i][j], a[i], b);
    }
  }
}

template <WarpMmaArchitecture Arch, int Rows, int Cols>
SPOROS_FUNCTION void clear(Fragment<Arch, float, Rows, Cols>& C) {
  C.walk([&](int lane, int i, int j, int a) { C.m_atom[i][j](lane, a) = 0; });
}

template <WarpMmaArchitecture Arch, class T, int Rows, int Cols, int Depth, class A>
SPOROS_FUNCTION void mma_abt(Fragment<Arch, float, Rows, Cols>& S, A const& a,
                             BlockInScratch<Arch, T, Cols, Depth> const& b) {
  S.m_token.check_joined();
  Arch::Products::issue(
      [&S, a, b] {
        clear(S);
        multiply_add<T, Depth / Arch::Atom::depth>(
            S, [&](auto lanes, int i, int k) { return a.left(lanes, S.m_first_row, i, k); },
            [&](auto lanes, int j, int k) { return b.right_transposed(lanes, S.m_first_column, j, k); });
      },
      S.m_token);
}

/// An instruction that needs the result of a product waits for it; the emulator insists on the join all the same, so that
/// a body tested for these architectures is sound on one whose products are asynchronous.
template <int InFlight, WarpMmaArchitecture Arch, int Rows, int Cols, class... Others>
SPOROS_FUNCTION void join(Fragment<Arch, float, Rows, Cols>&, Others&...) {
  Arch::Products::template join<InFlight>();
}

/// A product is a warp's own affair here anyway.
template <WarpMmaArchitecture Arch, class T, int Rows, int Cols, int Depth, class A>
SPOROS_FUNCTION void mma_abt_diverged(Fragment<Arch, float, Rows, Cols>& S, A const& a,
                                      BlockInScratch<Arch, T, Cols, Depth> const& b) {
  mma_abt(S, a, b);
  join<0>(S);
}

template <WarpMmaArchitecture Arch, class T, Use use, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_ab(Fragment<Arch, float, Rows, Cols>& O, Operand<Arch, T, use, Rows, Depth>& P,
                            BlockInScratch<Arch, T, Depth, Cols> const& b) {
  O.m_token.check_joined();
  Arch::Products::issue(
      [&O, &P, b] {
        multiply_add<T, Depth / Arch::Atom::depth>(
            O, [&](auto lanes, int i, int k) { return P.left(lanes, O.m_first_row, i, k); },
            [&](auto lanes, int j, int k) { return b.right(lanes, O.m_first_column, j, k); });
      },
      O.m_token, P.m_token);
}

/// The product transposed, Bᵀ A, so that neighbouring accumulators are neighbours in memory.
template <WarpMmaArchitecture Arch, int Rows, int Cols>
class ColumnSums<Arch, float, Rows, Cols> {
 public:
  SPOROS_FUNCTION explicit ColumnSums(Team<Arch> const& team) : m_product(team) {}

  SPOROS_FUNCTION void open(Matrix<float> const& to, int first) {
    m_to = to;
    m_first = first;
  }

  SPOROS_FUNCTION void add() {
    float* const to = m_to.row(m_first);
    m_product.for_each(
        [&](float& element, auto, int column, int row) { Arch::add_to(to + (column * m_to.stride + row), element); });
  }

  Fragment<Arch, float, Cols, Rows> m_product;

 private:
  Matrix<float> m_to;
  int m_first;
};

template <WarpMmaArchitecture Arch, class T, Use use, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_atb(ColumnSums<Arch, float, Rows, Cols>& sums, BlockInScratch<Arch, T, Depth, Rows> const& a,
                             Operand<Arch, T, use, Depth, Cols>& B) {
  auto& product = sums.m_product;
  product.m_token.check_joined();
  Arch::Products::issue(
      [&product, a, b = B.m_block] {
        clear(product);
        multiply_add<T, Depth / Arch::Atom::depth>(
            product, [&](auto lanes, int i, int k) { return b.left_transposed(lanes, product.m_first_row, i, k); },
            [&](auto lanes, int j, int k) { return a.right(lanes, product.m_first_column, j, k); });
      },
      product.m_token, B.m_token);
}

template <int InFlight, WarpMmaArchitecture Arch, int Rows, int Cols, class... Others>
SPOROS_FUNCTION void join(ColumnSums<Arch, float, Rows, Cols>&, Others&...) {
  Arch::Products::template join<InFlight>();
}

// ------------------------------------------------------------------------------------- rows

template <WarpMmaArchitecture Arch, int Rows, class Op>
SPOROS_FUNCTION void combine_lanes(RowValues<Arch, float, Rows>& x, Op const& op) {
  static_assert(WarpGrid<Arch, Rows, 16 * Rows>::column_warps == 1, "a row lies in one warp");
  SPOROS_UNROLL
  for (int mask = Arch::Atom::first_row_lane; mask < Arch::Atom::row_lanes; mask *= 2) {
    auto const other = Arch::exchange(x.m_values, mask);
    x.for_each_slot([&](WarpMmaSlot slot) { x(slot) = op(x(slot), other(slot.lane, slot.i)); });
  }
}

template <WarpMmaArchitecture Arch, int Rows, class Predicate>
SPOROS_FUNCTION bool any(RowValues<Arch, float, Rows> const& x, Predicate const& predicate) {
  return Arch::any_lane([&](int lane) {
    bool found = false;
    SPOROS_UNROLL
    for (int i = 0; i < x.slots; ++i) found = predicate(x({lane, i})) || found;
    return found;
  });
}

/// The matrix has an even number of columns, and pairs of them are aligned.
template <class T, WarpMmaArchitecture Arch, int Rows, int Cols>
SPOROS_FUNCTION void store_rows(Team<Arch> const&, Matrix<T> const& to, int first_row,
                                Fragment<Arch, float, Rows, Cols>& x) {
  x.m_token.check_joined();
  x.walk([&](int lane, int i, int j, int a) {
    if (a % 2 != 0) return;
    int const row = first_row + x.row(lane, i, a), column = x.column(lane, j, a);
    if (row >= to.rows || column >= to.columns) return;
    auto const& atom = x.m_atom[i][j];
    T* const pair = to.row(row) + column;
    if constexpr (std::is_same_v<T, float>) {
      pair[0] = atom(lane, a);
      pair[1] = atom(lane, a + 1);
    } else {
      Arch::store_pair(pair, Arch::template pack<T>(atom(lane, a), atom(lane, a + 1)));
    }
  });
}

template <WarpMmaArchitecture Arch, int Rows>
SPOROS_FUNCTION void store_rows(Team<Arch> const& team, Matrix<float> const& to, int first_row,
                                RowValues<Arch, float, Rows> const& x) {
  int const first = first_row + WarpGrid<Arch, Rows, 16 * Rows>::first_row(team.warp());
  x.for_each_slot([&](WarpMmaSlot slot) {
    int const row = first + x.row(slot);
    if (row < to.rows) *to.row(row) = x(slot);  // all lanes of a row write the same value
  });
}

// ------------------------------------------------------------------------------------- from memory

/// A left factor that takes few registers of a lane skips scratch: each lane loads its own elements.
template <WarpMmaArchitecture Arch, class T, int Rows, int Cols>
class LeftFromMemory {
 public:
  using Registers = LeftRegisters<Arch, Rows, Cols>;

  SPOROS_FUNCTION void load(Team<Arch> const& team, Matrix<T const> const& source, int n) {
    std::int64_t const first = std::int64_t(n) * Rows;
    T const* const from = source.row(first);
    m_registers.for_each_pair(WarpGrid<Arch, Rows, 16 * Rows>::first_row(team.warp()),
                              [&](std::uint32_t& pair, int row, int column) {
                                bool const real = first + row < source.rows && column < source.columns;
                                pair = real ? Arch::load_pair(from + row * source.stride + column) : 0;
                              });
  }

  SPOROS_FUNCTION BlockInRegisters<Arch, Rows, Cols> block() const { return {m_registers}; }

 private:
  Registers m_registers;
};

struct WarpMmaColumnValues {
  float const* data;
  SPOROS_FUNCTION float operator()(int column) const { return data[column]; }
};

/// Read where they lie: a few cache lines, which all warps share.
template <WarpMmaArchitecture Arch, int Rows, int Stages>
class Pipeline<Arch, float, Use::column_values, Rows, 1, Stages> {
 public:
  struct Storage {};

  SPOROS_FUNCTION Pipeline(Team<Arch>&, Storage&) {}
  SPOROS_FUNCTION void open(Matrix<float const> const& source, BlockRange const&) { m_source = source; }
  SPOROS_FUNCTION void load(int) {}
  SPOROS_FUNCTION void prefetch(int) {}
  SPOROS_FUNCTION void release(int) {}
  SPOROS_FUNCTION WarpMmaColumnValues wait(int n) const { return {m_source.row(std::int64_t(n) * Rows)}; }

 private:
  Matrix<float const> m_source;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
