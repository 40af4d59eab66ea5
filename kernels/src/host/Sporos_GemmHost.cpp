// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Compiled once for each instruction-set level: no Kokkos here.
#include "impl/Sporos_Gemm_Host.hpp"
#include "impl/Sporos_Gelu_Vector.hpp"
#include "tile/Sporos_HostProduct.hpp"

namespace Sporos::inline SPOROS_LEVEL {
namespace {

/// One tile of D. The depth is cut into blocks; of each, A and B are packed into scratch and multiplied panel by panel, and
/// after the last a panel goes to D while it is in the nearest cache.
template <class T, class Output>
class GemmTile {
  using E = ProductElement<T>;
  using C = SumOf<E>;

  static constexpr int step  = k_per_element<E>;
  static constexpr int width = panel_width<E>;
  static constexpr int depth = 256;  // of a block, in values of k
  // The largest tile. A, B and the sums fill 768 KiB then: most of the 1 MiB of second-level cache that cores have today.
  static constexpr int largest = sizeof(C) == 8 ? 192 : 256;

  using ByRows = RowMajor<depth / step>;

  // The transposed A lies in groups of block_rows neighbours along m, [k][block_rows]. Vectors that are written there reach
  // beyond their group's element k; the surplus behind the last k keeps that from the next group.
  static constexpr int vectors_per_group = (block_rows + lanes<E> - 1) / lanes<E>;
  static constexpr int group             = depth / step * block_rows + vectors_per_group * lanes<E>;
  using ByGroups                         = AddressMap<1, block_rows, block_rows, group>;

  static constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
  static constexpr std::size_t a_elements(int rows) {
    return std::size_t(round_up((rows + block_rows - 1) / block_rows * group, 64));
  }
  static constexpr std::size_t b_elements(int columns) { return std::size_t(columns) * (depth / step); }

 public:
  static Impl::GemmHostTiling tiling(Impl::GemmArguments<T, Output> const& g, int threads) {
    Impl::GemmHostTiling t{largest, largest, 0, 0};
    auto const count = [&] {
      t.tiles_down   = (g.rows + t.rows - 1) / t.rows;
      t.tiles_across = (g.columns + t.columns - 1) / t.columns;
      return t.tiles_down * t.tiles_across;
    };
    // Smaller tiles pack more often than they need to, so only as many as keep the threads busy to the end.
    while (count() < 3 * threads && threads > 1 && t.rows * t.columns > 64 * 64) (t.rows > t.columns ? t.rows : t.columns) /= 2;
    return t;
  }

  static std::size_t scratch_bytes(Impl::GemmHostTiling const& t) {
    return sizeof(E) * (a_elements(t.rows) + b_elements(t.columns)) + sizeof(C) * std::size_t(t.rows) * t.columns;
  }

  static void compute(Impl::GemmArguments<T, Output> const& g, Impl::GemmHostTiling const& t, std::int64_t item,
                      void* scratch) {
    GemmTile tile(g, t, item, scratch);
    if (g.transpose_a == Transpose::yes)
      tile.multiply<ByGroups>();
    else
      tile.multiply<ByRows>();
  }

 private:
  GemmTile(Impl::GemmArguments<T, Output> const& g, Impl::GemmHostTiling const& t, std::int64_t item, void* scratch)
      : m_g(g),
        m_first_row(item / t.tiles_across * t.rows),
        m_first_column(item % t.tiles_across * t.columns),
        m_rows(int(g.rows - m_first_row < t.rows ? g.rows - m_first_row : t.rows)),
        m_columns(int(g.columns - m_first_column < t.columns ? g.columns - m_first_column : t.columns)),
        m_a(static_cast<E*>(scratch)),
        m_b(m_a + a_elements(t.rows)),
        m_sums(reinterpret_cast<C*>(m_b + b_elements(t.columns))) {}

  template <class Map>
  void multiply() {
    std::int64_t k = 0;
    do {  // at least once: a product of depth 0 is 0

      m_valid  = int(m_g.depth - k < depth ? m_g.depth - k : depth);
      m_padded = round_up(m_valid, lanes<E> * step);
      pack_a<Map>(k);
      pack_b(k);
      for (int column = 0; column < m_columns; column += width) {
        add_panel<Map>(column, k == 0);
        if (k + depth >= m_g.depth) finish_panel(column);
      }
      k += depth;
    } while (k < m_g.depth);
  }

  template <class Map>
  void pack_a(std::int64_t k) {
    if constexpr (std::is_same_v<Map, ByRows>) {
      T const* const from = m_g.a + m_first_row * m_g.a_stride + k;
      for (int row = 0; row < m_rows; ++row)
        pack_rows<E>(m_a + row * (depth / step), from + row * m_g.a_stride, 0, 1, m_padded, 1, m_valid);
    } else {
      T const* const from = m_g.a + k * m_g.a_stride + m_first_row;
      for (int i = 0; i < m_valid; i += step)
        for (int row = 0; row < m_rows; row += block_rows)
          unroll<vectors_per_group>([&](auto v) SPOROS_INLINE_LAMBDA {
            int const first = row + v * lanes<E>;
            store_elements(m_a + row / block_rows * group + i / step * block_rows + v * lanes<E>,
                           HostImpl::load_across<E>(from + i * m_g.a_stride + first, m_g.a_stride, m_valid - i,
                                                    m_rows - first));
          });
    }
  }

  void pack_b(std::int64_t k) {
    int const columns = round_up(m_columns, width);
    if (m_g.transpose_b == Transpose::no)
      pack_panels<E>(m_b, m_g.b + k * m_g.b_stride + m_first_column, m_g.b_stride, m_padded, columns, m_valid, m_columns);
    else
      pack_transposed<E>(m_b, m_g.b + m_first_column * m_g.b_stride + k, m_g.b_stride, columns, m_padded, m_columns,
                         m_valid);
  }

  /// Adds this block of the depth to the panel from `column` on.
  template <class Map>
  void add_panel(int column, bool first) {
    E const* const b = m_b + column * (m_padded / step);
    C* const sums    = m_sums + column * m_rows;
    int const count  = (m_valid + step - 1) / step;
    HostImpl::for_each_row_block<block_rows>(0, m_rows, [&]<int Rows>(int row) SPOROS_INLINE_LAMBDA {
      ProductBlock<E, Map, Rows> block;
      if (first)
        block.clear();
      else
        block.load_sums(sums + row * width);
      block.add(m_a + row / Map::m_segment * Map::m_segment_stride + row % Map::m_segment * Map::m_stride, b, 0, count);
      block.store_sums(sums + row * width);
    });
  }

  /// The panel from `column` on goes to D.
  void finish_panel(int column) {
    int const valid = m_columns - column < width ? m_columns - column : width;
    for (int row = 0; row < m_rows; ++row) {
      C const* const sums             = m_sums + column * m_rows + row * width;
      std::int64_t const d_row        = (m_first_row + row) * m_g.d_stride;
      std::int64_t const z_row        = (m_first_row + row) * m_g.z_stride;
      std::int64_t const first_column = m_first_column + column;
      int j                           = 0;
      for (; j + lanes<C> <= valid; j += lanes<C>) finish<lanes<C>>(load_aligned(sums + j), d_row, z_row, first_column + j, lanes<C>);
      if (j < valid) finish<0>(load_aligned(sums + j), d_row, z_row, first_column + j, valid - j);
    }
  }

  /// `count` elements of D; Whole: as many as a vector holds
  template <int Whole>
  SPOROS_FUNCTION void finish(Vector<C> x, std::int64_t d_row, std::int64_t z_row, std::int64_t column, int count) {
    auto const get = [&](auto const* from) SPOROS_INLINE_LAMBDA { return Whole ? load_as<C>(from) : load_first<C>(from, count); };
    auto const put = [&](Output* to, Vector<C> v) SPOROS_INLINE_LAMBDA {
      if constexpr (Whole)
        store_as(to, v);
      else
        store_first(to, v, count);
    };
    Output* const d = m_g.d + d_row + column;
    x *= C(m_g.alpha);
    if (m_g.beta != 0) x = multiply_add(get(static_cast<Output const*>(d)), splat(C(m_g.beta)), x);
    if (m_g.bias) x += get(m_g.bias + column);
    if (!m_g.z) return put(d, x);
    Output* const z = m_g.z + z_row + column;
    put(z, x);
    put(d, gelu<C>(get(static_cast<Output const*>(z))));
  }

  Impl::GemmArguments<T, Output> const& m_g;
  std::int64_t m_first_row, m_first_column;
  int m_rows, m_columns;
  int m_valid  = 0;  // values of k in this block of the depth
  int m_padded = 0;  // ... with zeros up to whole vectors
  E* m_a;
  E* m_b;
  C* m_sums;
};

template <class T, class Output>
constexpr Impl::GemmHostKernel<T, Output> kernel{GemmTile<T, Output>::tiling, GemmTile<T, Output>::scratch_bytes,
                                                 GemmTile<T, Output>::compute};

template <class T>
void sum_columns(T const* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, ComputeType<T>* sums) {
  using C            = ComputeType<T>;
  constexpr int n    = lanes<C>;
  constexpr int wide = 4;  // vectors of one pass: enough sums to hide the latency of an addition
  std::int64_t column = 0;
  for (; column + wide * n <= columns; column += wide * n) {
    Vector<C> sum[wide] = {};
    for (std::int64_t row = 0; row < rows; ++row)
      unroll<wide>([&](auto i) SPOROS_INLINE_LAMBDA { sum[i] += load_as<C>(x + row * stride + column + i * n); });
    unroll<wide>([&](auto i) SPOROS_INLINE_LAMBDA { store(sums + column + i * n, sum[i]); });
  }
  for (; column < columns; ++column) {
    C sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) sum += C(x[row * stride + column]);
    sums[column] = sum;
  }
}

template <class T>
constexpr Impl::ColumnSumsHostKernel<T> column_sums_kernel{sum_columns<T>};

}  // namespace

Impl::GemmHostKernels gemm_host_kernels_of_level() {
  return {kernel<double, double>, kernel<float, float>, kernel<bfloat16, bfloat16>, kernel<bfloat16, float>,
          column_sums_kernel<double>, column_sums_kernel<float>, column_sums_kernel<bfloat16>};
}

}  // namespace Sporos::inline SPOROS_LEVEL
