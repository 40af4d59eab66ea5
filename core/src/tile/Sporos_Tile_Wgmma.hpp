// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TILE_WGMMA_HPP
#define SPOROS_TILE_WGMMA_HPP

#include "tile/Sporos_Tile.hpp"
#include "tile/Sporos_Wgmma_Layout.hpp"

// The tile layer for NVIDIA Hopper, written once for the GPU and for its emulator, as Sporos_Tile_Simt.hpp is: on the GPU
// for_each_lane(f) calls f for the lane that executes it, the emulator calls f for all lanes of a warp.
//
// A team has one warpgroup that loads, the producer, and some that compute; each of these has 64 rows of every fragment.
// Between them are barriers with phases (mbarrier): "full" says that a buffer's block has arrived, "free" that all warps
// have read it. Products are asynchronous; whoever issues them goes on until join().
namespace Sporos::inline SPOROS_LEVEL {

template <class Arch>
concept WgmmaArchitecture = requires { typename Arch::WgmmaInstructions; };

/// Register i of those that a lane keeps for its rows
struct WgmmaSlot {
  int lane;
  int i;
};

template <WgmmaArchitecture Arch, class C, int Rows>
class RowValues<Arch, C, Rows> {
 public:
  static constexpr int rows = 2;  // of a lane

  SPOROS_FUNCTION C& operator()(WgmmaSlot slot) { return m_values(slot.lane, slot.i); }
  SPOROS_FUNCTION C operator()(WgmmaSlot slot) const { return m_values(slot.lane, slot.i); }

  template <class F>
  SPOROS_FUNCTION static void for_each_slot(F const& f) {
    Arch::for_each_lane([&](int lane) {
      SPOROS_UNROLL
      for (int i = 0; i < rows; ++i) f(WgmmaSlot{lane, i});
    });
  }

  typename Arch::template Registers<C, rows> m_values;
};

template <WgmmaArchitecture Arch, class C, int Rows, int Cols>
class Fragment<Arch, C, Rows, Cols> {
 public:
  static constexpr int registers = Cols / 2;  // of a lane

  SPOROS_FUNCTION explicit Fragment(Team<Arch> const& team)
      : m_first_row(WgmmaLayout::warp_rows * team.warp()), m_group_row(WgmmaLayout::rows * team.group()) {}
  Fragment(Fragment const&) = delete;
  Fragment& operator=(Fragment const&) = delete;

  template <class F>
  SPOROS_FUNCTION void for_each(F const& f) {
    m_token.check_joined();
    walk([&](int lane, int r) { f(m_values(lane, r), slot(lane, r), row(lane, r), WgmmaLayout::column(lane, r)); });
  }

  template <class F>
  SPOROS_FUNCTION void for_each_with(Fragment& y, F const& f) {
    m_token.check_joined();
    y.m_token.check_joined();
    walk([&](int lane, int r) {
      f(m_values(lane, r), y.m_values(lane, r), slot(lane, r), row(lane, r), WgmmaLayout::column(lane, r));
    });
  }

  template <class F>
  SPOROS_FUNCTION static void walk(F const& f) {
    Arch::for_each_lane([&](int lane) {
      SPOROS_UNROLL
      for (int r = 0; r < registers; ++r) f(lane, r);
    });
  }

  SPOROS_FUNCTION static WgmmaSlot slot(int lane, int r) { return {lane, r / 2 % 2}; }
  SPOROS_FUNCTION int row(int lane, int r) const { return m_first_row + WgmmaLayout::row(lane, r); }

  typename Arch::template Registers<C, registers> m_values;
  int m_first_row;  // of this warp
  int m_group_row;  // of its warpgroup
  [[no_unique_address]] typename Arch::ProductToken m_token;
};

// ------------------------------------------------------------------------------------- from memory to scratch

/// Buffers that the producer fills in turn and all computing warps read. Blocks are taken in descending order, all of the open
/// range: so the number of a block tells its buffer and the phase of its barriers, and loops carry no state of rings.
template <WgmmaArchitecture Arch, int Stages>
class BufferRing {
  static_assert((Stages & (Stages - 1)) == 0, "a power of two");

 public:
  using Barriers = typename Team<Arch>::Barriers;

  SPOROS_FUNCTION BufferRing(Team<Arch>& team, int arrivals)
      : m_full(team.new_barriers(Stages, arrivals)), m_free(team.new_barriers(Stages, Team<Arch>::warps)) {}

  SPOROS_FUNCTION void open(BlockRange const& range) {
    m_first = m_taken + unsigned(range.end) - 1;
    if (range.end > range.begin) m_taken += unsigned(range.end - range.begin);
  }

  SPOROS_FUNCTION int stage(int n) const { return int((m_first - unsigned(n)) & (Stages - 1)); }
  SPOROS_FUNCTION Barriers full(int n) const { return m_full + stage(n); }

  SPOROS_FUNCTION void wait_until_free(Team<Arch>& team, int n) const { team.wait(m_free + stage(n), parity(n) ^ 1); }
  SPOROS_FUNCTION void wait_until_full(Team<Arch>& team, int n) const { team.wait(full(n), parity(n)); }
  SPOROS_FUNCTION void release(Team<Arch>& team, int n) const { team.arrive(m_free + stage(n)); }

 private:
  /// Whether the buffer came round an odd number of times before
  SPOROS_FUNCTION int parity(int n) const { return int((m_first - unsigned(n)) / Stages & 1); }

  Barriers m_full, m_free;
  unsigned m_taken = 0;  // blocks, of all ranges so far
  unsigned m_first = 0;  // ... before block 0 of this one, which may be beyond it
};

/// By tensor map, one copy for each panel of 64 columns, or in pieces of 16 bytes by all lanes of the producer, where there
/// are no maps.
template <WgmmaArchitecture Arch, class T, Use use, int Rows, int Cols, int Stages>
class Pipeline<Arch, T, use, Rows, Cols, Stages> {
 public:
  using Tile = SwizzledTile<T, Rows, Cols>;
  struct alignas(1024) Storage {
    T stage[Stages][Rows * Cols];
  };

  SPOROS_FUNCTION Pipeline(Team<Arch>& team, Storage& storage)
      : m_team(team), m_ring(team, team.loading_warps()), m_address(Arch::address(&storage)) {}

  SPOROS_FUNCTION void open(Matrix<T const> const& source, BlockRange const& range) {
    m_source = source;
    m_range = range;
    m_ring.open(range);
  }

  SPOROS_FUNCTION void load(int n) {
    if (!m_range.contains(n)) return;
    m_ring.wait_until_free(m_team, n);
    if (m_team.has_maps())
      m_team.for_one_lane([&] { load_by_map(n); });
    else
      load_by_lanes(n);
  }

  SPOROS_FUNCTION void prefetch(int) {}
  SPOROS_FUNCTION Tile wait(int n) {
    m_ring.wait_until_full(m_team, n);
    return buffer(n);
  }
  SPOROS_FUNCTION void release(int n) { m_ring.release(m_team, n); }

 private:
  SPOROS_FUNCTION Tile buffer(int n) const { return {m_address + unsigned(m_ring.stage(n)) * Tile::bytes}; }

  SPOROS_FUNCTION void load_by_map(int n) {
    Tile const tile = buffer(n);
    auto const full = m_ring.full(n);
    // Rows that stay are read once, those that stream past once for each tile.
    constexpr bool stays = includes(use, Use::left | Use::left_transposed);
    m_team.arrive_and_expect(full, Tile::bytes);
    for (int panel = 0; panel < Cols / Tile::panel_columns; ++panel)
      m_team.template copy_box<T>(tile.address + unsigned(panel) * Tile::panel_bytes, m_source.place,
                                  panel * Tile::panel_columns, n * Rows, full, stays);
  }

  SPOROS_FUNCTION void load_by_lanes(int n) {
    Tile const tile = buffer(n);
    constexpr int chunks = Cols / Tile::chunk_size;  // of a row
    std::int64_t const first = std::int64_t(n) * Rows;
    bool const aligned = m_source.columns % Tile::chunk_size == 0 && m_source.stride % Tile::chunk_size == 0 &&
                         reinterpret_cast<std::uintptr_t>(m_source.data) % 16 == 0;
    Arch::for_each_lane([&](int lane) {
      for (int i = m_team.loading_thread(lane); i < Rows * chunks; i += Team<Arch>::loading_threads) {
        int const row = i / chunks, column = i % chunks * Tile::chunk_size;
        int const real = first + row < m_source.rows ? m_source.columns - column : 0;  // columns from here on
        T const* const from = m_source.row(first + row) + column;
        if (aligned)
          m_team.copy_chunk(tile.chunk(row, column), from, real > 0);
        else
          m_team.copy_elements(tile.chunk(row, column), from, real);
      }
    });
    m_team.arrive_after_copies(m_ring.full(n));
  }

  Team<Arch>& m_team;
  BufferRing<Arch, Stages> m_ring;
  std::uint32_t m_address;
  Matrix<T const> m_source;
  BlockRange m_range;
};

template <WgmmaArchitecture Arch, class C>
struct WgmmaColumnValues {
  std::uint32_t address;
  SPOROS_FUNCTION C operator()(int column) const {
    return Arch::template load<C>(address + unsigned(column) * unsigned(sizeof(C)));
  }
};

/// In one piece, which has a multiple of 16 bytes.
template <WgmmaArchitecture Arch, class C, int Rows, int Stages>
class Pipeline<Arch, C, Use::column_values, Rows, 1, Stages> {
 public:
  static constexpr int bytes = Rows * int(sizeof(C));
  struct alignas(16) Storage {
    C stage[Stages][Rows];
  };

  SPOROS_FUNCTION Pipeline(Team<Arch>& team, Storage& storage)
      : m_team(team), m_ring(team, team.loading_warps()), m_address(Arch::address(&storage)) {}

  SPOROS_FUNCTION void open(Matrix<C const> const& source, BlockRange const& range) {
    m_source = source;
    m_range = range;
    m_ring.open(range);
  }

  SPOROS_FUNCTION void load(int n) {
    if (!m_range.contains(n)) return;
    m_ring.wait_until_free(m_team, n);
    auto const full = m_ring.full(n);
    m_team.for_one_lane([&] {
      if (m_team.is_first_loading_warp()) {
        m_team.arrive_and_expect(full, bytes);
        m_team.copy_bytes(address(n), m_source.row(std::int64_t(n) * Rows), bytes, full);
      } else {
        m_team.arrive_alone(full);
      }
    });
  }

  SPOROS_FUNCTION void prefetch(int) {}
  SPOROS_FUNCTION WgmmaColumnValues<Arch, C> wait(int n) {
    m_ring.wait_until_full(m_team, n);
    return {address(n)};
  }
  SPOROS_FUNCTION void release(int n) { m_ring.release(m_team, n); }

 private:
  SPOROS_FUNCTION std::uint32_t address(int n) const { return m_address + unsigned(m_ring.stage(n)) * unsigned(bytes); }

  Team<Arch>& m_team;
  BufferRing<Arch, Stages> m_ring;
  std::uint32_t m_address;
  Matrix<C const> m_source;
  BlockRange m_range;
};

// ------------------------------------------------------------------------------------- products

/// A left factor in registers, where the fragment had it: its pairs of columns are the pairs of terms that a product wants.
/// As a right factor it is in scratch, transposed, in one of three buffers. For there a warpgroup needs the rows of the
/// others, and must not wait for them: it takes what they wrote one step before (see ColumnSums).
///
/// Two steps later a buffer is read by nobody: who has written step n + 2 has finished his products of step n.
template <WgmmaArchitecture Arch, class T, Use use, int Rows, int Cols>
class Operand<Arch, T, use, Rows, Cols> {
 public:
  static constexpr bool in_scratch = includes(use, Use::right);
  static constexpr int words = Cols / 4;  // of a lane, two elements each
  static constexpr int buffers = ExchangeBuffers::count;

  using Tile = SwizzledTile<T, Cols, Rows>;

  struct Empty {};
  struct alignas(1024) Buffers {
    T values[buffers][Rows * Cols];
  };
  using Storage = std::conditional_t<in_scratch, Buffers, Empty>;

  SPOROS_FUNCTION Operand(Team<Arch>& team, Storage& storage) : m_team(team) {
    if constexpr (in_scratch) m_address = Arch::address(&storage);
  }

  SPOROS_FUNCTION Tile tile(int buffer) const { return {m_address + unsigned(buffer) * Tile::bytes}; }

  typename Arch::template Registers<std::uint32_t, words> m_words;
  Team<Arch>& m_team;
  std::uint32_t m_address = 0;
  [[no_unique_address]] typename Arch::ProductToken m_token;
};

template <WgmmaArchitecture Arch, class T, Use use, class C, int Rows, int Cols>
SPOROS_FUNCTION void convert(Operand<Arch, T, use, Rows, Cols>& P, Fragment<Arch, C, Rows, Cols> const& S) {
  using Factor = Operand<Arch, T, use, Rows, Cols>;
  P.m_token.check_joined();
  S.m_token.check_joined();
  Arch::for_each_lane([&](int lane) {
    SPOROS_UNROLL
    for (int i = 0; i < Factor::words; ++i)
      P.m_words(lane, i) = Arch::template pack<T>(S.m_values(lane, 2 * i), S.m_values(lane, 2 * i + 1));
  });
  if constexpr (Factor::in_scratch) {
    int const buffer = P.m_team.begin_exchange();
    auto const tile = P.tile(buffer);
    SPOROS_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      // Four matrices of 8 x 8: registers 4 k ... 4 k + 3. A lane names one row of one of them, in the transposed tile.
      Arch::store_transposed(P.m_words, 4 * k, [&](int lane) {
        int const matrix = lane >> 3;
        return tile.chunk(16 * k + 8 * (matrix >> 1) + (lane & 7), S.m_first_row + 8 * (matrix & 1));
      });
    }
    P.m_team.end_exchange();
  }
}

/// S = A Bᵀ, both factors in scratch
template <WgmmaArchitecture Arch, class C, class T, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_abt(Fragment<Arch, C, Rows, Cols>& S, SwizzledTile<T, Rows, Depth> A,
                             SwizzledTile<T, Cols, Depth> B) {
  static_assert(Rows == WgmmaLayout::rows * Team<Arch>::groups, "each warpgroup has 64 rows");
  using Left = RowsAsVectors<T, Rows, Depth>;
  using Right = RowsAsVectors<T, Cols, Depth>;
  auto const a = Arch::opaque(Left::descriptor(A, S.m_group_row));
  auto const b = Arch::opaque(Right::descriptor(B, 0));
  Arch::begin_products();
  SPOROS_UNROLL
  for (int k = 0; k < Depth / WgmmaLayout::depth; ++k)
    Arch::template multiply<T, Left::transposed, Right::transposed>(S.m_values, a + Left::term(k), b + Right::term(k),
                                                                    k == 0);
  Arch::end_products(S.m_values);
  Arch::ProductToken::issue(S.m_token);
}

/// O += P B, P in registers
template <WgmmaArchitecture Arch, class T, Use use, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_ab(Fragment<Arch, C, Rows, Cols>& O, Operand<Arch, T, use, Rows, Depth>& P,
                            SwizzledTile<T, Depth, Cols> B) {
  static_assert(Rows == WgmmaLayout::rows * Team<Arch>::groups, "each warpgroup has 64 rows");
  using Right = ColumnsAsVectors<T, Depth, Cols>;
  O.m_token.check_joined();
  auto const b = Arch::opaque(Right::descriptor(B, 0));
  Arch::begin_products(O.m_values, P.m_words);
  SPOROS_UNROLL
  for (int k = 0; k < Depth / WgmmaLayout::depth; ++k)
    Arch::template multiply_add<T, Right::transposed>(O.m_values, P.m_words, 4 * k, b + Right::term(k));
  Arch::end_products(O.m_values);
  Arch::ProductToken::issue(O.m_token, P.m_token);
}

/// Sums of Aᵀ B are put off by one product, because B comes from all warpgroups: mma_atb() multiplies what the operand was
/// before, add() adds it where the sums were open before, finish() does the last. So nobody waits for another.
///
/// A team is not alone: sums are added atomically. (With a matrix for each team they are repeatable.) In a block of Cols rows
/// the elements lie in the order of registers, so that a warp adds to 512 bytes at once; ColumnSumsOrder tells where.
template <WgmmaArchitecture Arch, class C, int Rows, int Cols>
class ColumnSums<Arch, C, Rows, Cols> {
 public:
  using Order = ColumnSumsOrder<Team<Arch>::groups, Rows, Cols>;

  SPOROS_FUNCTION explicit ColumnSums(Team<Arch> const& team) : m_warp(team.warp()), m_group(team.group()) {}

  SPOROS_FUNCTION void open(Matrix<C> const& to, int first) { m_next = to.row(first); }

  SPOROS_FUNCTION void add() {
    m_token.check_joined();
    if (m_target != nullptr) {
      Arch::for_each_lane([&](int lane) {
        C* const first = m_target + Order::offset(m_warp, 0, lane);
        SPOROS_UNROLL
        for (int j = 0; j < Order::columns / 8; ++j) Arch::add_four(first + j * Order::part, m_values, 4 * j, lane);
      });
    }
    m_target = m_next;
  }

  typename Arch::template Registers<C, Order::columns / 2> m_values;
  C* m_next = nullptr;
  C* m_target = nullptr;
  int m_warp, m_group;
  [[no_unique_address]] typename Arch::ProductToken m_token;
};

template <WgmmaArchitecture Arch, class T, Use use, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void multiply_exchanged(ColumnSums<Arch, C, Rows, Cols>& sums, SwizzledTile<T, Depth, Rows> A,
                                        Operand<Arch, T, use, Depth, Cols>& B, int buffer) {
  using Order = typename ColumnSums<Arch, C, Rows, Cols>::Order;
  using Left = ColumnsAsVectors<T, Depth, Rows>;
  using Right = RowsAsVectors<T, Cols, Depth>;
  auto const a = Arch::opaque(Left::descriptor(A, Order::splits_rows ? sums.m_group : 0));
  auto const b =
      Arch::opaque(Right::descriptor(B.tile(buffer), Order::splits_rows ? 0 : Order::columns * sums.m_group));
  Arch::begin_products();
  SPOROS_UNROLL
  for (int k = 0; k < Depth / WgmmaLayout::depth; ++k)
    Arch::template multiply<T, Left::transposed, Right::transposed>(sums.m_values, a + Left::term(k),
                                                                    b + Right::term(k), k == 0);
  Arch::end_products(sums.m_values);
  Arch::ProductToken::issue(sums.m_token, B.m_token);
}

template <WgmmaArchitecture Arch, class T, Use use, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_atb(ColumnSums<Arch, C, Rows, Cols>& sums, SwizzledTile<T, Depth, Rows> A,
                             Operand<Arch, T, use, Depth, Cols>& B) {
  multiply_exchanged(sums, A, B, B.m_team.exchange_before());
}

/// At most InFlight products are unfinished; the registers named are the caller's
template <int InFlight, WgmmaArchitecture Arch, class C, int Rows, int Cols, class... Others>
SPOROS_FUNCTION void join(Fragment<Arch, C, Rows, Cols>& first, Others&... others) {
  Arch::template wait_products<InFlight>();
  Arch::ProductToken::template join<InFlight>();
  Arch::take(registers_of(first));
  (Arch::take(registers_of(others)), ...);
}

template <WgmmaArchitecture Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION auto& registers_of(Fragment<Arch, C, Rows, Cols>& x) {
  return x.m_values;
}
template <WgmmaArchitecture Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION auto& registers_of(ColumnSums<Arch, C, Rows, Cols>& x) {
  return x.m_values;
}
template <WgmmaArchitecture Arch, class T, Use use, int Rows, int Cols>
SPOROS_FUNCTION auto& registers_of(Operand<Arch, T, use, Rows, Cols>& x) {
  return x.m_words;
}

template <WgmmaArchitecture Arch, class T, Use use, class C, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void finish(ColumnSums<Arch, C, Rows, Cols>& sums, SwizzledTile<T, Depth, Rows> A,
                            Operand<Arch, T, use, Depth, Cols>& B) {
  B.m_team.wait_exchange();
  multiply_exchanged(sums, A, B, B.m_team.exchange_last());
  Arch::template wait_products<0>();
  Arch::ProductToken::template join<0>();
  Arch::take(sums.m_values);
  sums.add();
}

/// By products of warps (mma.sync), which leave the same elements in the same registers
template <WgmmaArchitecture Arch, class C, class T, int Rows, int Cols, int Depth>
SPOROS_FUNCTION void mma_abt_diverged(Fragment<Arch, C, Rows, Cols>& S, SwizzledTile<T, Rows, Depth> A,
                                      SwizzledTile<T, Cols, Depth> B) {
  fill(S, C(0));
  SPOROS_NO_UNROLL
  for (int k = 0; k < Depth; k += 16) {
    // Matrices of 8 x 8. Of A: rows 0-7 and 8-15 of terms 0-7, then of terms 8-15. Of B: terms 0-7 and 8-15 of its rows
    // 0-7, then of its rows 8-15.
    auto const a = Arch::load_matrices([&](int lane) {
      int const matrix = lane >> 3;
      return A.chunk(S.m_first_row + 8 * (matrix & 1) + (lane & 7), k + 8 * (matrix >> 1));
    });
    SPOROS_UNROLL
    for (int j = 0; j < Cols / 16; ++j) {
      auto const b = Arch::load_matrices([&](int lane) {
        int const matrix = lane >> 3;
        return B.chunk(16 * j + 8 * (matrix >> 1) + (lane & 7), k + 8 * (matrix & 1));
      });
      Arch::template multiply_add_in_warp<T>(S.m_values, 8 * j, a, b, 0);
      Arch::template multiply_add_in_warp<T>(S.m_values, 8 * j + 4, a, b, 2);
    }
  }
}

// ------------------------------------------------------------------------------------- rows

template <WgmmaArchitecture Arch, class C, int Rows, class Op>
SPOROS_FUNCTION void combine_lanes(RowValues<Arch, C, Rows>& x, Op const& op) {
  SPOROS_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {  // four neighbouring lanes have the same rows
    auto const other = Arch::exchange(x.m_values, mask);
    x.for_each_slot([&](WgmmaSlot slot) { x(slot) = op(x(slot), other(slot.lane, slot.i)); });
  }
}

template <WgmmaArchitecture Arch, class C, int Rows, class Predicate>
SPOROS_FUNCTION bool any(RowValues<Arch, C, Rows> const& x, Predicate const& predicate) {
  return Arch::any_lane([&](int lane) { return predicate(x({lane, 0})) || predicate(x({lane, 1})); });
}

/// Four neighbouring lanes exchange pairs until each has eight neighbouring elements of a row, which is one store.
template <class T, WgmmaArchitecture Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION void store_chunks(Matrix<T> const& to, int first_row, Fragment<Arch, C, Rows, Cols>& x) {
  SPOROS_UNROLL
  for (int i = 0; i < 2; ++i) {
    SPOROS_UNROLL
    for (int j = 0; j < Cols / 32; ++j) {
      typename Arch::template Registers<std::uint32_t, 4> words;
      Arch::for_each_lane([&](int lane) {
        SPOROS_UNROLL
        for (int w = 0; w < 4; ++w) {
          int const r = 16 * j + 4 * w + 2 * i;
          words(lane, w) = Arch::template pack<T>(x.m_values(lane, r), x.m_values(lane, r + 1));
        }
      });
      Arch::transpose_in_fours(words);
      Arch::for_each_lane([&](int lane) {
        int const row = first_row + x.row(lane, 2 * i), column = 32 * j + 8 * (lane & 3);
        if (row < to.rows && column < to.columns) Arch::store_four(to.row(row) + column, words, lane);
      });
    }
  }
}

template <class T, WgmmaArchitecture Arch, class C, int Rows, int Cols>
SPOROS_FUNCTION void store_rows(Team<Arch> const&, Matrix<T> const& to, int first_row,
                                Fragment<Arch, C, Rows, Cols>& x) {
  x.m_token.check_joined();
  bool const aligned = to.stride % 8 == 0 && to.columns % 8 == 0 && reinterpret_cast<std::uintptr_t>(to.data) % 16 == 0;
  if constexpr (sizeof(T) == 2) {
    if (aligned) {
      store_chunks(to, first_row, x);
      return;
    }
  }
  x.for_each([&](C& element, auto, int row, int column) {
    if (first_row + row < to.rows && column < to.columns) to.row(first_row + row)[column] = T(element);
  });
}

template <WgmmaArchitecture Arch, class C, int Rows>
SPOROS_FUNCTION void store_rows(Team<Arch> const& team, Matrix<C> const& to, int first_row,
                                RowValues<Arch, C, Rows> const& x) {
  x.for_each_slot([&](WgmmaSlot slot) {
    int const row = first_row + WgmmaLayout::warp_rows * team.warp() + WgmmaLayout::row(slot.lane, 2 * slot.i);
    if ((slot.lane & 3) == 0 && row < to.rows) *to.row(row) = x(slot);
  });
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
