// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "MmaLayoutTables.hpp"
#include "tile/Sporos_Arch_EmulatedMfma.hpp"
#include "tile/Sporos_Arch_EmulatedSm80.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Testing;
using Sm80 = Arch::Emulated<Arch::Sm80>;
using Gfx90a = Arch::Emulated<Arch::Gfx90a>;
using Gfx942 = Arch::Emulated<Arch::Gfx942>;

static_assert(TileArchitecture<Sm80, bfloat16> && TileArchitecture<Sm80, float16>);
static_assert(TileArchitecture<Gfx90a, bfloat16> && TileArchitecture<Gfx90a, float16>);
static_assert(TileArchitecture<Gfx942, bfloat16> && TileArchitecture<Gfx942, float16>);

// ------------------------------------------------------------------------------------- maps

/// Number of entries of the table in which a map, (lane, element) to position, differs
template <std::size_t Size, class Map>
int differences(TableEntry const (&table)[Size], int lanes, Map const& map) {
  int const elements = int(Size) / lanes;
  int different = 0;
  for (int i = 0; i < int(Size); ++i)
    different += map(i / elements, i % elements) != Position{table[i].row, table[i].column};
  return different;
}

TEST_CASE("lane maps equal the vendors' tables", "[tile][warpmma]") {
  CHECK(differences(mma_m16n8k16_left, 32, [](int lane, int e) { return MmaM16N8K16::left(lane, e); }) == 0);
  CHECK(differences(mma_m16n8k16_right, 32, [](int lane, int e) { return MmaM16N8K16::right(lane, e); }) == 0);
  CHECK(differences(mma_m16n8k16_accumulator, 32, [](int lane, int e) { return MmaM16N8K16::accumulator(lane, e); }) ==
        0);
  CHECK(differences(mfma_32x32x8_left, 64, [](int lane, int e) { return Mfma<32>::left(lane, e); }) == 0);
  CHECK(differences(mfma_32x32x8_right, 64, [](int lane, int e) { return Mfma<32>::right(lane, e); }) == 0);
  CHECK(differences(mfma_32x32x8_accumulator, 64, [](int lane, int e) { return Mfma<32>::accumulator(lane, e); }) == 0);
  CHECK(differences(mfma_16x16x16_left, 64, [](int lane, int e) { return Mfma<16>::left(lane, e); }) == 0);
  CHECK(differences(mfma_16x16x16_right, 64, [](int lane, int e) { return Mfma<16>::right(lane, e); }) == 0);
  CHECK(differences(mfma_16x16x16_accumulator, 64, [](int lane, int e) { return Mfma<16>::accumulator(lane, e); }) ==
        0);
  CHECK(differences(ldmatrix, 32, [](int lane, int e) { return LoadMatrix::element(lane, e); }) == 0);
  CHECK(differences(ldmatrix_transposed, 32, [](int lane, int e) { return LoadMatrix::element_transposed(lane, e); }) ==
        0);
}

/// Eight accumulators in a row are a left factor as they lie, if place(d) says where depth d of an atom goes.
template <class Atom, class Place>
bool accumulators_are_left_factors(Place const& place) {
  for (int lane = 0; lane < Atom::lanes; ++lane)
    for (int f = 0; f < 8; ++f) {
      int const atom = f / Atom::accumulators;
      Position const at = Atom::accumulator(lane, f % Atom::accumulators);
      Position const pair = Atom::left_pair(lane, f / 2);
      if (Position{at.row, place(at.column + atom * Atom::columns)} != Position{pair.row, pair.column + f % 2})
        return false;
      if (Atom::slot_row(lane, Atom::slot(f % Atom::accumulators)) != at.row) return false;
    }
  return true;
}

TEST_CASE("accumulators of an atom are left factors", "[tile][warpmma]") {
  CHECK(accumulators_are_left_factors<MmaSyncAtom>([](int depth) { return depth; }));
  CHECK(accumulators_are_left_factors<MfmaAtom<16>>([](int depth) { return MfmaAtom<16>::place_of_row(depth); }));
  CHECK(accumulators_are_left_factors<MfmaAtom<32>>([](int depth) { return MfmaAtom<32>::place_of_row(depth); }));
  for (int c = 0; c < 4; ++c)
    for (int e = 0; e < 8; ++e) {
      CHECK(MfmaAtom<16>::place_of_row(MfmaAtom<16>::depth_of_accumulator(c, e)) == 8 * c + e);
      if (c < 2) CHECK(MfmaAtom<32>::place_of_row(MfmaAtom<32>::depth_of_accumulator(c, e)) == 8 * c + e);
    }
}

template <class Tile>
bool holds_every_chunk_once(Tile) {
  std::set<int> offsets;
  for (int row = 0; row < Tile::size / (8 * Tile::chunks); ++row)
    for (int chunk = 0; chunk < Tile::chunks; ++chunk) offsets.insert(Tile::offset(row, chunk));
  return int(offsets.size()) == Tile::size / 8 && *offsets.begin() == 0 && *offsets.rbegin() == Tile::size - 8;
}

template <class Tile>
bool eight_rows_meet_no_bank_twice(Tile) {
  for (int chunk = 0; chunk < Tile::chunks; ++chunk)
    for (int first_row = 0; first_row < 16; first_row += 8) {
      std::set<int> banks;
      for (int row = first_row; row < first_row + 8; ++row) banks.insert(Tile::offset(row, chunk) / 8 % 8);
      if (banks.size() != 8) return false;
    }
  return true;
}

TEST_CASE("a swizzled tile holds every chunk once, and eight rows of a chunk are in different banks",
          "[tile][warpmma]") {
  auto const check = [](auto tile) {
    CHECK(holds_every_chunk_once(tile));
    CHECK(eight_rows_meet_no_bank_twice(tile));
  };
  check(SwizzledTile<bfloat16, 16, 128>{});
  check(SwizzledTile<bfloat16, 32, 64>{});
  check(SwizzledTile<bfloat16, 64, 32>{});
  check(SwizzledTile<bfloat16, 32, 16>{});
}

// ------------------------------------------------------------------------------------- tiles

// Small integers, so that every sum is exact, in any order and type.
template <class T>
std::vector<T> small_integers(int size, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<T> values(size);
  for (T& value : values) value = T(float(int(random() % 9)) - 4);
  return values;
}

template <class T>
Matrix<T const> matrix(std::vector<T> const& values, int rows, int columns) {
  return {values.data(), columns, rows, columns};
}

template <class Storage>
std::unique_ptr<Storage> nan_storage() {
  auto storage = std::make_unique<Storage>();
  std::memset(static_cast<void*>(storage.get()), Emulation::nan_byte, sizeof(Storage));
  return storage;
}

struct Values {
  Values(int rows, int columns) : m_columns(columns), m_values(rows * columns, NAN) {}
  float& operator()(int row, int column) { return m_values[row * m_columns + column]; }
  int m_columns;
  std::vector<float> m_values;
};

/// S = A Bᵀ, O = 1 + S V, sums = 100 + (Kᵀ S)ᵀ from random matrices, through pipelines and convert
template <class Arch, class T, int Rows, int Columns>
void require_products_equal_plain_products() {
  constexpr int depth = 64, width = 128;
  auto const a = small_integers<T>(Rows * depth, 1), b = small_integers<T>(Columns * depth, 2),
             v = small_integers<T>(Columns * width, 3), k = small_integers<T>(Rows * width, 4);
  constexpr Use both = Use::left | Use::left_transposed;
  constexpr Use keys_and_values = Use::right_transposed | Use::right;

  struct Storage {
    typename Pipeline<Arch, T, Use::left, Rows, depth, 1>::Storage a;
    typename Pipeline<Arch, T, Use::right_transposed, Columns, depth, 2>::Storage b;
    typename Pipeline<Arch, T, keys_and_values, Columns, width, 1>::Storage v;
    typename Pipeline<Arch, T, both, Rows, width, 1>::Storage k;
    typename Operand<Arch, T, Use::left | Use::right, Rows, Columns>::Storage p;
  };
  auto const storage = nan_storage<Storage>();
  Values plain(Rows, Columns), plain_T(Rows, Columns);  // as a fragment holds it, and rounded
  for (int i = 0; i < Rows; ++i)
    for (int j = 0; j < Columns; ++j) {
      float sum = 0;
      for (int d = 0; d < depth; ++d) sum += float(a[i * depth + d]) * float(b[j * depth + d]);
      plain(i, j) = sum / 16;
      plain_T(i, j) = float(T(sum / 16));
    }

  for (unsigned seed : {0, 1, 2}) {
    CAPTURE(seed);
    Values S(Rows, Columns), O(Rows, width);
    std::vector<float> sums(Columns * width, 100.0f);
    Emulation::run_team<Team<Arch>>({.seed = seed}, [&](Team<Arch>& team) {
      Pipeline<Arch, T, Use::left, Rows, depth, 1> A(team, storage->a);
      Pipeline<Arch, T, Use::right_transposed, Columns, depth, 2> B(team, storage->b);
      Pipeline<Arch, T, keys_and_values, Columns, width, 1> V(team, storage->v);
      Pipeline<Arch, T, both, Rows, width, 1> K(team, storage->k);
      Operand<Arch, T, Use::left | Use::right, Rows, Columns> P(team, storage->p);
      Fragment<Arch, float, Rows, Columns> s(team);
      Fragment<Arch, float, Rows, width> o(team);
      ColumnSums<Arch, float, width, Columns> w(team);
      A.open(matrix(a, Rows, depth), {0, 1});
      B.open(matrix(b, Columns, depth), {0, 1});
      V.open(matrix(v, Columns, width), {0, 1});
      K.open(matrix(k, Rows, width), {0, 1});
      w.open({sums.data(), width, Columns, width}, 0);
      A.prefetch(0);
      B.prefetch(0);
      V.prefetch(0);
      K.prefetch(0);
      auto const tile_a = A.wait(0);
      mma_abt(s, tile_a, B.wait(0));
      join<0>(s);
      map(s, [&](int row, int column, float value) { return S(row, column) = value / 16; });
      convert(P, s);
      fill(o, 1.0f);
      mma_ab(o, P, V.wait(0));
      mma_atb(w, K.wait(0), P);
      join<1>(o);
      map(o, [&](int row, int column, float value) { return O(row, column) = value; });
      join<0>(w, P);
      w.add();
    });

    bool s_equal = true;
    float o_worst = 0, sums_worst = 0;
    for (int i = 0; i < Rows; ++i)
      for (int j = 0; j < Columns; ++j) s_equal = s_equal && S(i, j) == plain(i, j);
    for (int d = 0; d < width; ++d) {
      for (int i = 0; i < Rows; ++i) {
        float sum = 1;
        for (int j = 0; j < Columns; ++j) sum += plain_T(i, j) * float(v[j * width + d]);
        o_worst = std::max(o_worst, std::abs(O(i, d) - sum));
      }
      for (int j = 0; j < Columns; ++j) {
        float sum = 100;
        for (int i = 0; i < Rows; ++i) sum += plain_T(i, j) * float(k[i * width + d]);
        sums_worst = std::max(sums_worst, std::abs(sums[j * width + d] - sum));
      }
    }
    CHECK(s_equal);
    CHECK(o_worst == 0);  // sixteenths of small integers: exact, too
    CHECK(sums_worst == 0);
  }
}

// 64 rows: a warp has whole rows. 32: two warps share them, and P goes through scratch. 128: two atoms of rows a warp.
TEMPLATE_TEST_CASE("products of emulated matrix instructions equal plain products", "[tile][warpmma]", Sm80, Gfx90a,
                   Gfx942) {
  require_products_equal_plain_products<TestType, bfloat16, 64, 64>();
  require_products_equal_plain_products<TestType, bfloat16, 128, 32>();
  require_products_equal_plain_products<TestType, float16, 64, 32>();
  require_products_equal_plain_products<TestType, bfloat16, 32, 64>();
}

TEMPLATE_TEST_CASE("a block of matrix instructions is zero behind the last row and column, and stores keep within them",
                   "[tile][warpmma]", Sm80, Gfx942) {
  using Arch = TestType;
  constexpr int rows = 64, columns = 64;
  auto const values = small_integers<bfloat16>(75 * 40, 5);
  auto const identity = [] {
    std::vector<bfloat16> one(columns * columns, bfloat16(0.0f));
    for (int i = 0; i < columns; ++i) one[i * columns + i] = bfloat16(1.0f);
    return one;
  }();
  using Rows = Pipeline<Arch, bfloat16, Use::left, rows, columns, 1>;
  using RowsInScratch = Pipeline<Arch, bfloat16, Use::right_transposed, rows, columns, 2>;
  struct Storage {
    typename Rows::Storage source;
    typename RowsInScratch::Storage in_scratch, one;
  };
  auto const storage = nan_storage<Storage>();
  std::vector<bfloat16> copy(75 * 40 + 100, bfloat16(-1.0f));
  std::vector<float> maxima(75 + 10, -1.0f);

  Emulation::run_team<Team<Arch>>({}, [&](Team<Arch>& team) {
    Rows source(team, storage->source);
    RowsInScratch in_scratch(team, storage->in_scratch), one(team, storage->one);
    one.open(matrix(identity, columns, columns), {0, 1});
    one.load(0);
    auto const I = one.wait(0);
    source.open(matrix(values, 75, 40), {0, 2});
    in_scratch.open(matrix(values, 75, 40), {0, 2});
    for (int n = 1; n >= 0; --n) {
      source.load(n);
      in_scratch.load(n);
      auto const A = source.wait(n);
      in_scratch.wait(n);
      Fragment<Arch, float, rows, columns> x(team);
      mma_abt(x, A, I);
      join<0>(x);
      source.release(n);
      in_scratch.release(n);
      store_rows(team, Matrix<bfloat16>{copy.data(), 40, 75, 40}, n * rows, x);
      auto const maximum = row_max(x);
      store_rows(team, Matrix<float>{maxima.data(), 1, 75, 1}, n * rows, maximum);
      map(x, [&](int row, int column, float value) {
        bool const real = n * rows + row < 75 && column < 40;
        CHECK(value == (real ? float(values[(n * rows + row) * 40 + column]) : 0.0f));
        return value;
      });
    }
  });
  for (int i = 0; i < 75 * 40; ++i) CHECK(float(copy[i]) == float(values[i]));
  for (std::size_t i = 75 * 40; i < copy.size(); ++i) CHECK(float(copy[i]) == -1.0f);
  for (int row = 0; row < 75; ++row) {
    float maximum = 0;  // of the padding
    for (int column = 0; column < 40; ++column) maximum = std::max(maximum, float(values[row * 40 + column]));
    CHECK(maxima[row] == maximum);
  }
  for (std::size_t i = 75; i < maxima.size(); ++i) CHECK(maxima[i] == -1.0f);
}

TEMPLATE_TEST_CASE("votes over rows of matrix instructions reach every lane of a warp", "[tile][warpmma]", Sm80,
                   Gfx942) {
  using Arch = TestType;
  int votes = 0;
  Emulation::run_team<Team<Arch>>({}, [&](Team<Arch>& team) {
    Fragment<Arch, float, 64, 64> x(team);
    map(x, [](int row, int column, float) { return float(100 * row + column); });
    RowPartial<Arch, float, 64> partial;
    fill(partial, 0.0f);
    x.for_each([&](float& element, auto slot, int, int) { partial(slot) += element; });
    auto const sum = total(partial);
    x.for_each([&](float&, auto slot, int row, int) { CHECK(sum(slot) == float(64 * 100 * row + 63 * 64 / 2)); });
    votes += any(sum, [](float value) { return value == 64 * 1100 + 63 * 64 / 2; });
  });
  CHECK(votes == 1);
}

TEMPLATE_TEST_CASE("a fragment of matrix instructions touched before its join is reported",
                   "[tile][warpmma][emulation]", Sm80, Gfx942) {
  using Arch = TestType;
  using Rows = Pipeline<Arch, bfloat16, Use::right_transposed, 64, 64, 2>;
  std::vector<bfloat16> const zeros(64 * 64, bfloat16(0.0f));
  auto const two_products = [&](auto join_first) {
    auto const storage = nan_storage<typename Rows::Storage>();
    Emulation::run_team<Team<Arch>>({}, [&](Team<Arch>& team) {
      Rows rows(team, *storage);
      rows.open(matrix(zeros, 64, 64), {0, 1});
      rows.load(0);
      auto const A = rows.wait(0);
      Fragment<Arch, float, 64, 64> first(team), second(team);
      mma_abt(first, A, A);
      mma_abt(second, A, A);
      join_first(first);
      row_max(first);
    });
  };
  CHECK_THROWS_AS(two_products([](auto&) {}), std::logic_error);
  CHECK_THROWS_AS(two_products([](auto& first) { join<2>(first); }), std::logic_error);
  CHECK_NOTHROW(two_products([](auto& first) { join<1>(first); }));
}

}  // namespace
