// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TILE_SIMT_HPP
#define SPOROS_TILE_SIMT_HPP

#include "tile/Sporos_Tile.hpp"

// The tile layer for a GPU of which nothing is known but that it has lanes, shuffles and scratch, written once for the GPU
// and for its emulator: on the GPU for_each_lane(f) calls f for the lane that executes it, and Registers<T, N> are N
// registers of that lane; the emulator calls f for all lanes of a warp and keeps all their values.
namespace Sporos::inline SPOROS_LEVEL {

/// How a fragment is spread over the team. Sixteen neighbouring lanes, a group, hold the same rows: row r belongs to group
/// r mod 8, column c to lane c mod 16 of each group. So a thread has a block of rows by columns, whose products it
/// computes from as many values of either factor; neighbouring lanes hold neighbouring columns, and a group's exchanges
/// stay within a warp of any width. Our warps have 32 lanes even where the hardware's have 64.
struct SimtLayout {
  static constexpr int lanes = 32;
  static constexpr int warps = 4;
  static constexpr int group = 16;
  static constexpr int groups = warps * lanes / group;

  SPOROS_FUNCTION static constexpr int row(int warp, int lane, int i) {
    return groups * i + warp * (lanes / group) + lane / group;
  }
  SPOROS_FUNCTION static constexpr int column(int lane, int j) { return group * j + (lane & (group - 1)); }
};

template <class Arch>
concept SimtArchitecture = requires { typename Arch::SimtInstructions; };

/// Row i of those of a lane
struct SimtSlot {
  int lane;
  int i;
};

template <SimtArchitecture Arch, class C, int Rows>
class RowValues<Arch, C, Rows> {
  static_assert(Rows % SimtLayout::groups == 0, "every group has as many rows");

 public:
  static constexpr int rows = Rows / SimtLayout::groups;  // of a lane

  SPOROS_FUNCTION C& operator()(SimtSlot slot) { return m_values(slot.lane, slot.i); }
  SPOROS_FUNCTION C operator()(SimtSlot slot) const { return m_values(slot.lane, slot.i); }

  template <class F>
  SPOROS_FUNCTION static void for_each_slot(F const& f) {
    Arch::for_each_lane([&](int lane) {
      SPOROS_UNROLL
      for (int i = 0; i < rows; ++i) f(SimtSlot{lane, i});
    });
  }

  typename Arch::template Registers<C, rows> m_values;
};

template <SimtArchitecture Arch, class C, int Rows, int Cols>
class Fragment<Arch, C, Rows, Cols> {
  static_assert(Rows % SimtLayout::groups == 0 && Cols % SimtLayout::group == 0, "every lane has as many elements");

 public:
  static constexpr int rows = Rows / SimtLayout::groups;  // of a lane
  static constexpr int columns = Cols / SimtLayout::group;

  SPOROS_FUNCTION explicit Fragment(Team<Arch> const& team) : m_warp(team.warp()) {}
  Fragment(Fragment const&) = delete;
  Fragment& operator=(Fragment const&) = delete;

  template <class F>
  SPOROS_FUNCTION void for_each(F const& f) {
    m_token.check_joined();
    walk([&](int lane, int i, int j) { f(m_column[j](lane, i), SimtSlot{lane, i}, row(lane, i), column(lane, j)); });
  }

  template <class F>
  SPOROS_FUNCTION void for_each_with(Fragment& y, F const& f) {
    m_token.check_joined();
    y.m_token.check_joined();
    walk([&](int lane, int i, int j) {
      f(m_column[j](lane, i), y.m_column[j](lane, i), SimtSlot{lane, i}, row(lane, i), column(lane, j));
    });
  }

  template <class F>
  SPOROS_FUNCTION static void walk(F const& f) {
    Arch::for_each_lane([&](int lane) {
      SPOROS_UNROLL
      for (int j = 0; j < columns; ++j) {
        SPOROS_UNROLL
        for (int i = 0; i < rows; ++i) f(lane, i, j);
      }
    });
  }

  SPOROS_FUNCTION int row(int lane, int i) const { return SimtLayout::row(m_warp, lane, i); }
  SPOROS_FUNCTION static int column(int lane, int j) { return SimtLayout::column(lane, j); }

  typename Arch::template Registers<C, rows> m_column[columns];
  int m_warp;
  [[no_unique_address]] typename Arch::ProductToken m_token;
};

// ------------------------------------------------------------------------------------- tiles in scratch

/// What a lane reads at once
template <class C>
struct alignas(16) SimtChunk {
  static constexpr int size = 16 / sizeof(C);
  C value[size];
};

/// A tile in scratch, row by row, in the type of the accumulators. Lanes read 16 bytes each of sixteen neighbouring rows:
/// an odd number of such chunks in a row spreads them over all banks.
template <class C, int Rows, int Cols>
struct SimtTile {
  static constexpr int chunk_size = SimtChunk<C>::size;
  static constexpr int stride = Cols + (Cols / chunk_size % 2 == 0 ? chunk_size : 0);
  static constexpr int size = Rows * stride;
  static_assert(Cols % chunk_size == 0);

  SPOROS_FUNCTION SimtChunk<C> const& chunk(int row, int k) const {
    return *reinterpret_cast<SimtChunk<C> const*>(data + row * stride + k * chunk_size);
  }
  SPOROS_FUNCTION C& operator()(int row, int column) const { return data[row * stride + column]; }

  C* data;
};

/// A thread's share of Count elements on their way through registers, where all of them can be awaited at once. They lie in
/// memory one Minor after another, and neighbouring threads have neighbours in memory.
template <SimtArchitecture Arch, class C, int Count>
class SimtShare {
  static constexpr int threads = Team<Arch>::threads;
  static_assert(Count % threads == 0, "every thread has as many elements");

 public:
  /// f(element, major, minor)
  template <int Minor, class F>
  SPOROS_FUNCTION void for_each(Team<Arch> const& team, F const& f) {
    static_assert(threads % Minor == 0 || Minor % threads == 0);
    Arch::for_each_lane([&](int lane) {
      int const thread = SimtLayout::lanes * team.warp() + lane;
      SPOROS_UNROLL
      for (int i = 0; i < Count / threads; ++i) {
        if constexpr (threads % Minor == 0)
          f(m_values(lane, i), thread / Minor + i * (threads / Minor), thread & (Minor - 1));
        else
          f(m_values(lane, i), i / (Minor / threads), thread + i % (Minor / threads) * threads);
      }
    });
  }

 private:
  typename Arch::template Registers<C, Count / threads> m_values;
};

/// Plain copies, between two barriers: before the first the team may still read the buffer's last block, after the second
/// the new one is complete.
template <SimtArchitecture Arch, class T, Use use, int Rows, int Cols, int Stages>
class Pipeline<Arch, T, use, Rows, Cols, Stages> {
 public:
  using C = ComputeType<T>;
  using Tile = SimtTile<C, Rows, Cols>;
  struct alignas(16) Storage {
    C stage[Stages][Tile::size];
  };

  SPOROS_FUNCTION Pipeline(Team<Arch>& team, Storage& storage) : m_team(team), m_storage(storage) {}
  SPOROS_FUNCTION void open(Matrix<T const> const& source, BlockRange const&) { m_source = source; }
  SPOROS_FUNCTION void load(int) {}
  SPOROS_FUNCTION void prefetch(int) {}
  SPOROS_FUNCTION void release(int) {}

  SPOROS_FUNCTION Tile wait(int n) {
    std::int64_t const first = std::int64_t(n) * Rows;
    std::int64_t const rows = m_source.rows - first;
    T const* const from = m_source.row(first);
    SimtShare<Arch, C, Rows * Cols> share;
    share.template for_each<Cols>(m_team, [&](C& element, int row, int column) {
      element = row < rows && column < m_source.columns ? C(from[row * m_source.stride + column]) : C(0);
    });
    Tile const tile{m_storage.stage[unsigned(n) % Stages]};
    m_team.barrier();
    share.template for_each<Cols>(m_team, [&](C& element, int row, int column) { tile(row, column) = element; });
    m_team.barrier();
    return tile;
  }

 private:
  Team<Arch>& m_team;
  Storage& m_storage;
  Matrix<T const> m_source;
};

template <class C>
struct SimtColumnValues {
  C const* data;
  SPOROS_FUNCTION C operator()(int column) const { return data[column]; }
};

/// Read where they lie: a cache line or two, which all groups share.
template <SimtArchitecture Arch, class C, int Rows, int Stages>
class Pipeline<Arch, C, Use::column_values, Rows, 1, Stages> {
 public:
  struct Storage {};

  SPOROS_FUNCTION Pipeline(Team<Arch>&, Storage&) {}
  SPOROS_FUNCTION void open(Matrix<C const> const& source, BlockRange const&) { m_source = source; }
  SPOROS_FUNCTION void load(int) {}
  SPOROS_FUNCTION void prefetch(int) {}
  SPOROS_FUNCTION void release(int) {}
  SPOROS_FUNCTION SimtColumnValues<C> wait(int n) const { return {m_source.row(std::int64_t(n) * Rows)}; }

 private:
  Matrix<C const> m_source;
};

// ------------------------------------------------------------------------------------- products

/// A factor in registers, as the fragment held it. In full precision: rounding to T would cost time and gain nothing.
/// As a right factor it is also in scratch, for there a thread needs elements of all others.
template <SimtArchitecture Arch, class T, Use use, int Rows, int Cols>
class Operand<Arch, T, use, Rows, Cols> {
 public:
  using C = ComputeType<T>;
  using Tile = SimtTile<C, Rows, Cols>;

  static constexpr bool in_registers = includes(use, Use::left);
  static constexpr bool in_scratch = includes(use, Use::right);
  static constexpr int rows = in_registers ? Rows / SimtLayout::groups : 1;
  static constexpr int columns = in_registers ? Cols / SimtLayout::group : 1;

  struct alignas(16) Storage {
    C values[in_scratch ? Tile::size : 1];
  };

  SPOROS_FUNCTION Operand(Team<Arch>& team, Storage& storage) : m_team(team), m_tile{storage.values} {}

  typename Arch::template Registers<C, rows> m_column[columns];
  Team<Arch>& m_team;
  Tile m_tile;
  [[no_unique_address]] typename Arch::ProductToken m_token;
};

template <SimtArchitecture Arch, class T, Use use, int Rows, int Cols>
SPOROS_FUNCTION void convert(Operand<Arch, T, use, Rows, Cols>& P,
                             Fragment<Arch, ComputeType<T>, Rows, Cols> const& S) {
  using Factor = Operand<Arch, T, use, Rows, Cols>;
  P.m_token.check_joined();
  S.m_token.check_joined();
  if constexpr (Factor::in_scratch) P.m_team.barrier();  // somebody may still read the last one
  S.walk([&](int lane, int i, int j) {
    auto const value = S.m_column[j](lane, i);
    if constexpr (Factor::in_registers) P.m_column[j](lane, i) = value;
    if constexpr (Factor::in_scratch) P.m_tile(S.row(lane, i), S.column(lane, j)) = value;
  });
  if constexpr (Factor::in_scratch) P.m_team.barrier();
}

/// S += A Bᵀ, both factors in scratch
template <SimtArchitecture Arch, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void add_abt(Fragment<Arch, C, Rows, Cols>& S, SimtTile<C, Rows, Depth> A, SimtTile<C, Cols, Depth> B) {
  using Result = Fragment<Arch, C, Rows, Cols>;
  Arch::for_each_lane([&](int lane) {
    constexpr int size = SimtChunk<C>::size;
    for (int k = 0; k < Depth / size; ++k) {
      SimtChunk<C> a[Result::rows];
      SPOROS_UNROLL
      for (int i = 0; i < Result::rows; ++i) a[i] = A.chunk(S.row(lane, i), k);
      SPOROS_UNROLL
      for (int j = 0; j < Result::columns; ++j) {
        SimtChunk<C> const b = B.chunk(S.column(lane, j), k);
        SPOROS_UNROLL
        for (int e = 0; e < size; ++e) {
          SPOROS_UNROLL
          for (int i = 0; i < Result::rows; ++i)
            S.m_column[j](lane, i) = Arch::multiply_add(a[i].value[e], b.value[e], S.m_column[j](lane, i));
        }
      }
    }
  });
}

template <SimtArchitecture Arch, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_abt(Fragment<Arch, C, Rows, Cols>& S, SimtTile<C, Rows, Depth> A, SimtTile<C, Cols, Depth> B) {
  fill(S, C(0));
  add_abt(S, A, B);
  Arch::ProductToken::issue(S.m_token);
}

/// A product is done when it returns; the emulator insists on the join all the same, so that a body tested for this
/// architecture is sound on one whose products are asynchronous.
template <int InFlight, SimtArchitecture Arch, class C, int Rows, int Cols, class... Others>
SPOROS_FUNCTION void join(Fragment<Arch, C, Rows, Cols>&, Others&...) {
  Arch::ProductToken::template join<InFlight>();
}

/// No product needs another warp: groups lie within one.
template <SimtArchitecture Arch, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_abt_diverged(Fragment<Arch, C, Rows, Cols>& S, SimtTile<C, Rows, Depth> A,
                                      SimtTile<C, Cols, Depth> B) {
  mma_abt(S, A, B);
  join<0>(S);
}

/// Column k of P is held by one lane of each group, which gives it to the others.
template <SimtArchitecture Arch, class T, Use use, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_ab(Fragment<Arch, C, Rows, Cols>& O, Operand<Arch, T, use, Rows, Depth>& P,
                            SimtTile<C, Depth, Cols> B) {
  using Result = Fragment<Arch, C, Rows, Cols>;
  O.m_token.check_joined();
  SPOROS_UNROLL
  for (int column = 0; column < Depth / SimtLayout::group; ++column) {
    for (int source = 0; source < SimtLayout::group; ++source) {
      auto const p = Arch::broadcast(P.m_column[column], source);
      Arch::for_each_lane([&](int lane) {
        SPOROS_UNROLL
        for (int j = 0; j < Result::columns; ++j) {
          C const b = B(SimtLayout::group * column + source, O.column(lane, j));
          SPOROS_UNROLL
          for (int i = 0; i < Result::rows; ++i)
            O.m_column[j](lane, i) = Arch::multiply_add(p(lane, i), b, O.m_column[j](lane, i));
        }
      });
    }
  }
  Arch::ProductToken::issue(O.m_token, P.m_token);
}

/// Its columns are spread over groups and its rows over lanes, so that neighbouring lanes add to neighbouring addresses.
template <SimtArchitecture Arch, class C, int Rows, int Cols>
class ColumnSums<Arch, C, Rows, Cols> {
 public:
  SPOROS_FUNCTION explicit ColumnSums(Team<Arch> const& team) : m_product(team) {}

  SPOROS_FUNCTION void open(Matrix<C> const& to, int first) {
    m_to = to;
    m_first = first;
  }

  SPOROS_FUNCTION void add() {
    m_product.for_each([&](C& element, auto, int column, int row) {
      if (row < m_to.columns) m_to.row(m_first + column)[row] += element;
    });
  }

  Fragment<Arch, C, Cols, Rows> m_product;

 private:
  Matrix<C> m_to;
  int m_first;
};

template <SimtArchitecture Arch, class T, Use use, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_atb(ColumnSums<Arch, C, Rows, Cols>& sums, SimtTile<C, Depth, Rows> A,
                             Operand<Arch, T, use, Depth, Cols>& B) {
  auto& product = sums.m_product;
  using Result = Fragment<Arch, C, Cols, Rows>;
  fill(product, C(0));
  Arch::for_each_lane([&](int lane) {
    for (int k = 0; k < Depth; ++k) {
      C b[Result::rows];
      SPOROS_UNROLL
      for (int i = 0; i < Result::rows; ++i) b[i] = B.m_tile(k, product.row(lane, i));
      SPOROS_UNROLL
      for (int j = 0; j < Result::columns; ++j) {
        C const a = A(k, product.column(lane, j));
        SPOROS_UNROLL
        for (int i = 0; i < Result::rows; ++i)
          product.m_column[j](lane, i) = Arch::multiply_add(a, b[i], product.m_column[j](lane, i));
      }
    }
  });
  Arch::ProductToken::issue(product.m_token, B.m_token);
}

template <int InFlight, SimtArchitecture Arch, class C, int Rows, int Cols, class... Others>
SPOROS_FUNCTION void join(ColumnSums<Arch, C, Rows, Cols>&, Others&...) {
  Arch::ProductToken::template join<InFlight>();
}

// ------------------------------------------------------------------------------------- rows

template <SimtArchitecture Arch, class C, int Rows, class Op>
SPOROS_FUNCTION void combine_lanes(RowValues<Arch, C, Rows>& x, Op const& op) {
  SPOROS_UNROLL
  for (int mask = 1; mask < SimtLayout::group; mask *= 2) {
    auto const other = Arch::exchange(x.m_values, mask);
    x.for_each_slot([&](SimtSlot slot) { x(slot) = op(x(slot), other(slot.lane, slot.i)); });
  }
}

template <SimtArchitecture Arch, class C, int Rows, class Predicate>
SPOROS_FUNCTION bool any(RowValues<Arch, C, Rows> const& x, Predicate const& predicate) {
  return Arch::any_lane([&](int lane) {
    bool found = false;
    SPOROS_UNROLL
    for (int i = 0; i < x.rows; ++i) found = predicate(x({lane, i})) || found;
    return found;
  });
}

template <class T, SimtArchitecture Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION void store_rows(Team<Arch> const&, Matrix<T> const& to, int first_row,
                                Fragment<Arch, C, Rows, Cols>& x) {
  x.for_each([&](C& element, auto, int row, int column) {
    if (first_row + row < to.rows && column < to.columns) to.row(first_row + row)[column] = T(element);
  });
}

template <SimtArchitecture Arch, class C, int Rows>
SPOROS_FUNCTION void store_rows(Team<Arch> const& team, Matrix<C> const& to, int first_row,
                                RowValues<Arch, C, Rows> const& x) {
  x.for_each_slot([&](SimtSlot slot) {
    int const row = first_row + SimtLayout::row(team.warp(), slot.lane, slot.i);
    if (row < to.rows) *to.row(row) = x(slot);  // all lanes of a group write the same value
  });
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
