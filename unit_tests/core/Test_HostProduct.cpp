// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <vector>

#include "tile/Sporos_HostProduct.hpp"

namespace {

using namespace Sporos;

constexpr int size = 32;  // a square tile: several panels, several blocks of rows

/// Small whole numbers: their products and sums are exact in any order.
template <class T>
T number(int seed, int row, int column) {
  return T((row * 7 + column * 13 + seed * 5) % 9 - 4);
}

template <class T>
struct alignas(64) Tile {
  T values[size * size];
};

/// Where panels keep element (row, column)
template <class T>
int in_panels(int row, int column) {
  return column / panel_width<T> * size * panel_width<T> + row * panel_width<T> + column % panel_width<T>;
}

/// C of a product whose A lies by `address`
template <class T, class Map, bool Accumulate, class Address>
void check(Address const& address) {
  Tile<T> a, b, c;
  for (int r = 0; r < size; ++r)
    for (int k = 0; k < size; ++k) {
      a.values[address(r, k)] = number<T>(1, r, k);
      b.values[in_panels<T>(r, k)] = number<T>(2, r, k);
      c.values[in_panels<T>(r, k)] = Accumulate ? T(100) : T(NAN);
    }
  product<size, size, size, Accumulate, Map>(a.values, b.values, c.values);
  for (int m = 0; m < size; ++m)
    for (int n = 0; n < size; ++n) {
      T expected = Accumulate ? 100 : 0;
      for (int k = 0; k < size; ++k) expected += number<T>(1, m, k) * number<T>(2, k, n);
      CAPTURE(m, n);
      REQUIRE(c.values[in_panels<T>(m, n)] == expected);
    }
}

TEMPLATE_TEST_CASE("A product reads its left operand by rows, by columns and from panels", "[core][host_product]",
                   float, double) {
  using T = TestType;
  auto const all = []<class Map>(Map, auto const& address) {
    check<T, Map, false>(address);
    check<T, Map, true>(address);
  };
  all(RowMajor<size>(), [](int m, int k) { return m * size + k; });
  all(ColumnMajor<size>(), [](int m, int k) { return k * size + m; });
  all(PanelRows<T, size>(), [](int m, int k) { return in_panels<T>(m, k); });
}

TEMPLATE_TEST_CASE("Packing and unpacking give back the matrix, zero beyond its edge", "[core][host_product]", float,
                   double, bfloat16) {
  using T = TestType;
  using E = ComputeType<T>;  // bfloat16 widened
  constexpr int stride = size + 3;
  for (auto [rows, columns] : {std::pair{size, size}, std::pair{size - 5, size - 3}, std::pair{1, 1}}) {
    CAPTURE(rows, columns);
    std::vector<T> matrix(std::size_t(rows - 1) * stride + columns);  // ends with its last element
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) matrix[std::size_t(r) * stride + c] = T(number<E>(3, r, c));
    auto const expected = [&](int r, int c) { return r < rows && c < columns ? number<E>(3, r, c) : E(0); };

    Tile<E> by_rows, panels, transposed, k_rows;
    pack_rows<E>(by_rows.values, matrix.data(), stride, size, size, rows, columns);
    pack_panels<E>(panels.values, matrix.data(), stride, size, size, rows, columns);
    pack_transposed<E>(transposed.values, matrix.data(), stride, size, size, rows, columns);
    pack_k_rows<E>(k_rows.values, matrix.data(), stride, size, size, rows, columns);
    for (int r = 0; r < size; ++r)
      for (int c = 0; c < size; ++c) {
        REQUIRE(by_rows.values[r * size + c] == expected(r, c));
        REQUIRE(panels.values[in_panels<E>(r, c)] == expected(r, c));
        REQUIRE(transposed.values[in_panels<E>(c, r)] == expected(r, c));
        REQUIRE(k_rows.values[r * size + c] == expected(r, c));
      }

    std::vector<T> back(matrix.size(), T(E(55))), turned(std::size_t(columns - 1) * stride + rows, T(E(55)));
    unpack_panels(back.data(), stride, panels.values, size, size, rows, columns, E(2));
    alignas(64) E factor[size];
    for (E& f : factor) f = 2;
    unpack_transposed(turned.data(), stride, panels.values, size, size, columns, rows, factor);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) {
        REQUIRE(E(back[std::size_t(r) * stride + c]) == 2 * expected(r, c));
        REQUIRE(E(turned[std::size_t(c) * stride + r]) == 2 * expected(r, c));
      }
    if (rows > 1) REQUIRE(E(back[std::size_t(columns)]) == E(55));  // between two rows nothing is written
  }
}

}  // namespace
