// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "tile/Sporos_Tile_Host.hpp"

namespace {

using namespace Sporos;
using Host = Arch::Host;

static_assert(TileArchitecture<Host, float>);
static_assert(TileArchitecture<Host, double>);
static_assert(TileArchitecture<Host, bfloat16>);

constexpr int size = 64;
constexpr int valid = 61;  // rows and columns of a matrix that a tile hangs over

/// Small integers, so that every sum is exact in any order and type. The matrix has rows of a larger stride.
template <class T>
struct Numbers {
  static constexpr int stride = size + 3;

  explicit Numbers(unsigned seed) : values(size * stride) {
    std::minstd_rand random(seed);
    for (T& value : values) value = T(float(int(random() % 9)) - 4);
  }
  Matrix<T const> matrix() const { return {values.data(), stride, valid, valid}; }
  double operator()(int row, int column) const {
    return row < valid && column < valid ? double(values[row * stride + column]) : 0;
  }

  std::vector<T> values;
};

template <class Pipeline>
struct Loaded {
  explicit Loaded(Team<Host>& team)
      : storage(std::make_unique<typename Pipeline::Storage>()), pipeline(team, *storage) {
    std::memset(static_cast<void*>(storage.get()), 0xff, sizeof *storage);
  }
  template <class T>
  auto operator()(Numbers<T> const& numbers) {
    pipeline.open(numbers.matrix(), {0, 1});
    return pipeline.wait(0);
  }

  std::unique_ptr<typename Pipeline::Storage> storage;
  Pipeline pipeline;
};

/// Columns that matter to a row, and whether the band leaves some out
bool matters(Band const& band, int row, int column) { return row + band.first <= column && column <= row + band.last; }

constexpr std::int64_t all = 1 << 20;

TEMPLATE_TEST_CASE("products of host tiles are exact, in a band and without", "[tile][host]", double, float, bfloat16) {
  using T = TestType;
  using C = ComputeType<T>;
  Band const band = GENERATE(Band{-all, all}, Band{-all, 0}, Band{0, all}, Band{-all, -20}, Band{17, all}, Band{-9, 5});
  CAPTURE(band.first, band.last);
  Team<Host> team;
  Numbers<T> const a(1), b(2), p(3);

  SECTION("A Bᵀ") {
    Loaded<Pipeline<Host, T, Use::left, size, size, 1>> left(team);
    Loaded<Pipeline<Host, T, Use::right_transposed, size, size, 1>> right(team);
    Fragment<Host, C, size, size> S(team);
    fill(S, C(NAN));
    mma_abt(S, left(a), right(b), band);
    join<0>(S);
    int different = 0;
    S.for_each([&](C& element, auto, int row, int column) {
      double sum = 0;
      for (int k = 0; k < size; ++k) sum += a(row, k) * b(column, k);
      if (matters(band, row, column)) different += double(element) != sum;
    });
    CHECK(different == 0);
  }

  // P is zero outside of the band, as the contract has it.
  Fragment<Host, C, size, size> S(team);
  map(S, [&](int row, int column, C) { return matters(band, row, column) ? C(p(row, column)) : C(0); });
  auto const factor = [&](int row, int column) { return matters(band, row, column) ? p(row, column) : 0.0; };

  SECTION("O += P B, with a fragment that may be written again before the join") {
    Loaded<Pipeline<Host, T, Use::right, size, size, 1>> right(team);
    Loaded<Pipeline<Host, T, Use::left, size, size, 1>> other_left(team);
    Loaded<Pipeline<Host, T, Use::right_transposed, size, size, 1>> other_right(team);
    using P = Operand<Host, T, Use::left, size, size>;
    auto storage = std::make_unique<typename P::Storage>();
    P operand(team, *storage);
    Fragment<Host, C, size, size> O(team);
    fill(O, C(7));
    convert(operand, S);
    mma_abt(S, other_left(a), other_right(b));
    mma_ab(O, operand, right(b), band);
    join<0>(O, operand);
    int different = 0;
    O.for_each([&](C& element, auto, int row, int column) {
      double sum = 7;
      for (int k = 0; k < size; ++k) sum += factor(row, k) * b(k, column);
      different += double(element) != sum;
    });
    CHECK(different == 0);
  }

  SECTION("sums += Aᵀ B") {
    Loaded<Pipeline<Host, T, Use::left | Use::left_transposed, size, size, 1>> left(team);
    using B = Operand<Host, T, Use::left | Use::right, size, size>;
    auto storage = std::make_unique<typename B::Storage>();
    B operand(team, *storage);
    convert(operand, S);
    struct alignas(64) Block {
      C values[size * size];
    };
    auto block = std::make_unique<Block>();
    for (C& value : block->values) value = 7;
    ColumnSums<Host, C, size, size> sums(team);
    sums.open({block->values, size, size, size}, 0);
    mma_atb(sums, left(a), operand, band);
    join<0>(sums, operand);
    sums.add();
    std::vector<C> rows(size * size, C(NAN));
    unpack_panels(rows.data(), size, block->values, size, size, size, size, C(1));
    int different = 0;
    for (int column = 0; column < size; ++column)
      for (int row = 0; row < size; ++row) {
        double sum = 7;
        for (int k = 0; k < size; ++k) sum += a(k, row) * factor(k, column);
        different += double(rows[column * size + row]) != sum;
      }
    CHECK(different == 0);
  }
}

TEMPLATE_TEST_CASE("a host fragment is stored up to the end of the matrix and no further", "[tile][host]", double,
                   float, bfloat16) {
  using T = TestType;
  using C = ComputeType<T>;
  Team<Host> team;
  Fragment<Host, C, size, size> x(team);
  map(x, [](int row, int column, C) { return C(row + column); });
  std::vector<T> values(size * size, T(-1.0f));
  store_rows(team, Matrix<T>{values.data(), size, 60, 50}, 40, x);
  int different = 0;
  for (int row = 0; row < size; ++row)
    for (int column = 0; column < size; ++column) {
      bool const written = row >= 40 && row < 60 && column < 50;
      different += double(values[row * size + column]) != (written ? row - 40 + column : -1);
    }
  CHECK(different == 0);
}

TEMPLATE_TEST_CASE("row operations of host fragments equal those of their elements", "[tile][host]", double, float) {
  using C = TestType;
  Team<Host> team;
  Fragment<Host, C, size, size> x(team);
  RowVector<Host, C, size> reference;
  for_each_row([](C& value) { value = 3; }, reference);
  // From far below to above the reference
  auto const value = [](int row, int column) { return C((row * 37 + column * 11) % 64) - 40; };
  map(x, [&](int row, int column, C) { return value(row, column); });
  auto const maximum = row_max(x);
  auto const sum = total(exp2_rows_and_sum(x, C(0.5), reference));
  int different = 0;
  double error = 0;
  for (int row = 0; row < size; ++row) {
    C highest = -infinity<C>;
    double exact = 0;
    for (int column = 0; column < size; ++column) {
      highest = std::max(highest, value(row, column));
      exact += std::exp2(0.5 * double(value(row, column)) - 3);
    }
    different += maximum(row) != highest;
    error = std::max(error, std::abs(double(sum(row)) - exact) / exact);
  }
  CHECK(different == 0);
  CHECK(error <= 16 * double(std::numeric_limits<C>::epsilon()));  // 64 summands in one order, of 1.5 ulp each
}

struct Mask {
  Dropout const& dropout;
  std::uint64_t first;
  std::int64_t row_stride, column_stride;
  bool keeps(int row, int column) const {
    std::uint64_t const element = first + std::uint64_t(row * row_stride + column * column_stride);
    return dropout.random().bits(element) >= dropout.threshold();
  }
};

TEMPLATE_TEST_CASE("vectors draw the numbers that each element has by its index", "[tile][host]", double, float) {
  using C = TestType;
  bool const along = GENERATE(false, true);
  std::uint64_t const first =
      GENERATE(0u, 3u, 0xfffffffdu);  // aligned, not, and where the lower word of a counter overflows
  std::int64_t const pitch = GENERATE(64, 77);
  CAPTURE(along, first, pitch);
  Dropout const dropout{.probability = 0.3, .seed = 0x123456789abcdef0, .stream = 0xfedcba9876543210};
  Mask const mask{dropout, 4 * first + first % 4, along ? 1 : pitch, along ? pitch : 1};
  Team<Host> team;
  Fragment<Host, C, size, size> x(team);
  map(x, [](int row, int column, C) { return C(row + 100 * column + 1); });
  scale_dropped(x, C(-2), mask);
  int different = 0, dropped = 0;
  x.for_each([&](C& element, auto, int row, int column) {
    C const before = C(row + 100 * column + 1);
    dropped += !mask.keeps(row, column);
    different += element != (mask.keeps(row, column) ? before : -2 * before);
  });
  CHECK(different == 0);
  CHECK(dropped > 0);
}

}  // namespace
