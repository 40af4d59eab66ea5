// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Products of the shapes that a small GPT makes, ours and Kokkos Kernels' in turns. Prints one JSON line a figure; append
// them to results/<machine>/gemm.jsonl.
//
//   OPENBLAS_NUM_THREADS=1 sporos_bench_gemm [commit]
//
// On one thread the figure is from processor time, so that another process's time slice does not count.
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "Sporos_Gemm.hpp"
#include "Sporos_Version.hpp"
#include "impl/Sporos_HostLevel.hpp"
#ifdef SPOROS_HAVE_KOKKOSKERNELS
#include <KokkosBlas3_gemm.hpp>
#endif

namespace {

using Sporos::bfloat16;
using Sporos::Transpose;
using Space = Kokkos::DefaultExecutionSpace;

double seconds() {
  if (Space().concurrency() == 1) return double(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of one call, over enough calls to be measurable
template <class F>
double time_of(int calls, F const& f) {
  double const start = seconds();
  for (int i = 0; i < calls; ++i) f();
  return (seconds() - start) / calls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Case {
  Transpose transpose_a, transpose_b;
  int rows, columns, depth;
};

template <class T>
constexpr char const* name_of = "double";
template <>
constexpr char const* name_of<float> = "float";
template <>
constexpr char const* name_of<bfloat16> = "bfloat16";

template <class T, class Output>
void measure(Case const& c, std::string const& commit) {
  bool const a_turned = c.transpose_a == Transpose::yes, b_turned = c.transpose_b == Transpose::yes;
  Kokkos::View<T**, Kokkos::LayoutRight, Space> const a("a", a_turned ? c.depth : c.rows, a_turned ? c.rows : c.depth);
  Kokkos::View<T**, Kokkos::LayoutRight, Space> const b("b", b_turned ? c.columns : c.depth,
                                                        b_turned ? c.depth : c.columns);
  Kokkos::View<Output**, Kokkos::LayoutRight, Space> const d("d", c.rows, c.columns);
  Kokkos::deep_copy(a, T(0.5f));
  Kokkos::deep_copy(b, T(0.25f));

  Space const space;
  auto const ours = [&] {
    Sporos::gemm(space, c.transpose_a, c.transpose_b, 1, a, b, 0, d);
    space.fence();
  };
  auto const peer = [&] {
#ifdef SPOROS_HAVE_KOKKOSKERNELS
    if constexpr (!std::is_same_v<T, bfloat16>) {
      KokkosBlas::gemm(space, a_turned ? "T" : "N", b_turned ? "T" : "N", T(1), a, b, T(0), d);
      space.fence();
    }
#endif
  };
#ifdef SPOROS_HAVE_KOKKOSKERNELS
  bool const has_peer = !std::is_same_v<T, bfloat16>;
#else
  bool const has_peer = false;
#endif

  double const work = 2.0 * c.rows * c.columns * c.depth;
  int const calls = std::max(1, int(2e9 / work));
  time_of(calls, ours);
  time_of(calls, peer);
  std::vector<double> times_ours, times_peer;
  for (int round = 0; round < 9; ++round) {
    times_ours.push_back(time_of(calls, ours));
    times_peer.push_back(time_of(calls, peer));
  }
  double const rate_ours = work / median(times_ours) / 1e9, rate_peer = work / median(times_peer) / 1e9;

  std::time_t const now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", std::localtime(&now));
  std::printf(
      "{\"program\": \"gemm\", \"case\": {\"type\": \"%s\", \"result\": \"%s\", \"op\": \"%c%c\", \"rows\": %d, "
      "\"columns\": %d, \"depth\": %d, \"space\": \"%s\", \"threads\": %d, \"level\": \"%s\"}, \"metric\": "
      "\"throughput\", \"unit\": \"GFLOP/s\", \"ours\": %.1f, \"peers\": {",
      name_of<T>, name_of<Output>, a_turned ? 'T' : 'N', b_turned ? 'T' : 'N', c.rows, c.columns, c.depth,
      Space::name(), Space().concurrency(), Sporos::Impl::name_of(Sporos::Impl::best_host_level()).c_str(), rate_ours);
  if (has_peer) std::printf("\"Kokkos Kernels\": %.1f", rate_peer);
  std::printf("}, \"limit\": {}, \"ratio\": ");
  if (has_peer)
    std::printf("%.3f", rate_ours / rate_peer);
  else
    std::printf("null");
  std::printf(
      ", \"date\": \"%s\", \"versions\": {\"Sporos\": \"%s\", \"Kokkos\": \"%d.%d.%d\"}, \"command\": "
      "\"sporos_bench_gemm\", \"commit\": \"%s\"}\n",
      date, SPOROS_VERSION_STRING, KOKKOS_VERSION / 10000, KOKKOS_VERSION / 100 % 100, KOKKOS_VERSION % 100,
      commit.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Kokkos::ScopeGuard const kokkos(argc, argv);
  std::string const commit = argc > 1 ? argv[1] : "unknown";
  auto const no = Transpose::no, yes = Transpose::yes;

  // A layer forward, its gradient by the input, its gradient by the weights, in tokens x input x output
  std::vector<Case> cases;
  for (auto [input, output] : {std::pair{128, 384}, std::pair{128, 512}, std::pair{512, 128}, std::pair{256, 256},
                               std::pair{256, 768}, std::pair{256, 1024}, std::pair{1024, 256}, std::pair{768, 3072}}) {
    cases.push_back({no, no, 2048, output, input});
    cases.push_back({no, yes, 2048, input, output});
    cases.push_back({yes, no, input, output, 2048});
  }
  cases.push_back({no, no, 1024, 1024, 1024});
  for (Case const& c : cases) measure<float, float>(c, commit);
  for (Case const& c : cases) measure<bfloat16, bfloat16>(c, commit);
  measure<double, double>(cases.back(), commit);
}
