// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_HOSTPRODUCT_HPP
#define SPOROS_HOSTPRODUCT_HPP

#include "tile/Sporos_Simd.hpp"

// One product for everything that one CPU core multiplies:
//
//     C[m][n] (+)= Σ_k A(k, m) · B[k][n]
//
// Vectors run along n. B and C are *panels*: their columns are cut into strips as wide as the register block, and each strip
// is contiguous, [N / panel_width][rows][panel_width]. A is read element by element and broadcast, through an address map
// known at compile time, so it may lie by rows, by columns or in panels itself.
namespace Sporos::inline SPOROS_LEVEL {

/// Two neighbours along k, the earlier in the lower half: what an instruction for dot products of bfloat16 takes at once
struct BFloat16Pair {
  std::uint32_t bits;
};

/// How T is kept in an operand. float16 is widened, and so is bfloat16 where the level has no dot product of it.
template <class T>
using ProductElement =
    std::conditional_t<std::is_same_v<T, bfloat16> && has_bfloat16_dot, BFloat16Pair, ComputeType<T>>;

/// Steps of k in one element
template <class E>
inline constexpr int k_per_element = std::is_same_v<E, BFloat16Pair> ? 2 : 1;

/// What products of E are summed in
template <class E>
using SumOf = std::conditional_t<std::is_same_v<E, double>, double, float>;

// The register block: block_rows x block_vectors sums, enough of them to hide the latency of two multiply-adds a cycle, and
// few enough to leave registers for a row of B and an element of A. Measured share of peak on one core: AVX-512 4 x 4
// 100 %, 6 x 4 95 %, 8 x 3 93 %; AVX2 6 x 2 100 %, 4 x 2 91 %.
#if defined(__AVX512F__)
inline constexpr int block_rows = 4, block_vectors = 4;
#elif defined(__AVX2__)
inline constexpr int block_rows = 6, block_vectors = 2;
#elif defined(__aarch64__)
inline constexpr int block_rows = 6, block_vectors = 4;
#else
inline constexpr int block_rows = 4, block_vectors = 2;
#endif

template <class E>
inline constexpr int panel_width = block_vectors * lanes<E>;

/// Where element (m, k) of A lies: at m · MStride + (k % KSegment) · KStride + (k / KSegment) · KSegmentStride.
template <int MStride, int KStride, int KSegment = 1 << 20, int KSegmentStride = 0>
struct AddressMap {
  static constexpr int m_stride = MStride, k_stride = KStride, k_segment = KSegment, k_segment_stride = KSegmentStride;
};
template <int Stride>
using RowMajor = AddressMap<Stride, 1>;  ///< [m][k]
template <int Stride>
using ColumnMajor = AddressMap<1, Stride>;  ///< [k][m]
/// Panels of a tile of `Rows` rows whose rows are m and whose columns are k
template <class E, int Rows>
using PanelRows = AddressMap<panel_width<E>, 1, panel_width<E>, Rows * panel_width<E>>;

SPOROS_FUNCTION Vector<float> multiply_add_element(float a, Vector<float> b, Vector<float> c) {
  return multiply_add(splat(a), b, c);
}
SPOROS_FUNCTION Vector<double> multiply_add_element(double a, Vector<double> b, Vector<double> c) {
  return multiply_add(splat(a), b, c);
}
#if defined(__AVX512BF16__)
SPOROS_FUNCTION Vector<float> multiply_add_element(BFloat16Pair a, Vector<std::uint32_t> b, Vector<float> c) {
  return _mm512_dpbf16_ps(c, bits_as<__m512bh>(b), bits_as<__m512bh>(splat(a.bits)));
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
SPOROS_FUNCTION Vector<float> multiply_add_element(BFloat16Pair a, Vector<std::uint32_t> b, Vector<float> c) {
  return vbfdotq_f32(c, bits_as<bfloat16x8_t>(b), bits_as<bfloat16x8_t>(splat(a.bits)));
}
#else
SPOROS_FUNCTION Vector<float> multiply_add_element(BFloat16Pair a, Vector<std::uint32_t> b, Vector<float> c) {
  Vector<float> const early = bits_as<Vector<float>>(b << 16), late = bits_as<Vector<float>>(b & 0xffff0000u);
  c = multiply_add(splat(bits_as<float>(a.bits << 16)), early, c);
  return multiply_add(splat(bits_as<float>(a.bits & 0xffff0000u)), late, c);
}
#endif

SPOROS_FUNCTION Vector<float> load_elements(float const* from) { return load_aligned(from); }
SPOROS_FUNCTION Vector<double> load_elements(double const* from) { return load_aligned(from); }
SPOROS_FUNCTION Vector<std::uint32_t> load_elements(BFloat16Pair const* from) {
  return load_aligned(reinterpret_cast<std::uint32_t const*>(from));
}
SPOROS_FUNCTION void store_elements(float* to, Vector<float> v) { store(to, v); }
SPOROS_FUNCTION void store_elements(double* to, Vector<double> v) { store(to, v); }
SPOROS_FUNCTION void store_elements(BFloat16Pair* to, Vector<std::uint32_t> v) {
  store(reinterpret_cast<std::uint32_t*>(to), v);
}

/// `Rows` rows of one panel of C, kept in registers while k runs
template <class E, class Map, int Rows>
class ProductBlock {
  using Sum = SumOf<E>;
  static constexpr int width = panel_width<E>;

 public:
  SPOROS_FUNCTION void clear() {
    for_each([&](auto row, auto j) SPOROS_INLINE_LAMBDA { m_sums[row][j] = Vector<Sum>{}; });
  }
  /// From and to a panel of C, from its row of this block on
  SPOROS_FUNCTION void load_sums(Sum const* c) {
    for_each([&](auto row, auto j)
                 SPOROS_INLINE_LAMBDA { m_sums[row][j] = load_aligned(c + row * width + j * lanes<Sum>); });
  }
  SPOROS_FUNCTION void store_sums(Sum* c) const {
    for_each([&](auto row, auto j)
                 SPOROS_INLINE_LAMBDA { store_aligned(c + row * width + j * lanes<Sum>, m_sums[row][j]); });
  }

  /// Adds the products of `count` elements of k, all in one segment of A. `a` and `b` point at the first of them, in the
  /// block's first row and in its panel.
  SPOROS_FUNCTION void add(E const* a, E const* b, int count) {
    for (int k = 0; k < count; ++k, a += Map::k_stride, b += width) {
      decltype(load_elements(b)) right[block_vectors];
      unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA { right[j] = load_elements(b + j * lanes<E>); });
      unroll<Rows>([&](auto row) SPOROS_INLINE_LAMBDA {
        E const left = a[row * Map::m_stride];
        unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA {
          m_sums[row][j] = multiply_add_element(left, right[j], m_sums[row][j]);
        });
      });
    }
  }

 private:
  template <class F>
  SPOROS_FUNCTION static void for_each(F const& f) {
    unroll<Rows>([&](auto row)
                     SPOROS_INLINE_LAMBDA { unroll<block_vectors>([&](auto j) SPOROS_INLINE_LAMBDA { f(row, j); }); });
  }

  Vector<Sum> m_sums[Rows][block_vectors];
};

/// f.operator()<rows>(first row) over 0 ... rows - 1 in blocks of block_rows rows, the rest in smaller ones
template <int Rows = block_rows, class F>
SPOROS_FUNCTION void for_each_row_block(int rows, F const& f, int first = 0) {
  for (; first + Rows <= rows; first += Rows) f.template operator()<Rows>(first);
  if constexpr (Rows > 1)
    if (first < rows) for_each_row_block<(Rows > 4 ? 4 : Rows / 2)>(rows, f, first);
}

/// C (M x N panels) = or += A (M x K) B (K x N panels), for sizes known at compile time; N is a multiple of panel_width, K
/// counts elements (pairs, for BFloat16Pair).
template <int M, int N, int K, bool Accumulate, class Map, class E>
[[gnu::noinline]] void product(E const* a, E const* b, SumOf<E>* c) {
  constexpr int width = panel_width<E>, segment = K < Map::k_segment ? K : Map::k_segment;
  static_assert(N % width == 0 && K % segment == 0);
  for (int n = 0; n < N; n += width, b += K * width, c += M * width)
    for_each_row_block(M, [&]<int Rows>(int m) SPOROS_INLINE_LAMBDA {
      ProductBlock<E, Map, Rows> block;
      if constexpr (Accumulate)
        block.load_sums(c + m * width);
      else
        block.clear();
      for (int k = 0; k < K; k += segment)
        block.add(a + m * Map::m_stride + k / segment * Map::k_segment_stride, b + k * width, segment);
      block.store_sums(c + m * width);
    });
}

// ---- Between memory and operands. Tiles may hang over the matrix: `valid` rows and columns exist, the rest of an operand
// becomes zero and the rest of a result is not written.

namespace HostImpl {

/// lanes<E> elements of an operand from consecutive values of memory; for pairs, k is along them
template <class E, class T>
SPOROS_FUNCTION auto load_consecutive(T const* from, int valid) {
  constexpr int values = lanes<E> * k_per_element<E>;
  if constexpr (std::is_same_v<E, BFloat16Pair>) {
    Vector<std::uint32_t> v{};
    if (valid >= values)
      __builtin_memcpy(&v, from, sizeof v);
    else if (valid > 0)
      __builtin_memcpy(&v, from, sizeof(T) * unsigned(valid));
    return v;
  } else {
    return valid >= values ? load_as<E>(from) : load_first<E>(from, valid > 0 ? valid : 0);
  }
}

/// lanes<E> elements across k: from row k, and for pairs from row k + 1
template <class E, class T>
SPOROS_FUNCTION auto load_across(T const* from, std::int64_t stride, int valid_rows, int valid) {
  if constexpr (std::is_same_v<E, BFloat16Pair>) {
    Vector<std::uint32_t> pair[2] = {};
    unroll<2>([&](auto row) SPOROS_INLINE_LAMBDA {
      T const* const p = from + row * stride;
      if (row >= valid_rows) return;
      if (valid >= lanes<E>)
        pair[row] = load_words(p);
      else
        for (int i = 0; i < valid; ++i) pair[row][i] = p[i].bits;
    });
    return pair[0] | pair[1] << 16;
  } else {
    return valid_rows > 0 ? load_consecutive<E>(from, valid) : Vector<E>{};
  }
}

}  // namespace HostImpl

/// Rows as they lie: to[row][column / k_per_element], `columns` a multiple of the values in a vector. Broadcast operand
/// RowMajor whose k are the columns.
template <class E, class T>
void pack_rows(E* to, T const* from, std::int64_t stride, int rows, int columns, int valid_rows, int valid_columns) {
  constexpr int values = lanes<E> * k_per_element<E>;
  for (int row = 0; row < rows; ++row, to += columns / k_per_element<E>)
    for (int column = 0; column < columns; column += values) {
      int const valid = row < valid_rows ? valid_columns - column : 0;
      store_elements(to + column / k_per_element<E>,
                     HostImpl::load_consecutive<E>(from + row * stride + column, valid));
    }
}

/// The rows as panels: [columns / panel_width][rows / k_per_element][panel_width]. Vector operand whose k are the rows.
template <class E, class T>
void pack_panels(E* to, T const* from, std::int64_t stride, int rows, int columns, int valid_rows, int valid_columns) {
  constexpr int step = k_per_element<E>, width = panel_width<E>;
  for (int row = 0; row < rows; row += step)
    for (int column = 0; column < columns; column += lanes<E>)
      store_elements(
          to + column / width * (rows / step) * width + row / step * width + column % width,
          HostImpl::load_across<E>(from + row * stride + column, stride, valid_rows - row, valid_columns - column));
}

/// Whole rows: [rows / k_per_element][columns]. Broadcast operand ColumnMajor whose k are the rows.
template <class E, class T>
void pack_k_rows(E* to, T const* from, std::int64_t stride, int rows, int columns, int valid_rows, int valid_columns) {
  constexpr int step = k_per_element<E>;
  for (int row = 0; row < rows; row += step)
    for (int column = 0; column < columns; column += lanes<E>)
      store_elements(
          to + row / step * columns + column,
          HostImpl::load_across<E>(from + row * stride + column, stride, valid_rows - row, valid_columns - column));
}

/// The transposed matrix as panels: [rows / panel_width][columns / k_per_element][panel_width]. Vector operand whose k are
/// the columns; `rows` is a multiple of panel_width, `columns` of the values in a vector.
template <class E, class T>
void pack_transposed(E* to, T const* from, std::int64_t stride, int rows, int columns, int valid_rows,
                     int valid_columns) {
  constexpr int step = k_per_element<E>, width = panel_width<E>, n = lanes<E>;
  using Bits = BitsOf<E>;
  for (int row = 0; row < rows; row += n)
    for (int column = 0; column < columns; column += n * step) {
      Vector<Bits> square[n];
      unroll<n>([&](auto i) SPOROS_INLINE_LAMBDA {
        int const valid = row + i < valid_rows ? valid_columns - column : 0;
        square[i] = bits_as<Vector<Bits>>(HostImpl::load_consecutive<E>(from + (row + i) * stride + column, valid));
      });
      transpose<Bits>(square);
      E* const panel = to + row / width * (columns / step) * width + column / step * width + row % width;
      unroll<n>([&](auto i) SPOROS_INLINE_LAMBDA { store(reinterpret_cast<Bits*>(panel + i * width), square[i]); });
    }
}

/// Panels of sums back to rows of a matrix, times `factor`
template <class T, class C>
void unpack_panels(T* to, std::int64_t stride, C const* panels, int rows, int columns, int valid_rows,
                   int valid_columns, C factor) {
  constexpr int width = panel_width<C>, n = lanes<C>;
  if (valid_rows > rows) valid_rows = rows;
  for (int row = 0; row < valid_rows; ++row)
    for (int column = 0; column < columns && column < valid_columns; column += n) {
      Vector<C> const v = load_aligned(panels + column / width * rows * width + row * width + column % width) * factor;
      T* const p = to + row * stride + column;
      if (valid_columns - column >= n)
        store_as(p, v);
      else
        store_first(p, v, valid_columns - column);
    }
}

/// Panels of sums to the rows of the *transposed* matrix: sum (m, n) to `to[n][m]`, times factor[n]. `valid_rows` of the n
/// and `valid_columns` of the m exist.
template <class T, class C>
void unpack_transposed(T* to, std::int64_t stride, C const* panels, int rows, int columns, int valid_rows,
                       int valid_columns, C const* factor) {
  constexpr int width = panel_width<C>, n = lanes<C>;
  using Bits = BitsOf<C>;
  for (int column = 0; column < columns && column < valid_rows; column += n) {
    Vector<C> const scale = load(factor + column);
    for (int row = 0; row < rows && row < valid_columns; row += n) {
      Vector<Bits> square[n];
      C const* const panel = panels + column / width * rows * width + row * width + column % width;
      unroll<n>([&](auto i) SPOROS_INLINE_LAMBDA {
        square[i] = bits_as<Vector<Bits>>(load_aligned(panel + i * width) * scale);
      });
      transpose<Bits>(square);
      for (int i = 0; i < n && column + i < valid_rows; ++i) {
        T* const p = to + (column + i) * stride + row;
        if (valid_columns - row >= n)
          store_as(p, bits_as<Vector<C>>(square[i]));
        else
          store_first(p, bits_as<Vector<C>>(square[i]), valid_columns - row);
      }
    }
  }
}

/// Row r of sums in one lane each: two rows of values of k and k + 1 as pairs, rounded to nearest even
SPOROS_FUNCTION Vector<std::uint32_t> pair_rows(Vector<float> even, Vector<float> odd) {
#if defined(__AVX512BF16__)
  // The instruction flushes subnormal numbers to zero, as the dot product itself does.
  alignas(64) static constexpr std::uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i const both = bits_as<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  return bits_as<Vector<std::uint32_t>>(_mm512_permutexvar_epi16(_mm512_load_si512(order), both));
#else
  return (round_to_bfloat16(even) >> 16) | (round_to_bfloat16(odd) & 0xffff0000u);
#endif
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
