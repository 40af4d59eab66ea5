// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TILE_HOST_HPP
#define SPOROS_TILE_HOST_HPP

#include "tile/Sporos_HostProduct.hpp"
#include "tile/Sporos_Tile.hpp"

// The tile layer for one CPU core. Vectors run along the rows of a fragment: rows are the side that stays while the other
// streams past, so their statistics are plain vectors, only the factor that stays is transposed, once, and the other is
// broadcast element by element as it lies. In the words of Sporos_HostProduct.hpp, a fragment is the panels of its own
// transpose: row r, column c is sum (m = c, n = r).
namespace Sporos::inline SPOROS_LEVEL {

struct Arch::Host {
  template <class C>
  static C exp2(C x) {
    return Sporos::exp2(splat(x))[0];
  }
  static float log2(float x) { return __builtin_log2f(x); }
  static double log2(double x) { return __builtin_log2(x); }
  static float ceil(float x) { return __builtin_ceilf(x); }
  static double ceil(double x) { return __builtin_ceil(x); }
  template <class C>
  static C max(C a, C b) {
    return b > a ? b : a;
  }
  template <class C>
  static C multiply_add(C a, C b, C c) {
    return a * b + c;
  }
};

template <>
class Team<Arch::Host> {};

template <class C, int Rows>
class RowValues<Arch::Host, C, Rows> {
 public:
  C& operator()(int row) { return m_values[row]; }
  C operator()(int row) const { return m_values[row]; }
  Vector<C> vector(int row) const { return load_aligned(m_values + row); }
  void set_vector(int row, Vector<C> v) { store_aligned(m_values + row, v); }

  template <class F>
  static void for_each_slot(F const& f) {
    for (int row = 0; row < Rows; ++row) f(row);
  }

 private:
  alignas(64) C m_values[Rows];
};

template <class C, int Rows, int Cols>
class Fragment<Arch::Host, C, Rows, Cols> {
 public:
  static constexpr int width = panel_width<C>;
  static_assert(Rows % width == 0);

  explicit Fragment(Team<Arch::Host> const&) {}
  Fragment(Fragment const&)            = delete;
  Fragment& operator=(Fragment const&) = delete;

  template <class F>
  void for_each(F const& f) {
    walk([&](std::int64_t at, int row, int column) SPOROS_INLINE_LAMBDA { f(m_sums[at], row, row, column); });
  }

  template <class F>
  void for_each_with(Fragment& y, F const& f) {
    C* const other = y.m_sums;
    walk([&](std::int64_t at, int row, int column) SPOROS_INLINE_LAMBDA { f(m_sums[at], other[at], row, row, column); });
  }

  /// f(vector index in a panel, row of its first lane, its address in column 0), for what runs down the columns
  template <class F>
  void for_each_panel(F const& f) {
    for (int row = 0; row < Rows; row += width) f(row, m_sums + row * Cols);
  }

  C* sums() { return m_sums; }
  C const* sums() const { return m_sums; }

  /// Where the next product may write: its result must not touch what became an Operand
  C* begin_product() { return m_sums = m_next; }
  C* exchange_next(C* buffer) {
    m_next = buffer;
    return m_sums;
  }

 private:
  template <class F>
  static void walk(F const& f) {
    for (int panel = 0; panel < Rows; panel += width)
      for (int column = 0; column < Cols; ++column) {
#pragma GCC ivdep
        for (int i = 0; i < width; ++i) f(panel * Cols + column * width + i, panel + i, column);
      }
  }

  alignas(64) C m_own[Rows * Cols];
  C* m_sums = m_own;
  C* m_next = m_own;
};

/// Without a dot product of T the fragment itself is the factor, and gets another buffer for its next product. With one it
/// is packed: pairs of columns for a left factor, pairs of rows for a right one.
template <class T, Use use, int Rows, int Cols>
class Operand<Arch::Host, T, use, Rows, Cols> {
 public:
  using C = ComputeType<T>;
  using E = ProductElement<T>;

  static constexpr bool packed = k_per_element<E> == 2;
  static constexpr int size    = Rows * Cols / k_per_element<E>;

  struct alignas(64) Storage {
    E values[size * (packed && use == (Use::left | Use::right) ? 2 : 1)];
  };

  Operand(Team<Arch::Host> const&, Storage& storage) : m_values(storage.values), m_spare(storage.values) {}

  void assign(Fragment<Arch::Host, C, Rows, Cols>& S) {
    if constexpr (packed) {
      pack(S);
    } else {
      m_values = S.exchange_next(m_spare);
      m_spare  = m_values;
    }
  }

  E const* left() const { return m_values; }
  E const* right() const { return m_values + right_offset; }

  /// Where (m, k) of a right factor lies, m being the column and k the row
  using RightMap = std::conditional_t<packed, RowMajor<Rows / 2>, PanelRows<E, Cols>>;

 private:
  static constexpr int right_offset = packed && includes(use, Use::left) ? size : 0;

  void pack(Fragment<Arch::Host, C, Rows, Cols>& S) {
    bfloat16* const by_column = reinterpret_cast<bfloat16*>(m_values + right_offset);
    S.for_each_panel([&](int row, C const* panel) {
      E* pairs = m_values + row * Cols / 2;
      for (int column = 0; column < Cols; column += 2, panel += 2 * panel_width<C>, pairs += panel_width<C>)
        unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
          Vector<C> const even = load_aligned(panel + j * lanes<C>);
          Vector<C> const odd  = load_aligned(panel + panel_width<C> + j * lanes<C>);
          if constexpr (includes(use, Use::left)) store_elements(pairs + j * lanes<C>, pair_rows(even, odd));
          if constexpr (includes(use, Use::right)) {
            store_as(by_column + column * Rows + row + j * lanes<C>, even);
            store_as(by_column + (column + 1) * Rows + row + j * lanes<C>, odd);
          }
        });
    });
  }

  E* m_values;
  E* m_spare;
};

template <class T, Use use, int Rows, int Cols>
void convert(Operand<Arch::Host, T, use, Rows, Cols>& P, Fragment<Arch::Host, ComputeType<T>, Rows, Cols>& S) {
  P.assign(S);
}

template <class C, int Rows, int Cols>
class ColumnSums<Arch::Host, C, Rows, Cols> {
 public:
  explicit ColumnSums(Team<Arch::Host> const&) {}

  /// The sums of a block are kept as its panels
  void open(Matrix<C> const& to, int first) { m_sums = to.row(first); }
  void add() {}

  C* sums() const { return m_sums; }

 private:
  C* m_sums = nullptr;
};

/// A tile in scratch, in the forms that its uses need
template <class E, Use use, int Rows, int Cols>
struct HostTile {
  static constexpr int step          = k_per_element<E>;
  static constexpr int size          = Rows * Cols / step;
  static constexpr bool rows_are_one = step == 1;  // then both right uses read the same copy

  E* data;

  SPOROS_FUNCTION E* left() const { return data; }
  SPOROS_FUNCTION E* left_transposed() const { return data + includes(use, Use::left) * size; }
  SPOROS_FUNCTION E* right() const { return data; }
  SPOROS_FUNCTION E* right_transposed() const {
    return data + (includes(use, Use::right) && !rows_are_one) * size;
  }
  static constexpr int forms = (includes(use, Use::right) && includes(use, Use::right_transposed) && rows_are_one) ? 1
                               : includes(use, Use::left) + includes(use, Use::left_transposed) +
                                     includes(use, Use::right) + includes(use, Use::right_transposed);
};

/// Nothing is asynchronous: wait(n) copies.
template <class T, Use use, int Rows, int Cols, int Stages>
class Pipeline<Arch::Host, T, use, Rows, Cols, Stages> {
  using E = ProductElement<T>;

 public:
  using Tile = HostTile<E, use, Rows, Cols>;
  struct alignas(64) Storage {
    E values[Tile::forms * Tile::size];
  };

  Pipeline(Team<Arch::Host>&, Storage& storage) : m_tile{storage.values} {}

  void open(Matrix<T const> const& source, BlockRange const&) { m_source = source; }
  void load(int) {}
  void prefetch(int) {}
  void release(int) {}

  Tile wait(int n) {
    std::int64_t const first = std::int64_t(n) * Rows;
    T const* const from      = m_source.row(first);
    int const valid          = m_source.rows - first < Rows ? int(m_source.rows - first) : Rows;
    int const columns        = m_source.columns;
    if constexpr (includes(use, Use::left))
      pack_transposed(m_tile.left(), from, m_source.stride, Rows, Cols, valid, columns);
    if constexpr (includes(use, Use::left_transposed))
      pack_panels(m_tile.left_transposed(), from, m_source.stride, Rows, Cols, valid, columns);
    if constexpr (includes(use, Use::right))
      pack_k_rows(m_tile.right(), from, m_source.stride, Rows, Cols, valid, columns);
    if constexpr (includes(use, Use::right_transposed) && !(includes(use, Use::right) && Tile::rows_are_one))
      pack_rows(m_tile.right_transposed(), from, m_source.stride, Rows, Cols, valid, columns);
    return m_tile;
  }

 private:
  Tile m_tile;
  Matrix<T const> m_source;
};

/// Column values are read where they are.
template <class C, int Rows, int Stages>
class Pipeline<Arch::Host, C, Use::column_values, Rows, 1, Stages> {
 public:
  struct Storage {};
  struct Values {
    C const* data;
    C operator()(int column) const { return data[column]; }
  };

  Pipeline(Team<Arch::Host>&, Storage&) {}

  void open(Matrix<C const> const& source, BlockRange const&) { m_source = source; }
  void load(int) {}
  void prefetch(int) {}
  void release(int) {}
  Values wait(int n) const { return {m_source.row(std::int64_t(n) * Rows)}; }

 private:
  Matrix<C const> m_source;
};

template <class C, int Rows, int Cols, class E, Use a, Use b, int Depth>
void mma_abt(Fragment<Arch::Host, C, Rows, Cols>& S, HostTile<E, a, Rows, Depth> A, HostTile<E, b, Cols, Depth> B) {
  constexpr int k = Depth / k_per_element<E>;
  product<Cols, Rows, k, false, RowMajor<k>>(B.right_transposed(), A.left(), S.begin_product());
}

template <class C, int Rows, int Cols, class E, Use a, Use b, int Depth>
void mma_abt_diverged(Fragment<Arch::Host, C, Rows, Cols>& S, HostTile<E, a, Rows, Depth> A,
                      HostTile<E, b, Cols, Depth> B) {
  mma_abt(S, A, B);
}

template <class C, int Rows, int Cols, class T, Use a, class E, Use b, int Depth>
void mma_ab(Fragment<Arch::Host, C, Rows, Cols>& O, Operand<Arch::Host, T, a, Rows, Depth>& P,
            HostTile<E, b, Depth, Cols> B) {
  constexpr int k = Depth / k_per_element<E>;
  product<Cols, Rows, k, true, ColumnMajor<Cols>>(B.right(), P.left(), O.sums());
}

template <class C, int Rows, int Cols, class E, Use a, class T, Use b, int Depth>
void mma_atb(ColumnSums<Arch::Host, C, Rows, Cols>& D, HostTile<E, a, Depth, Rows> A,
             Operand<Arch::Host, T, b, Depth, Cols>& B) {
  constexpr int k = Depth / k_per_element<E>;
  using Map       = typename Operand<Arch::Host, T, b, Depth, Cols>::RightMap;
  product<Cols, Rows, k, true, Map>(B.right(), A.left_transposed(), D.sums());
}

template <int InFlight, class Result, class... Others>
  requires requires(Result& result) { result.sums(); }
void join(Result&, Others&...) {}

template <class C, int Rows, class Op>
void combine_lanes(RowValues<Arch::Host, C, Rows>&, Op const&) {}

template <class C, int Rows, class Predicate>
bool any(RowValues<Arch::Host, C, Rows> const& x, Predicate const& predicate) {
  bool found = false;
  x.for_each_slot([&](int row) { found |= predicate(x(row)); });
  return found;
}

template <class T, class C, int Rows, int Cols>
void store_rows(Team<Arch::Host> const&, Matrix<T> const& to, int first_row,
                Fragment<Arch::Host, C, Rows, Cols> const& x) {
  alignas(64) C ones[Rows];
  for (C& one : ones) one = C(1);
  unpack_transposed(to.row(first_row), to.stride, x.sums(), Cols, Rows, to.rows - first_row, to.columns, ones);
}

template <class C, int Rows>
void store_rows(Team<Arch::Host> const&, Matrix<C> const& to, int first_row, RowValues<Arch::Host, C, Rows> const& x) {
  int const valid = to.rows - first_row;
  for (int row = 0; row < Rows && row < valid; ++row) *to.row(first_row + row) = x(row);
}

// ---- Element-wise operations with explicit vectors: loops over a function with branches may stay scalar

/// x = 2^(scale x - reference[row]); returns the sums of rows
template <class C, int Rows, int Cols>
RowPartial<Arch::Host, C, Rows> exp2_rows_and_sum(Fragment<Arch::Host, C, Rows, Cols>& x, C scale,
                                                  RowVector<Arch::Host, C, Rows> const& reference) {
  RowPartial<Arch::Host, C, Rows> sums;
  x.for_each_panel([&](int row, C* panel) {
    Vector<C> subtrahend[block_vectors], sum[block_vectors];
    unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
      subtrahend[j] = -reference.vector(row + j * lanes<C>);
      sum[j]        = Vector<C>{};
    });
    for (int column = 0; column < Cols; ++column, panel += panel_width<C>)
      unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
        C* const p        = panel + j * lanes<C>;
        Vector<C> const y = exp2(multiply_add(load_aligned(p), splat(scale), subtrahend[j]));
        store_aligned(p, y);
        sum[j] += y;
      });
    unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA { sums.set_vector(row + j * lanes<C>, sum[j]); });
  });
  return sums;
}

template <class C, int Rows, int Cols, class ColumnHandle>
void exp2_columns(Fragment<Arch::Host, C, Rows, Cols>& x, C scale, ColumnHandle const& reference) {
  x.for_each_panel([&](int, C* panel) {
    for (int column = 0; column < Cols; ++column, panel += panel_width<C>) {
      Vector<C> const subtrahend = splat(-reference(column));
      unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
        C* const p = panel + j * lanes<C>;
        store_aligned(p, exp2(multiply_add(load_aligned(p), splat(scale), subtrahend)));
      });
    }
  });
}

template <class C, int Rows, int Cols>
void scale_rows(Fragment<Arch::Host, C, Rows, Cols>& x, RowVector<Arch::Host, C, Rows> const& factor) {
  x.for_each_panel([&](int row, C* panel) {
    Vector<C> factors[block_vectors];
    unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA { factors[j] = factor.vector(row + j * lanes<C>); });
    for (int column = 0; column < Cols; ++column, panel += panel_width<C>)
      unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
        C* const p = panel + j * lanes<C>;
        store_aligned(p, load_aligned(p) * factors[j]);
      });
  });
}

template <class C, int Rows, int Cols>
RowVector<Arch::Host, C, Rows> row_max(Fragment<Arch::Host, C, Rows, Cols>& x) {
  RowVector<Arch::Host, C, Rows> maximum;
  x.for_each_panel([&](int row, C* panel) {
    Vector<C> highest[block_vectors];
    unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA { highest[j] = splat(-infinity<C>); });
    for (int column = 0; column < Cols; ++column, panel += panel_width<C>)
      unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
        highest[j] = max(load_aligned(panel + j * lanes<C>), highest[j]);
      });
    unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA { maximum.set_vector(row + j * lanes<C>, highest[j]); });
  });
  return maximum;
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
