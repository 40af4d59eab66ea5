// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tile/Sporos_Arch_EmulatedSimt.hpp"

namespace {

using namespace Sporos;
using Emulated = Arch::Emulated<Arch::Simt>;
using SimtTeam = Team<Emulated>;

static_assert(TileArchitecture<Emulated, float>);
static_assert(TileArchitecture<Emulated, double>);
static_assert(TileArchitecture<Emulated, bfloat16>);

template <class Kernel>
void run_team(Kernel const& kernel, Emulation::Adversary const& adversary = {}) {
  Emulation::run_team<SimtTeam>(adversary, kernel);
}

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

template <class C>
struct Values {
  Values(int rows, int columns) : m_columns(columns), m_values(rows * columns, C(NAN)) {}
  C& operator()(int row, int column) { return m_values[row * m_columns + column]; }
  int m_columns;
  std::vector<C> m_values;
};

TEST_CASE("every element of a fragment has one place in the team", "[tile][simt]") {
  std::set<std::pair<int, int>> places;
  int elements = 0;
  run_team([&](SimtTeam& team) {
    Fragment<Emulated, float, 24, 48> x(team);
    x.for_each([&](float&, auto, int row, int column) {
      CHECK((row >= 0 && row < 24 && column >= 0 && column < 48));
      places.insert({row, column});
      ++elements;
    });
  });
  CHECK(places.size() == 24 * 48);
  CHECK(elements == 24 * 48);
}

TEST_CASE("sixteen lanes that read chunks of neighbouring rows meet no bank twice", "[tile][simt]") {
  auto const conflict_free = [](auto tile) {
    // The hardware serves 16-byte reads in phases of eight lanes, which cover the 32 banks of four bytes.
    for (int first = 0; first < 16; first += 8) {
      std::set<int> banks;
      for (int lane = first; lane < first + 8; ++lane)
        banks.insert(int(lane * tile.stride * sizeof(*tile.data) / 16 % 8));
      if (banks.size() != 8) return false;
    }
    return true;
  };
  CHECK(conflict_free(SimtTile<float, 64, 64>{}));
  CHECK(conflict_free(SimtTile<float, 64, 24>{}));
  CHECK(conflict_free(SimtTile<float, 64, 20>{}));
  CHECK(conflict_free(SimtTile<double, 64, 16>{}));
  CHECK(conflict_free(SimtTile<double, 64, 128>{}));
}

// S = A Bᵀ, O = 1 + S V, sums = 100 + (Kᵀ S)ᵀ, through pipelines and convert, from matrices of whole tiles.
TEMPLATE_TEST_CASE("products equal plain products", "[tile][simt]", double, float, bfloat16) {
  using T = TestType;
  using C = ComputeType<T>;
  constexpr int rows = 24, columns = 32, depth = 64, width = 128;
  auto const a = small_integers<T>(rows * depth, 1), b = small_integers<T>(columns * depth, 2),
             v = small_integers<T>(columns * width, 3), k = small_integers<T>(rows * width, 4);

  struct Storage {
    typename Pipeline<Emulated, T, Use::left, rows, depth, 1>::Storage a;
    typename Pipeline<Emulated, T, Use::right_transposed, columns, depth, 2>::Storage b;
    typename Pipeline<Emulated, T, Use::right, columns, width, 1>::Storage v;
    typename Pipeline<Emulated, T, Use::left_transposed, rows, width, 1>::Storage k;
    typename Operand<Emulated, T, Use::left | Use::right, rows, columns>::Storage p;
  };
  auto const storage = nan_storage<Storage>();

  Values<C> S(rows, columns), O(rows, width);
  std::vector<C> sums(columns * width, C(100));
  for (unsigned seed : {0, 1, 2}) {
    std::fill(sums.begin(), sums.end(), C(100));
    run_team(
        [&](SimtTeam& team) {
          Pipeline<Emulated, T, Use::left, rows, depth, 1> A(team, storage->a);
          Pipeline<Emulated, T, Use::right_transposed, columns, depth, 2> B(team, storage->b);
          Pipeline<Emulated, T, Use::right, columns, width, 1> V(team, storage->v);
          Pipeline<Emulated, T, Use::left_transposed, rows, width, 1> K(team, storage->k);
          Operand<Emulated, T, Use::left | Use::right, rows, columns> P(team, storage->p);
          Fragment<Emulated, C, rows, columns> s(team);
          Fragment<Emulated, C, rows, width> o(team);
          ColumnSums<Emulated, C, width, columns> w(team);
          A.open(matrix(a, rows, depth), {0, 1});
          B.open(matrix(b, columns, depth), {0, 1});
          V.open(matrix(v, columns, width), {0, 1});
          K.open(matrix(k, rows, width), {0, 1});
          w.open({sums.data(), width, columns, width}, 0);
          auto const tile_a = A.wait(0);
          mma_abt(s, tile_a, B.wait(0));
          join<0>(s);
          map(s, [&](int row, int column, C value) { return S(row, column) = value; });
          convert(P, s);
          fill(o, C(1));
          mma_ab(o, P, V.wait(0));
          mma_atb(w, K.wait(0), P);
          join<1>(o);
          map(o, [&](int row, int column, C value) { return O(row, column) = value; });
          join<0>(w, P);
          w.add();
        },
        {.seed = seed});

    bool s_equal = true, o_equal = true, sums_equal = true;
    Values<C> plain(rows, columns);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) {
        plain(i, j) = 0;
        for (int d = 0; d < depth; ++d) plain(i, j) += C(a[i * depth + d]) * C(b[j * depth + d]);
        s_equal = s_equal && S(i, j) == plain(i, j);
      }
    for (int d = 0; d < width; ++d) {
      for (int i = 0; i < rows; ++i) {
        C sum = 1;
        for (int j = 0; j < columns; ++j) sum += plain(i, j) * C(v[j * width + d]);
        o_equal = o_equal && O(i, d) == sum;
      }
      for (int j = 0; j < columns; ++j) {
        C sum = 100;
        for (int i = 0; i < rows; ++i) sum += plain(i, j) * C(k[i * width + d]);
        sums_equal = sums_equal && sums[j * width + d] == sum;
      }
    }
    CHECK(s_equal);
    CHECK(o_equal);
    CHECK(sums_equal);
  }
}

TEST_CASE("a block is zero behind the last row and column, and stores keep within them", "[tile][simt]") {
  constexpr int rows = 16, columns = 32;
  auto const values = small_integers<float>(21 * 27, 5);
  using Rows = Pipeline<Emulated, float, Use::left, rows, columns, 1>;
  auto const storage = nan_storage<Rows::Storage>();
  std::vector<float> copy(21 * 27 + 100, -1.0f), identity(32 * 32, 0.0f), maxima(21 + 10, -1.0f);
  for (int i = 0; i < 32; ++i) identity[i * 32 + i] = 1;
  auto const expect = [&](int row, int column) { return row < 21 && column < 27 ? values[row * 27 + column] : 0.0f; };

  bool equal = true;
  run_team([&](SimtTeam& team) {
    Rows source(team, *storage);
    source.open(matrix(values, 21, 27), {0, 2});
    for (int n = 1; n >= 0; --n) {
      auto const tile = source.wait(n);
      for (int row = 0; row < rows; ++row)
        for (int column = 0; column < columns; ++column)
          equal = equal && tile(row, column) == expect(n * rows + row, column);
      Fragment<Emulated, float, rows, columns> x(team);
      map(x, [&](int row, int column, float) { return tile(row, column); });
      store_rows(team, Matrix<float>{copy.data(), 27, 21, 27}, n * rows, x);
      auto const maximum = row_max(x);
      store_rows(team, Matrix<float>{maxima.data(), 1, 21, 1}, n * rows, maximum);
    }
  });
  CHECK(equal);
  for (int row = 0; row < 21; ++row) {
    float maximum = 0;  // of the padding
    for (int column = 0; column < 27; ++column) {
      if (copy[row * 27 + column] != expect(row, column)) equal = false;
      maximum = std::max(maximum, expect(row, column));
    }
    CHECK(maxima[row] == maximum);
  }
  CHECK(equal);
  for (std::size_t i = 21 * 27; i < copy.size(); ++i) CHECK(copy[i] == -1.0f);
  for (std::size_t i = 21; i < maxima.size(); ++i) CHECK(maxima[i] == -1.0f);
}

TEST_CASE("sums and votes over a row reach every lane that holds it", "[tile][simt]") {
  bool equal = true;
  int votes = 0;
  run_team([&](SimtTeam& team) {
    Fragment<Emulated, double, 16, 48> x(team);
    map(x, [](int row, int column, double) { return double(100 * row + column); });
    RowPartial<Emulated, double, 16> partial;
    fill(partial, 0.0);
    x.for_each([&](double& element, auto slot, int, int) { partial(slot) += element; });
    auto const sum = total(partial);
    x.for_each([&](double&, auto slot, int row, int) { equal = equal && sum(slot) == 48 * 100 * row + 47 * 48 / 2; });
    // Row 11 is held by one group, so one warp of the four says yes.
    votes += any(sum, [](double value) { return value == 48 * 1100 + 47 * 48 / 2; });
  });
  CHECK(equal);
  CHECK(votes == 1);
}

TEST_CASE("a fragment or operand touched before its join is reported", "[tile][simt][emulation]") {
  std::vector<float> zeros(SimtTile<float, 16, 16>::size);
  SimtTile<float, 16, 16> const A{zeros.data()};
  using P = Operand<Emulated, float, Use::left, 16, 16>;
  P::Storage storage;
  auto const two_products = [&](auto join_first) {
    run_team([&](SimtTeam& team) {
      Fragment<Emulated, float, 16, 16> first(team), second(team);
      mma_abt(first, A, A);
      mma_abt(second, A, A);
      join_first(first);
      row_max(first);
    });
  };
  CHECK_THROWS_AS(two_products([](auto&) {}), std::logic_error);
  CHECK_THROWS_AS(two_products([](auto& first) { join<2>(first); }), std::logic_error);
  CHECK_NOTHROW(two_products([](auto& first) { join<1>(first); }));
  auto const convert_early = [&](bool joined) {
    run_team([&](SimtTeam& team) {
      Fragment<Emulated, float, 16, 16> S(team), O(team);
      P p(team, storage);
      fill(S, 0.0f);
      fill(O, 0.0f);
      convert(p, S);
      mma_ab(O, p, A);
      if (joined) join<0>(O, p);
      convert(p, S);
    });
  };
  CHECK_THROWS_AS(convert_early(false), std::logic_error);
  CHECK_NOTHROW(convert_early(true));
}

TEST_CASE("a barrier that not every warp reaches is reported", "[tile][simt][emulation]") {
  CHECK_THROWS_AS(run_team([](SimtTeam& team) {
                    team.barrier();
                    if (team.warp() != 2) team.barrier();
                  }),
                  std::logic_error);
}

// Two blocks through one buffer, each with two barriers of the pipeline and two of the operand.
TEST_CASE("every barrier is needed, and the emulator shows it", "[tile][simt][emulation]") {
  auto const values = small_integers<float>(32 * 16, 6);
  using Rows = Pipeline<Emulated, float, Use::left, 16, 16, 1>;
  using Factor = Operand<Emulated, float, Use::right, 16, 16>;
  auto const wrong_in = [&](Emulation::Adversary adversary) {
    auto const storage = nan_storage<Rows::Storage>();
    auto const factor = nan_storage<Factor::Storage>();
    std::vector<float> sums(16 * 16);
    run_team(
        [&](SimtTeam& team) {
          Rows rows(team, *storage);
          Factor P(team, *factor);
          Fragment<Emulated, float, 16, 16> S(team);
          ColumnSums<Emulated, float, 16, 16> w(team);
          rows.open(matrix(values, 32, 16), {0, 2});
          w.open({sums.data(), 16, 16, 16}, 0);
          for (int n = 1; n >= 0; --n) {
            auto const A = rows.wait(n);
            mma_abt(S, A, A);
            join<0>(S);
            convert(P, S);
            mma_atb(w, A, P);
            join<0>(w, P);
            w.add();
          }
        },
        adversary);
    std::vector<float> plain(16 * 16);
    for (int n = 0; n < 2; ++n)
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
          float s = 0;
          for (int d = 0; d < 16; ++d) s += values[(16 * n + i) * 16 + d] * values[(16 * n + j) * 16 + d];
          for (int d = 0; d < 16; ++d) plain[j * 16 + d] += s * values[(16 * n + i) * 16 + d];
        }
    return sums != plain;
  };
  auto const shown = [&](int barrier) {
    for (unsigned seed = 0; seed < 8; ++seed)
      if (wrong_in({.seed = seed, .forgotten_barrier = barrier})) return true;
    return false;
  };
  for (unsigned seed = 0; seed < 8; ++seed) CHECK_FALSE(wrong_in({.seed = seed}));
  // Not 0 and 2, before which the buffers are unused; nor 6, for 4 and 5 lie between the operand's use and its next write.
  for (int barrier : {1, 3, 4, 5, 7}) {
    CAPTURE(barrier);
    CHECK(shown(barrier));
  }
}

}  // namespace
