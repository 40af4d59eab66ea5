// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <sys/mman.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "Sporos_Gemm.hpp"
#include "impl/Sporos_Gemm_Host.hpp"
#include "impl/Sporos_HostLevel.hpp"

namespace Sporos {
SPOROS_DECLARE_HOST_KERNELS(Impl::GemmHostKernels, gemm_host_kernels)
}

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::bfloat16;
using Sporos::ComputeType;
using Sporos::Transpose;
using Space = Kokkos::DefaultExecutionSpace;
using Host = Kokkos::DefaultHostExecutionSpace;

template <class T>
double const epsilon = std::is_same_v<T, bfloat16> ? 0x1p-7 : double(std::numeric_limits<ComputeType<T>>::epsilon());

/// A matrix on the host whose rows are `gap` elements further apart than they are long
template <class T>
struct Matrix {
  int rows, columns, stride;
  std::vector<T> data;

  Matrix(int rows, int columns, int gap = 0)
      : rows(rows), columns(columns), stride(columns + gap), data(std::size_t(rows) * (columns + gap), nan()) {}

  static T nan() { return T(std::numeric_limits<ComputeType<T>>::quiet_NaN()); }

  static Matrix random(int rows, int columns, int gap, unsigned seed) {
    Matrix m(rows, columns, gap);
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) m(r, c) = T(ComputeType<T>(uniform(generator)));
    return m;
  }

  T& operator()(int r, int c) { return data[std::size_t(r) * stride + c]; }
  T operator()(int r, int c) const { return data[std::size_t(r) * stride + c]; }

  /// On the device, gaps included
  auto device() const {
    using All = Kokkos::View<T**, Kokkos::LayoutRight, Space>;
    All all("matrix", rows, stride);
    Kokkos::deep_copy(all, Kokkos::View<T const**, Kokkos::LayoutRight, Kokkos::HostSpace>(data.data(), rows, stride));
    return Kokkos::subview(all, Kokkos::ALL, Kokkos::pair(0, columns));
  }
  template <class View>
  void take(View const& view) {
    Kokkos::View<T**, Kokkos::LayoutRight, Space> all(view.data(), rows, stride);
    Kokkos::deep_copy(Kokkos::View<T**, Kokkos::LayoutRight, Kokkos::HostSpace>(data.data(), rows, stride), all);
  }
};

double gelu_reference(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

/// One product and everything that can be fused to it
template <class T, class Output>
struct Problem {
  Transpose transpose_a = Transpose::no, transpose_b = Transpose::no;
  int rows, columns, depth;
  int gap = 0;
  double alpha = 1, beta = 0;
  bool bias = false, gelu = false;

  Matrix<T> a{0, 0}, b{0, 0}, bias_row{0, 0};
  Matrix<Output> d{0, 0}, z{0, 0};

  void fill() {
    a = transpose_a == Transpose::yes ? Matrix<T>::random(depth, rows, gap, 1) : Matrix<T>::random(rows, depth, gap, 1);
    b = transpose_b == Transpose::yes ? Matrix<T>::random(columns, depth, 2 * gap, 2)
                                      : Matrix<T>::random(depth, columns, 2 * gap, 2);
    bias_row = Matrix<T>::random(1, columns, 0, 3);
    d = beta != 0 ? Matrix<Output>::random(rows, columns, gap, 4) : Matrix<Output>(rows, columns, gap);
    z = Matrix<Output>(rows, columns, 3 * gap);
  }

  /// Element (r, c) of Z in the arithmetic of Number
  template <class Number>
  Number value(int r, int c) const {
    auto const number = [](auto x) { return Number(double(x)); };
    Number sum = 0;
    for (int k = 0; k < depth; ++k)
      sum += number(transpose_a == Transpose::yes ? a(k, r) : a(r, k)) *
             number(transpose_b == Transpose::yes ? b(c, k) : b(k, c));
    sum *= number(alpha);
    if (beta != 0) sum += number(beta) * number(d(r, c));
    if (bias) sum += number(bias_row(0, c));
    return sum;
  }

  Sporos::Impl::GemmArguments<T, Output> arguments() {
    Sporos::Impl::GemmArguments<T, Output> g{};
    g.a = a.data.data();
    g.b = b.data.data();
    g.d = d.data.data();
    g.rows = rows;
    g.columns = columns;
    g.depth = depth;
    g.a_stride = a.stride;
    g.b_stride = b.stride;
    g.d_stride = d.stride;
    g.transpose_a = transpose_a;
    g.transpose_b = transpose_b;
    g.alpha = alpha;
    g.beta = beta;
    if (bias) g.bias = bias_row.data.data();
    if (gelu) {
      g.z = z.data.data();
      g.z_stride = z.stride;
    }
    return g;
  }

  /// Runs the public function that does what this problem asks for.
  void run() {
    Space const space;
    auto const a_view = a.device();
    auto const b_view = b.device();
    auto const d_view = d.device();
    auto const z_view = z.device();
    auto const all = bias_row.device();
    auto const row = Kokkos::subview(all, 0, Kokkos::ALL);
    if (gelu)
      Sporos::gemm_bias_gelu(space, a_view, b_view, row, z_view, d_view);
    else if (bias)
      Sporos::gemm_bias(space, a_view, b_view, row, d_view);
    else
      Sporos::gemm(space, transpose_a, transpose_b, alpha, a_view, b_view, beta, d_view);
    space.fence();
    d.take(d_view);
    z.take(z_view);
  }

  /// Checks what `compute` makes of this problem. The tolerance is twice the error of three plain loops in the same
  /// precision, or one rounding of the largest result where they make none.
  template <class Compute>
  void check(Compute const& compute) {
    CAPTURE(rows, columns, depth, gap, alpha, beta, bias, gelu, transpose_a == Transpose::yes,
            transpose_b == Transpose::yes);
    using Exact = std::conditional_t<std::is_same_v<T, double>, long double, double>;
    std::vector<Exact> exact(std::size_t(rows) * columns);
    Exact plain_error = 0, largest = 0;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) {
        Exact const value_exact = value<Exact>(r, c);
        Output const value_plain = Output(value<ComputeType<T>>(r, c));
        exact[std::size_t(r) * columns + c] = value_exact;
        plain_error = std::max(plain_error, std::abs(Exact(double(value_plain)) - value_exact));
        largest = std::max(largest, std::abs(value_exact));
      }
    Exact const tolerance = std::max(2 * plain_error, Exact(epsilon<Output>) * largest);

    compute(*this);
    Matrix<Output> const& sums = gelu ? z : d;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        Exact const expected = exact[std::size_t(r) * columns + c];
        double const found = double(sums(r, c));
        if (!(std::abs(Exact(found) - expected) <= tolerance)) {
          CAPTURE(r, c, found, double(expected), double(tolerance));
          FAIL("a sum is wrong");
        }
        if (!gelu) continue;
        double const activated = gelu_reference(found);
        // exp2 and a division in the arithmetic of ComputeType, and one rounding to Output
        double const bound = (8 * epsilon<ComputeType<T>> + epsilon<Output>)*(1 + std::abs(activated));
        if (!(std::abs(double(d(r, c)) - activated) <= bound)) {
          CAPTURE(r, c, found, double(d(r, c)), activated);
          FAIL("gelu is wrong");
        }
      }
      for (int c = columns; c < d.stride; ++c) REQUIRE(std::isnan(double(d(r, c))));
      for (int c = columns; c < z.stride; ++c) REQUIRE(std::isnan(double(z(r, c))));
    }
  }
};

/// Sizes around those of registers, panels, blocks of the depth and tiles, and the lone element
struct Size {
  int rows, columns, depth;
};
constexpr Size sizes[] = {{1, 1, 1}, {2, 3, 0}, {5, 7, 3}, {6, 16, 8}, {13, 65, 31}, {70, 33, 257}, {259, 270, 301}};

template <class T, class Output, class Compute>
void check_all(Compute const& compute) {
  for (Size const size : sizes)
    for (Transpose transpose_a : {Transpose::no, Transpose::yes})
      for (Transpose transpose_b : {Transpose::no, Transpose::yes})
        for (auto [alpha, beta] : {std::pair{1.0, 0.0}, std::pair{-0.5, 1.5}}) {
          // One of both is enough where a product is large.
          if (size.rows > 200 && (beta != 0) != (transpose_a == transpose_b)) continue;
          Problem<T, Output> problem{transpose_a, transpose_b, size.rows, size.columns, size.depth, size.rows % 4};
          problem.alpha = alpha;
          problem.beta = beta;
          problem.fill();
          problem.check(compute);
        }
  for (Size const size : sizes)
    for (bool gelu : {false, true}) {
      Problem<T, Output> problem{Transpose::no, Transpose::no, size.rows, size.columns, size.depth, size.rows % 4};
      problem.bias = true;
      problem.gelu = gelu;
      problem.fill();
      problem.check(compute);
    }
}

template <class T, class Output>
struct Types {
  using Input = T;
  using Result = Output;
};

TEMPLATE_TEST_CASE("gemm, gemm_bias and gemm_bias_gelu equal plain loops", "[kernels][gemm]", (Types<double, double>),
                   (Types<float, float>), (Types<bfloat16, bfloat16>), (Types<bfloat16, float>)) {
  check_all<typename TestType::Input, typename TestType::Result>([](auto& problem) { problem.run(); });
}

/// What Kokkos does with a host level's kernel, in one thread and with scratch that starts as NaN
template <class T, class Output>
void run_on_level(Sporos::Impl::HostLevel level, int threads, Problem<T, Output>& problem) {
  Sporos::Impl::GemmHostKernel<T, Output> const kernel = Sporos::Impl::gemm_host_kernels(level);
  auto const arguments = problem.arguments();
  auto const tiling = kernel.tiling(arguments, threads);
  auto const poisoned = [](std::size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, bytes), std::free);
    std::fill_n(static_cast<float*>(memory.get()), bytes / 4, std::numeric_limits<float>::quiet_NaN());
    return memory;
  };
  auto const packed = poisoned(tiling.packed_bytes);
  for (std::int64_t item = 0; item < tiling.packs; ++item) kernel.pack(arguments, item, packed.get());
  for (std::int64_t tile = 0; tile < tiling.tiles_down * tiling.tiles_across; ++tile)
    kernel.tile(arguments, tiling, tile, packed.get(), poisoned(tiling.scratch_bytes).get());
}

TEMPLATE_TEST_CASE("Every host level computes the same products, in tiles for any number of threads", "[kernels][gemm]",
                   (Types<double, double>), (Types<float, float>), (Types<bfloat16, bfloat16>),
                   (Types<bfloat16, float>)) {
  for (auto level : Sporos::Impl::supported_host_levels())
    for (int threads : {1, 16}) {
      CAPTURE(name_of(level), threads);
      check_all<typename TestType::Input, typename TestType::Result>(
          [&](auto& problem) { run_on_level(level, threads, problem); });
    }
}

TEST_CASE("A product has the same bits for any number of threads", "[kernels][gemm]") {
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 7, 64}) {
    Problem<float, float> problem{Transpose::yes, Transpose::no, 300, 90, 700, 0};
    problem.fill();
    run_on_level(Sporos::Impl::best_host_level(), threads, problem);
    results.push_back(problem.d.data);
  }
  for (auto const& result : results) REQUIRE(result == results.front());
}

// 3 rows, 2^31 elements apart: only the pages that are touched exist.
TEST_CASE("Offsets beyond 2^32 bytes and 2^32 elements are right", "[kernels][gemm]") {
  std::size_t const stride = std::size_t(1) << 31, bytes = 3 * stride * sizeof(float);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  {
    using Far = Kokkos::View<float**, Kokkos::LayoutStride, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    Far const far_view(static_cast<float*>(memory), Kokkos::LayoutStride(3, stride, 4, 1));
    // Not through the View: Kokkos 5.0 computes the offset of int indices in 32 bits.
    auto const far = [&](int r, int c) -> float& { return far_view.data()[r * stride + c]; };
    Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> near("near", 3, 4), result("result", 3, 3);
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 4; ++c) far(r, c) = near(r, c) = float(10 * r + c);
    Host const host;
    Sporos::gemm(host, Transpose::no, Transpose::yes, 1, far_view, far_view, 0, result);
    host.fence();
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 3; ++c) {
        float expected = 0;
        for (int k = 0; k < 4; ++k) expected += near(r, k) * near(c, k);
        REQUIRE(result(r, c) == expected);
      }
    Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> identity("identity", 4, 4);
    for (int i = 0; i < 4; ++i) identity(i, i) = 2;
    Sporos::gemm(host, Transpose::no, Transpose::no, 1, near, identity, 0, far_view);
    host.fence();
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 4; ++c) REQUIRE(far(r, c) == 2 * near(r, c));
  }
  munmap(memory, bytes);
}

TEST_CASE("A NaN or an infinity in an operand reaches exactly the results that use it", "[kernels][gemm]") {
  for (float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem<bfloat16, bfloat16> problem{Transpose::no, Transpose::no, 40, 50, 30, 1};
    problem.fill();
    problem.a(17, 29) = bfloat16(poison);
    problem.run();
    for (int r = 0; r < 40; ++r)
      for (int c = 0; c < 50; ++c) REQUIRE(std::isfinite(float(problem.d(r, c))) == (r != 17));
  }
}

TEMPLATE_TEST_CASE("column_sums adds the sum of each column", "[kernels][gemm]", double, float, bfloat16) {
  using C = ComputeType<TestType>;
  using Exact = std::conditional_t<std::is_same_v<C, double>, long double, double>;
  Space const space;
  Sporos::Workspace<Space> workspace(space);
  for (auto [rows, columns] : {std::pair{0, 3}, std::pair{1, 1}, std::pair{127, 70}, std::pair{1000, 65}}) {
    CAPTURE(rows, columns);
    auto const x = Matrix<TestType>::random(rows, columns, 3, 5);
    auto const view = x.device();
    Kokkos::View<C*, Space> sums("sums", columns);
    Kokkos::deep_copy(sums, C(10));
    Sporos::column_sums(space, view, sums, workspace);
    auto const found = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), sums);

    std::vector<Exact> exact(columns, 10);
    Exact plain_error = 0;
    for (int c = 0; c < columns; ++c) {
      C plain = 10;
      for (int r = 0; r < rows; ++r) {
        plain += C(x(r, c));
        exact[c] += Exact(double(x(r, c)));
      }
      plain_error = std::max(plain_error, std::abs(Exact(plain) - exact[c]));
    }
    Exact const tolerance = std::max(2 * plain_error, 16 * Exact(std::numeric_limits<C>::epsilon()));
    for (int c = 0; c < columns; ++c) REQUIRE(std::abs(Exact(found(c)) - exact[c]) <= tolerance);
  }
}

TEST_CASE("gemm refuses matrices that do not fit together, and says which", "[kernels][gemm]") {
  using View = Kokkos::View<float**, Kokkos::LayoutRight, Space>;
  Space const space;
  View const a("a", 3, 4), b("b", 4, 5), d("d", 3, 5), z("z", 3, 6);
  Kokkos::View<float*, Space> const bias("bias", 6);
  Kokkos::View<float**, Kokkos::LayoutLeft, Space> const columns_first("columns first", 3, 4);

  REQUIRE_THROWS_WITH(Sporos::gemm(space, Transpose::yes, Transpose::no, 1, a, b, 0, d),
                      ContainsSubstring("A is (3, 4) transposed, B is (4, 5), D is (3, 5)"));
  REQUIRE_THROWS_WITH(Sporos::gemm(space, Transpose::no, Transpose::no, 1, a, b, 0, z),
                      ContainsSubstring("A is (3, 4), B is (4, 5), D is (3, 6)"));
  REQUIRE_THROWS_WITH(Sporos::gemm(space, Transpose::no, Transpose::no, 1, columns_first, b, 0, d),
                      ContainsSubstring("A is (3, 4) with stride 3 in its last dimension"));
  REQUIRE_THROWS_WITH(Sporos::gemm_bias(space, a, b, bias, d), ContainsSubstring("the bias is (6), D is (3, 5)"));
  auto const fitting = Kokkos::subview(bias, Kokkos::pair(0, 5));
  REQUIRE_THROWS_WITH(Sporos::gemm_bias_gelu(space, a, b, fitting, z, d),
                      ContainsSubstring("Z is (3, 6), D is (3, 5)"));
  REQUIRE_THROWS_WITH(Sporos::gemm_bias_gelu(space, a, b, fitting, d, d), ContainsSubstring("the same memory"));
  Sporos::Workspace<Space> workspace(space);
  REQUIRE_THROWS_WITH(Sporos::column_sums(space, a, bias, workspace), ContainsSubstring("x is (3, 4), sums is (6)"));
}

TEST_CASE("Host levels have the names that SPOROS_HOST_LEVEL takes", "[kernels][gemm]") {
  auto const levels = Sporos::Impl::supported_host_levels();
  REQUIRE(name_of(levels.front()) == "baseline");
  REQUIRE(std::find(levels.begin(), levels.end(), Sporos::Impl::best_host_level()) != levels.end());
}

}  // namespace
