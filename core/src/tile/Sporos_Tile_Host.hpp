// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TILE_HOST_HPP
#define SPOROS_TILE_HOST_HPP

#include "Sporos_Random.hpp"
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
  Fragment(Fragment const&) = delete;
  Fragment& operator=(Fragment const&) = delete;

  template <class F>
  void for_each(F const& f) {
    walk([&](std::int64_t at, int row, int column) SPOROS_INLINE_LAMBDA { f(m_sums[at], row, row, column); });
  }

  template <class F>
  void for_each_with(Fragment& y, F const& f) {
    C* const other = y.m_sums;
    walk([&](std::int64_t at, int row, int column)
             SPOROS_INLINE_LAMBDA { f(m_sums[at], other[at], row, row, column); });
  }

  /// f(first row, address of its column 0) for each panel, for what runs along the columns
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
  static constexpr int size = Rows * Cols / k_per_element<E>;

  struct alignas(64) Storage {
    E values[size * (packed && use == (Use::left | Use::right) ? 2 : 1)];
  };

  Operand(Team<Arch::Host> const&, Storage& storage) : m_values(storage.values), m_spare(storage.values) {}

  void assign(Fragment<Arch::Host, C, Rows, Cols>& S) {
    if constexpr (packed) {
      pack(S);
    } else {
      m_values = S.exchange_next(m_spare);
      m_spare = m_values;
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
          Vector<C> const odd = load_aligned(panel + panel_width<C> + j * lanes<C>);
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
  static constexpr int step = k_per_element<E>;
  static constexpr int size = Rows * Cols / step;
  static constexpr bool rows_are_one = step == 1;  // then both right uses read the same copy

  E* data;

  SPOROS_FUNCTION E* left() const { return data; }
  SPOROS_FUNCTION E* left_transposed() const { return data + includes(use, Use::left) * size; }
  SPOROS_FUNCTION E* right() const { return data; }
  SPOROS_FUNCTION E* right_transposed() const { return data + (includes(use, Use::right) && !rows_are_one) * size; }
  static constexpr int forms = (includes(use, Use::right) && includes(use, Use::right_transposed) && rows_are_one)
                                   ? 1
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
    T const* const from = m_source.row(first);
    int const valid = m_source.rows - first < Rows ? int(m_source.rows - first) : Rows;
    int const columns = m_source.columns;
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

namespace HostImpl {

/// Part of 0 ... size - 1
struct Range {
  int begin, end;
  static Range clamped(std::int64_t begin, std::int64_t end, int size) {
    return {begin < 0 ? 0 : begin > size ? size : int(begin), end < 0 ? 0 : end > size ? size : int(end)};
  }
};

/// product(), of which only some rows of each panel and some k of each block of rows are wanted:
///     rows(n)              of the panel whose first column is n
///     ks(m, count, n)      for rows m ... m + count - 1 of that panel, in elements
template <int M, int N, int K, bool Accumulate, class Map, class E, class Rows, class Ks>
void product_within(E const* a, E const* b, SumOf<E>* c, Rows const& rows, Ks const& ks) {
  constexpr int width = panel_width<E>, segment = K < Map::k_segment ? K : Map::k_segment;
  for (int n = 0; n < N; n += width, b += K * width, c += M * width) {
    Range const wanted = rows(n);
    for_each_row_block(
        wanted.end,
        [&]<int Count>(int m) SPOROS_INLINE_LAMBDA {
          ProductBlock<E, Map, Count> block;
          if constexpr (Accumulate)
            block.load_sums(c + m * width);
          else
            block.clear();
          Range const k = ks(m, Count, n);
          for (int first = k.begin; first < k.end;) {
            int const rest = segment - first % segment;
            int const count = k.end - first < rest ? k.end - first : rest;
            block.add(a + m * Map::m_stride + first / segment * Map::k_segment_stride + first % segment * Map::k_stride,
                      b + first * width, count);
            first += count;
          }
          block.store_sums(c + m * width);
        },
        wanted.begin);
  }
}

/// Whether the band spares nothing of a fragment
template <int Rows, int Cols>
bool covers(Band const& band) {
  return band.first <= 1 - Rows && band.last >= Cols - 1;
}

}  // namespace HostImpl

// Of a band, a panel of the fragment wants the columns that matter to some of its rows.

template <class C, int Rows, int Cols, class E, Use a, Use b, int Depth>
void mma_abt(Fragment<Arch::Host, C, Rows, Cols>& S, HostTile<E, a, Rows, Depth> A, HostTile<E, b, Cols, Depth> B,
             Band const& band) {
  constexpr int k = Depth / k_per_element<E>, width = panel_width<E>;
  if (HostImpl::covers<Rows, Cols>(band)) return mma_abt(S, A, B);
  HostImpl::product_within<Cols, Rows, k, false, RowMajor<k>>(
      B.right_transposed(), A.left(), S.begin_product(),
      [&](int row) { return HostImpl::Range::clamped(row + band.first, row + width + band.last, Cols); },
      [](int, int, int) { return HostImpl::Range{0, k}; });
}

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

template <class C, int Rows, int Cols, class T, Use a, class E, Use b, int Depth>
void mma_ab(Fragment<Arch::Host, C, Rows, Cols>& O, Operand<Arch::Host, T, a, Rows, Depth>& P,
            HostTile<E, b, Depth, Cols> B, Band const& band) {
  constexpr int step = k_per_element<E>, k = Depth / step, width = panel_width<E>;
  if (HostImpl::covers<Rows, Depth>(band)) return mma_ab(O, P, B);
  HostImpl::product_within<Cols, Rows, k, true, ColumnMajor<Cols>>(
      B.right(), P.left(), O.sums(), [](int) { return HostImpl::Range{0, Cols}; },
      [&](int, int, int row) {
        auto const wanted = HostImpl::Range::clamped(row + band.first, row + width + band.last, Depth);
        return HostImpl::Range{wanted.begin / step, (wanted.end + step - 1) / step};
      });
}

template <class C, int Rows, int Cols, class E, Use a, class T, Use b, int Depth>
void mma_atb(ColumnSums<Arch::Host, C, Rows, Cols>& D, HostTile<E, a, Depth, Rows> A,
             Operand<Arch::Host, T, b, Depth, Cols>& B) {
  using Map = typename Operand<Arch::Host, T, b, Depth, Cols>::RightMap;
  product<Cols, Rows, Depth / k_per_element<E>, true, Map>(B.right(), A.left_transposed(), D.sums());
}

template <class C, int Rows, int Cols, class E, Use a, class T, Use b, int Depth>
void mma_atb(ColumnSums<Arch::Host, C, Rows, Cols>& D, HostTile<E, a, Depth, Rows> A,
             Operand<Arch::Host, T, b, Depth, Cols>& B, Band const& band) {
  using Map = typename Operand<Arch::Host, T, b, Depth, Cols>::RightMap;
  constexpr int step = k_per_element<E>;
  if (HostImpl::covers<Depth, Cols>(band)) return mma_atb(D, A, B);
  HostImpl::product_within<Cols, Rows, Depth / step, true, Map>(
      B.right(), A.left_transposed(), D.sums(), [](int) { return HostImpl::Range{0, Cols}; },
      [&](int column, int count, int) {
        auto const wanted = HostImpl::Range::clamped(column - band.last, column + count - band.first, Depth);
        return HostImpl::Range{wanted.begin / step, (wanted.end + step - 1) / step};
      });
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
      sum[j] = Vector<C>{};
    });
    for (int column = 0; column < Cols; ++column, panel += panel_width<C>)
      unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
        C* const p = panel + j * lanes<C>;
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
void soft_cap(Fragment<Arch::Host, C, Rows, Cols>& x, C scale, C cap) {
  Vector<C> const inner = splat(scale / cap);
  x.for_each_panel([&](int, C* panel) {
    for (int i = 0; i < Cols * panel_width<C>; i += lanes<C>) {
      auto const power = [](Vector<C> y) SPOROS_INLINE_LAMBDA { return exp2(y); };
      store_aligned(panel + i, cap * tanh_of<C>(load_aligned(panel + i) * inner, power));
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
      unroll<block_vectors>(
          [&](auto j) SPOROS_INLINE_LAMBDA { highest[j] = max(load_aligned(panel + j * lanes<C>), highest[j]); });
    unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA { maximum.set_vector(row + j * lanes<C>, highest[j]); });
  });
  return maximum;
}

// ---- Dropout

namespace HostImpl {

/// The products of the lower halves of lanes
SPOROS_FUNCTION Vector<std::uint64_t> multiply_lower(Vector<std::uint64_t> a, Vector<std::uint64_t> b) {
  using V = Vector<std::uint64_t>;
#if defined(__AVX512F__)
  return bits_as<V>(_mm512_mul_epu32(bits_as<__m512i>(a), bits_as<__m512i>(b)));
#elif defined(__AVX2__)
  return bits_as<V>(_mm256_mul_epu32(bits_as<__m256i>(a), bits_as<__m256i>(b)));
#elif defined(__x86_64__)
  return bits_as<V>(_mm_mul_epu32(bits_as<__m128i>(a), bits_as<__m128i>(b)));
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/// The random words of `count` elements from number `first` on, as RandomStream has them, are at the address returned, in
/// `buffer`. philox4x32() for as many blocks as a vector has 64-bit lanes: the lower half of a lane is the number, the
/// upper one is never looked at.
template <int count>
using RandomWords = std::uint32_t[count + 4 + 4 * lanes<std::uint64_t>];

template <int count>
std::uint32_t const* random_words(Dropout const& dropout, std::uint64_t first, RandomWords<count>& buffer) {
  using V = Vector<std::uint64_t>;
  constexpr int blocks = lanes<std::uint64_t>;
  int const skipped = int(first % 4);
  for (int at = 0; at < skipped + count; at += 4 * blocks) {
    V const counter = lane_index<std::uint64_t>() + (first / 4 + std::uint64_t(at / 4));
    V c0 = counter, c1 = counter >> 32, c2 = V{} + dropout.stream, c3 = V{} + (dropout.stream >> 32);
    std::uint32_t k0 = std::uint32_t(dropout.seed), k1 = std::uint32_t(dropout.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      V const product0 = multiply_lower(c0, V{} + 0xD2511F53u), product1 = multiply_lower(c2, V{} + 0xCD9E8D57u);
      c0 = (product1 >> 32) ^ c1 ^ k0;
      c1 = product1;
      c2 = (product0 >> 32) ^ c3 ^ k1;
      c3 = product0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    V const early = (c0 & 0xffffffffu) | c1 << 32, late = (c2 & 0xffffffffu) | c3 << 32;
    using Sequence = std::make_integer_sequence<int, blocks>;
    V const ordered[2] = {interleave_low(early, late, Sequence{}), interleave_high(early, late, Sequence{})};
    __builtin_memcpy(buffer + at, ordered, sizeof ordered);
  }
  return buffer + skipped;
}

/// x, or factor x in the lanes whose word is below the threshold
SPOROS_FUNCTION void scale_dropped(float* x, float factor, Vector<std::uint32_t> words, std::uint32_t threshold) {
  Vector<float> const v = load_aligned(x);
  store_aligned(x, words >= threshold ? v : v * factor);
}
SPOROS_FUNCTION void scale_dropped(double* x, double factor, Vector<std::uint32_t> words, std::uint32_t threshold) {
  for (int i = 0; i < lanes<std::uint32_t>; ++i)
    if (words[i] < threshold) x[i] *= factor;
}

}  // namespace HostImpl

template <class C, int Rows, int Cols, class Mask>
void scale_dropped(Fragment<Arch::Host, C, Rows, Cols>& x, C factor, Mask const& mask) {
  constexpr int n = lanes<std::uint32_t>, width = panel_width<C>;
  std::uint32_t const threshold = mask.dropout.threshold();
  if (mask.column_stride == 1) {
    // Words follow one another along the columns; vectors run along the rows.
    x.for_each_panel([&](int row, C* panel) {
      HostImpl::RandomWords<Cols> buffers[width];
      std::uint32_t const* words[width];
      for (int i = 0; i < width; ++i)
        words[i] = HostImpl::random_words<Cols>(mask.dropout, mask.first + std::uint64_t((row + i) * mask.row_stride),
                                                buffers[i]);
      for (int group = 0; group < width; group += n)
        for (int column = 0; column < Cols; column += n) {
          Vector<std::uint32_t> square[n];
          for (int i = 0; i < n; ++i) square[i] = load(words[group + i] + column);
          transpose<std::uint32_t>(square);
          for (int i = 0; i < n; ++i)
            HostImpl::scale_dropped(panel + (column + i) * width + group, factor, square[i], threshold);
        }
    });
  } else {
    for (int column = 0; column < Cols; ++column) {
      HostImpl::RandomWords<Rows> buffer;
      std::uint32_t const* const words =
          HostImpl::random_words<Rows>(mask.dropout, mask.first + std::uint64_t(column * mask.column_stride), buffer);
      x.for_each_panel([&](int row, C* panel) {
        for (int i = 0; i < width; i += n)
          HostImpl::scale_dropped(panel + column * width + i, factor, load(words + row + i), threshold);
      });
    }
  }
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
