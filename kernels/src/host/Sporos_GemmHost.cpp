// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Compiled once for each instruction-set level: no Kokkos here.
#include "impl/Sporos_Gelu_Vector.hpp"
#include "impl/Sporos_Gemm_Host.hpp"
#include "tile/Sporos_HostProduct.hpp"

namespace Sporos::inline SPOROS_LEVEL {
namespace {

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Values of k that are multiplied at once: a panel of B of this depth stays in the first-level cache.
constexpr int block_depth = 256;

/// All of B as panels, block of the depth by block, laid out once for all tiles: element (k, column) of a block that starts
/// at k0 is in the panel at round_up(columns) · k0 + round_down(column) · (depth of the block).
template <class T, class Output>
class PackedB {
  using E = ProductElement<T>;

  static constexpr int step = k_per_element<E>;
  static constexpr int width = panel_width<E>;
  static constexpr int group = 256;  // columns of one item of work

 public:
  explicit PackedB(Impl::GemmArguments<T, Output> const& g, void* packed)
      : m_g(g), m_columns((g.columns + width - 1) / width * width), m_b(static_cast<E*>(packed)) {}

  /// Values of k in the block from k0 on, and with zeros up to whole vectors
  int valid(std::int64_t k0) const { return int(smaller(m_g.depth - k0, block_depth)); }
  int padded(std::int64_t k0) const { return round_up(valid(k0), lanes<E> * step); }

  E* panel(std::int64_t k0, std::int64_t column) const {
    return m_b + m_columns * (k0 / step) + column * (padded(k0) / step);
  }

  std::size_t bytes() const {
    std::int64_t const padded_depth = (m_g.depth + lanes<E> * step - 1) / (lanes<E> * step) * (lanes<E> * step);
    return sizeof(E) * std::size_t(m_columns) * std::size_t(padded_depth / step);
  }

  std::int64_t items() const { return groups() * ((m_g.depth + block_depth - 1) / block_depth); }

  void pack(std::int64_t item) const {
    std::int64_t const k0 = item / groups() * block_depth, column = item % groups() * group;
    int const valid_columns = int(smaller(m_g.columns - column, group));
    int const columns = round_up(valid_columns, width);
    if (m_g.transpose_b == Transpose::no)
      pack_panels<E>(panel(k0, column), m_g.b + k0 * m_g.b_stride + column, m_g.b_stride, padded(k0), columns,
                     valid(k0), valid_columns);
    else
      pack_transposed<E>(panel(k0, column), m_g.b + column * m_g.b_stride + k0, m_g.b_stride, columns, padded(k0),
                         valid_columns, valid(k0));
  }

 private:
  std::int64_t groups() const { return (m_g.columns + group - 1) / group; }

  Impl::GemmArguments<T, Output> const& m_g;
  std::int64_t m_columns;
  E* m_b;
};

/// One tile of D. Of each block of the depth, A is packed into scratch and multiplied panel by panel; after the last block a
/// panel goes to D while it is in the nearest cache.
template <class T, class Output>
class GemmTile {
  using E = ProductElement<T>;
  using C = SumOf<E>;

  static constexpr int step = k_per_element<E>;
  static constexpr int width = panel_width<E>;
  static constexpr int depth = block_depth;
  // The largest tile. Of float, A and the sums fill 264 + 528 KiB then, the second-level cache that cores have today; a
  // little more than 256 rows, so that 256 rows in whole blocks of six are one tile. Half the rows cost 3 to 5 % on AVX2,
  // half the columns up to 3 %.
  static constexpr int largest_rows = sizeof(C) == 8 ? 192 : 264;
  static constexpr int largest_columns = sizeof(C) == 8 ? 192 : 512;

  using ByRows = RowMajor<depth / step>;

  // The transposed A lies in groups of block_rows neighbours along m, [k][block_rows]. Vectors that are written there reach
  // beyond their group's element k; the surplus behind the last k keeps that from the next group.
  static constexpr int vectors_per_group = (block_rows + lanes<E> - 1) / lanes<E>;
  static constexpr int group = depth / step * block_rows + vectors_per_group * lanes<E>;
  using ByGroups = ColumnMajor<block_rows>;

  static constexpr std::size_t a_bytes(int rows) {
    return sizeof(E) * std::size_t(round_up((rows + block_rows - 1) / block_rows * group, 64));
  }

 public:
  static Impl::GemmHostTiling tiling(Impl::GemmArguments<T, Output> const& g, int threads) {
    Impl::GemmHostTiling t{};
    // Equal tiles: a last one of few rows would read all of B for them.
    auto const share = [](std::int64_t n, std::int64_t tiles, int multiple) {
      return round_up(int(smaller((n + tiles - 1) / tiles, 1 << 16)), multiple);
    };
    t.rows = share(g.rows, (g.rows + largest_rows - 1) / largest_rows, block_rows);
    t.columns = share(g.columns, (g.columns + largest_columns - 1) / largest_columns, width);
    // With one block of depth a panel is finished at once: A is packed for all columns, and their sums need no memory.
    if (has_one_block(g)) t.columns = share(g.columns, 1, width);
    // Smaller tiles pack A more often than they need to, so only as many as keep the threads busy to the end.
    auto const tiles = [&] { return ((g.rows + t.rows - 1) / t.rows) * ((g.columns + t.columns - 1) / t.columns); };
    while (threads > 1 && tiles() < 3 * threads && t.rows * t.columns > 64 * 64)
      if (t.rows >= t.columns)
        t.rows = share(t.rows, 2, block_rows);
      else
        t.columns = share(t.columns, 2, width);
    t.tiles_down = (g.rows + t.rows - 1) / t.rows;
    t.tiles_across = (g.columns + t.columns - 1) / t.columns;
    t.packs = PackedB(g, nullptr).items();
    t.packed_bytes = PackedB(g, nullptr).bytes();
    t.scratch_bytes =
        a_bytes(t.rows) + sizeof(C) * std::size_t(t.rows) * std::size_t(has_one_block(g) ? width : t.columns);
    return t;
  }

  static bool has_one_block(Impl::GemmArguments<T, Output> const& g) { return g.depth <= depth; }

  static void pack(Impl::GemmArguments<T, Output> const& g, std::int64_t item, void* packed) {
    PackedB(g, packed).pack(item);
  }

  static void compute(Impl::GemmArguments<T, Output> const& g, Impl::GemmHostTiling const& t, std::int64_t item,
                      void const* packed, void* scratch) {
    GemmTile tile(g, t, item, const_cast<void*>(packed), scratch);
    if (g.transpose_a == Transpose::yes)
      tile.multiply<ByGroups>();
    else
      tile.multiply<ByRows>();
  }

 private:
  GemmTile(Impl::GemmArguments<T, Output> const& g, Impl::GemmHostTiling const& t, std::int64_t item, void* packed,
           void* scratch)
      : m_g(g),
        m_b(g, packed),
        m_first_row(item / t.tiles_across * t.rows),
        m_first_column(item % t.tiles_across * t.columns),
        m_rows(int(smaller(g.rows - m_first_row, t.rows))),
        m_columns(int(smaller(g.columns - m_first_column, t.columns))),
        m_a(static_cast<E*>(scratch)),
        m_sums(reinterpret_cast<C*>(static_cast<char*>(scratch) + a_bytes(t.rows))) {}

  template <class Map>
  void multiply() {
    std::int64_t k0 = 0;
    do {  // at least once: a product of depth 0 is 0
      pack_a<Map>(k0);
      for (int column = 0; column < m_columns; column += width) add_panel<Map>(column, k0);
      k0 += depth;
    } while (k0 < m_g.depth);
  }

  C* panel_of_sums(int column) const { return has_one_block(m_g) ? m_sums : m_sums + column * m_rows; }

  template <class Map>
  void pack_a(std::int64_t k0) {
    int const valid = m_b.valid(k0);
    if constexpr (std::is_same_v<Map, ByRows>) {
      T const* const from = m_g.a + m_first_row * m_g.a_stride + k0;
      for (int row = 0; row < m_rows; ++row)
        pack_rows<E>(m_a + row * (depth / step), from + row * m_g.a_stride, 0, 1, m_b.padded(k0), 1, valid);
    } else {
      T const* const from = m_g.a + k0 * m_g.a_stride + m_first_row;
      for (int k = 0; k < valid; k += step)
        for (int row = 0; row < m_rows; row += block_rows)
          unroll<vectors_per_group>([&](auto v) SPOROS_INLINE_LAMBDA {
            int const first = row + v * lanes<E>;
            store_elements(
                m_a + row / block_rows * group + k / step * block_rows + v * lanes<E>,
                HostImpl::load_across<E>(from + k * m_g.a_stride + first, m_g.a_stride, valid - k, m_rows - first));
          });
    }
  }

  /// Adds the block of the depth from k0 on to the panel from `column` on; after the last block it goes to D.
  template <class Map>
  void add_panel(int column, std::int64_t k0) {
    E const* const b = m_b.panel(k0, m_first_column + column);
    C* const sums = panel_of_sums(column);
    int const count = (m_b.valid(k0) + step - 1) / step;
    bool const last = k0 + depth >= m_g.depth;
    for_each_row_block(m_rows, [&]<int Rows>(int row) SPOROS_INLINE_LAMBDA {
      ProductBlock<E, Map, Rows> block;
      if (k0 == 0)
        block.clear();
      else
        block.load_sums(sums + row * width);
      prefetch_next_a<Map>(k0, row, column);
      if (last)
        for (int i = 0; i < Rows; ++i) __builtin_prefetch(d(row + i, column));
      block.add(packed_a<Map>(row), b, count);
      block.store_sums(sums + row * width);
      if (last) finish_rows(row, Rows, column);
    });
  }

  template <class Map>
  SPOROS_FUNCTION E const* packed_a(int row) const {
    if constexpr (std::is_same_v<Map, ByRows>) return m_a + row * (depth / step);
    return m_a + row / block_rows * group + row % block_rows;
  }

  /// Asks for a part of the A that is packed next, so that packing does not wait for memory, which took a quarter of a
  /// product of 2048³: of the rows from `row` on, what falls to the panel at `column` when all panels share it out.
  template <class Map>
  SPOROS_FUNCTION void prefetch_next_a(std::int64_t k0, int row, int column) const {
    constexpr int line = 64 / int(sizeof(T));  // elements in a line of the cache
    // The next block of the depth; or the first, for the tile to the right or the one below
    bool const last = k0 + depth >= m_g.depth;
    std::int64_t const next = last ? 0 : k0 + depth;
    bool const below = last && m_first_column + m_columns == m_g.columns;
    std::int64_t const first = m_first_row + row + (below ? m_rows : 0);
    if (first + block_rows > m_g.rows) return;

    int const from = column * m_b.valid(next) / round_up(m_columns, width);
    int const to = (column + width) * m_b.valid(next) / round_up(m_columns, width);
    if constexpr (std::is_same_v<Map, ByRows>) {
      T const* const a = m_g.a + first * m_g.a_stride + next;
      for (int k = round_up(from, line); k < to; k += line)
        for (int i = 0; i < block_rows; ++i) __builtin_prefetch(a + i * m_g.a_stride + k, 0, 2);
    } else {
      if (row % line >= block_rows) return;  // not the first in its line
      T const* const a = m_g.a + next * m_g.a_stride + first;
      for (int k = from; k < to; ++k) __builtin_prefetch(a + k * m_g.a_stride, 0, 2);
    }
  }

  Output* d(int row, int column) const { return m_g.d + (m_first_row + row) * m_g.d_stride + m_first_column + column; }

  /// `count` rows of the panel from `column` on go to D.
  [[gnu::noinline]] void finish_rows(int first, int count, int column) {
    int const valid = m_columns - column < width ? m_columns - column : width;
    for (int row = first; row < first + count; ++row) {
      C const* const sums = panel_of_sums(column) + row * width;
      int j = 0;
      for (; j + lanes<C> <= valid; j += lanes<C>) finish<true>(load_aligned(sums + j), row, column + j, lanes<C>);
      if (j < valid) finish<false>(load_aligned(sums + j), row, column + j, valid - j);
    }
  }

  /// `count` elements of D; Whole: as many as a vector holds
  template <bool Whole>
  SPOROS_FUNCTION void finish(Vector<C> x, int row, int column, int count) {
    auto const get = [&](auto const* from) SPOROS_INLINE_LAMBDA {
      if constexpr (Whole)
        return load_as<C>(from);
      else
        return load_first<C>(from, count);
    };
    auto const put = [&](Output* to, Vector<C> v) SPOROS_INLINE_LAMBDA {
      if constexpr (Whole)
        store_as(to, v);
      else
        store_first(to, v, count);
    };
    Output* const result = d(row, column);
    x *= C(m_g.alpha);
    if (m_g.beta != 0) x = multiply_add(get(static_cast<Output const*>(result)), splat(C(m_g.beta)), x);
    if (m_g.bias) x += get(m_g.bias + m_first_column + column);
    if (!m_g.z) return put(result, x);
    Output* const z = m_g.z + (m_first_row + row) * m_g.z_stride + m_first_column + column;
    put(z, x);
    put(result, gelu<C>(get(static_cast<Output const*>(z))));
  }

  Impl::GemmArguments<T, Output> const& m_g;
  PackedB<T, Output> m_b;
  std::int64_t m_first_row, m_first_column;
  int m_rows, m_columns;
  E* m_a;
  C* m_sums;
};

template <class T, class Output>
constexpr Impl::GemmHostKernel<T, Output> kernel{GemmTile<T, Output>::tiling, GemmTile<T, Output>::pack,
                                                 GemmTile<T, Output>::compute};

template <class T>
void sum_columns(T const* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, ComputeType<T>* sums) {
  using C = ComputeType<T>;
  constexpr int n = lanes<C>;
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
  return {kernel<double, double>,     kernel<float, float>,      kernel<bfloat16, bfloat16>,  kernel<bfloat16, float>,
          column_sums_kernel<double>, column_sums_kernel<float>, column_sums_kernel<bfloat16>};
}

}  // namespace Sporos::inline SPOROS_LEVEL
