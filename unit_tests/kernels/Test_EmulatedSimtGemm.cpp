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
#include <tuple>
#include <vector>

#include "impl/Sporos_Gemm_Tile.hpp"
#include "tile/Sporos_Arch_EmulatedSimt.hpp"

namespace {

using namespace Sporos;
using Emulated = Arch::Emulated<Arch::Simt>;
using SimtTeam = Team<Emulated>;

template <class T, class Output>
void run_emulated(Impl::GemmArguments<T, Output> const& arguments, Emulation::Adversary const& adversary) {
  using Tile = GemmTile<Emulated, T, Output>;
  auto const scratch = std::make_unique<typename Tile::Scratch>();
  for (int row = 0; row < Tile::tiles(arguments.rows, Tile::rows); ++row)
    for (int column = 0; column < Tile::tiles(arguments.columns, Tile::columns); ++column) {
      std::memset(static_cast<void*>(scratch.get()), adversary.scratch_byte, sizeof *scratch);
      Emulation::run_team<SimtTeam>(adversary,
                                    [&](SimtTeam& team) { Tile(team, *scratch).compute(arguments, row, column); });
    }
}

struct GemmCase {
  Transpose a, b;
  double beta = 0;
  bool bias = false, gelu = false;
};

/// 70 x 150, a depth of 37: no multiple of any tile, and more than one of each
template <class T, class Output>
class GemmProblem {
 public:
  static constexpr int rows = 70, columns = 150, depth = 37, gap = 3;
  using C = ComputeType<T>;

  explicit GemmProblem(GemmCase const& c) : m_case(c) {
    a = random<T>((rows + depth + gap) * (rows + depth));
    b = random<T>((columns + depth + gap) * (columns + depth));
    d = random<Output>(rows * (columns + gap));
    if (c.beta == 0) std::fill(d.begin(), d.end(), Output(std::numeric_limits<C>::quiet_NaN()));
    z.assign(rows * (columns + 2 * gap), Output(std::numeric_limits<C>::quiet_NaN()));
    bias = random<T>(columns);
    old = d;
  }

  Impl::GemmArguments<T, Output> arguments() {
    Impl::GemmArguments<T, Output> g{};
    g.a = a.data(), g.b = b.data(), g.d = d.data();
    g.z = m_case.gelu ? z.data() : nullptr;
    g.bias = m_case.bias ? bias.data() : nullptr;
    g.rows = rows, g.columns = columns, g.depth = depth;
    g.a_stride = (m_case.a == Transpose::yes ? rows : depth) + gap;
    g.b_stride = (m_case.b == Transpose::yes ? depth : columns) + gap;
    g.d_stride = columns + gap;
    g.z_stride = columns + 2 * gap;
    g.transpose_a = m_case.a, g.transpose_b = m_case.b;
    g.alpha = 1.5, g.beta = m_case.beta;
    return g;
  }

  /// x as defined by GemmArguments, in the arithmetic of Number; in that of the kernel also rounded to Output
  template <class Number>
  Number x(int r, int c) {
    auto const g = arguments();
    Number sum = 0;
    for (int k = 0; k < depth; ++k)
      sum += Number(C(m_case.a == Transpose::yes ? a[k * g.a_stride + r] : a[r * g.a_stride + k])) *
             Number(C(m_case.b == Transpose::yes ? b[c * g.b_stride + k] : b[k * g.b_stride + c]));
    sum *= Number(g.alpha);
    if (m_case.beta != 0) sum += Number(m_case.beta) * Number(C(old[r * g.d_stride + c]));
    if (m_case.bias) sum += Number(C(bias[c]));
    return std::is_same_v<Number, C> ? Number(C(Output(C(sum)))) : sum;
  }

  template <class Number>
  static Number gelu(Number x) {
    Number const y = x * (1 + std::tanh(std::sqrt(Number(2) / Number(M_PI)) * (x + Number(0.044715) * x * x * x))) / 2;
    return std::is_same_v<Number, C> ? Number(C(Output(C(y)))) : y;
  }

  std::vector<T> a, b, bias;
  std::vector<Output> d, z, old;

 private:
  template <class U>
  std::vector<U> random(int size) {
    std::vector<U> values(size);
    for (U& value : values) value = U(C(m_uniform(m_random)));
    return values;
  }

  GemmCase m_case;
  std::mt19937 m_random{11};
  std::uniform_real_distribution<double> m_uniform{-1, 1};
};

template <class T, class Output>
void require_as_good_as_plain(GemmCase const& shape, Emulation::Adversary const& adversary = {}) {
  using Problem = GemmProblem<T, Output>;
  using C = ComputeType<T>;
  using Exact = std::conditional_t<std::is_same_v<T, double>, long double, double>;
  Problem problem(shape);
  auto const g = problem.arguments();
  run_emulated(g, adversary);
  double error = 0, plain_error = 0, z_error = 0, plain_z_error = 0;
  auto const raise = [](double& largest, Exact difference) {
    if (!(std::abs(double(difference)) <= largest)) largest = std::abs(double(difference));
  };
  for (int r = 0; r < Problem::rows; ++r)
    for (int c = 0; c < Problem::columns; ++c) {
      Exact const exact = problem.template x<Exact>(r, c);
      C const plain = problem.template x<C>(r, c);
      C const d = C(problem.d[r * g.d_stride + c]);
      if (shape.gelu) {
        raise(z_error, C(problem.z[r * g.z_stride + c]) - exact);
        raise(plain_z_error, plain - exact);
        raise(error, d - Problem::gelu(exact));
        raise(plain_error, Problem::gelu(plain) - Problem::gelu(exact));
      } else {
        raise(error, d - exact);
        raise(plain_error, plain - exact);
      }
    }
  REQUIRE(error <= 2 * plain_error);
  REQUIRE(z_error <= 2 * plain_z_error);
  // The gaps between rows are nobody's.
  for (int r = 0; r < Problem::rows; ++r)
    for (int c = Problem::columns; c < g.d_stride; ++c)
      REQUIRE(std::memcmp(&problem.d[r * g.d_stride + c], &problem.old[r * g.d_stride + c], sizeof(Output)) == 0);
}

using Types = std::tuple<std::pair<double, double>, std::pair<float, float>, std::pair<bfloat16, bfloat16>,
                         std::pair<bfloat16, float>>;

TEMPLATE_LIST_TEST_CASE("a product on an emulated GPU is as good as plain", "[gemm][simt]", Types) {
  using T = typename TestType::first_type;
  using Output = typename TestType::second_type;
  auto const a = GENERATE(Transpose::no, Transpose::yes), b = GENERATE(Transpose::no, Transpose::yes);
  for (unsigned seed : {0, 1, 2}) {
    CAPTURE(seed, int(a), int(b));
    require_as_good_as_plain<T, Output>({a, b}, {.seed = seed});
    require_as_good_as_plain<T, Output>({.a = a, .b = b, .beta = 0.5, .bias = true}, {.seed = seed});
    require_as_good_as_plain<T, Output>({.a = a, .b = b, .bias = true, .gelu = true}, {.seed = seed});
  }
}

// Three blocks of depth, two barriers each; the first barrier of all comes before the buffers' first use.
TEST_CASE("every barrier of a product is needed, and the emulator shows it", "[gemm][simt][emulation]") {
  auto const shown = [](int barrier) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      GemmProblem<float, float> problem({Transpose::no, Transpose::no});
      GemmProblem<float, float> sound({Transpose::no, Transpose::no});
      run_emulated(problem.arguments(), {.seed = seed, .forgotten_barrier = barrier});
      run_emulated(sound.arguments(), {});
      if (std::memcmp(problem.d.data(), sound.d.data(), problem.d.size() * sizeof(float)) != 0) return true;
    }
    return false;
  };
  CHECK_FALSE(shown(-1));
  for (int barrier = 1; barrier < 6; ++barrier) {
    CAPTURE(barrier);
    CHECK(shown(barrier));
  }
}

}  // namespace
