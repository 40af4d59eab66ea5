// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "Sporos_GradientReducer.hpp"
#include "Sporos_Random.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::Communicator;
using Space = Kokkos::DefaultExecutionSpace;
template <class C>
using Reducer = Sporos::GradientReducer<Space, C>;
template <class C>
using Gradients = typename Reducer<C>::Gradients;

/// Gradient i of a rank: of many magnitudes, so that its sums depend on their order
template <class C>
C gradient(int rank, std::int64_t i) {
  Sporos::RandomStream const random(99, std::uint64_t(rank));
  return C(std::ldexp(random.uniform(std::uint64_t(2 * i)) - 0.5, int(random.bits(std::uint64_t(2 * i + 1)) % 20)));
}

template <class C>
struct FillRange {
  Gradients<C> m_gradients, m_values;
  std::int64_t m_first;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { m_gradients(m_first + i) = m_values(m_first + i); }
};

/// A backward pass: fills the buffer from its end by kernels and reports each range, as a model would.
template <class C>
void run_backward(Space const& space, Reducer<C>& reducer, Gradients<C> const& gradients, Gradients<C> const& values,
                  std::int64_t range, int delay_seed) {
  int const rank = Communicator::world().rank();
  Sporos::RandomStream const random(7, std::uint64_t(delay_seed));
  for (std::int64_t last = reducer.size(); last > 0; last -= range) {
    std::int64_t const first = std::max<std::int64_t>(0, last - range);
    Kokkos::parallel_for("test::fill",
                         Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, last - first),
                         FillRange<C>{gradients, values, first});
    // The ranks arrive in another order each time.
    if (delay_seed > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random.bits(std::uint64_t(last * 64 + rank)) % 300));
    reducer.ready(first, last);
  }
}

template <class C>
Gradients<C> values_of(int rank, std::int64_t size) {
  Gradients<C> values("values", std::size_t(size));
  auto const host = Kokkos::create_mirror_view(values);
  for (std::int64_t i = 0; i < size; ++i) host(i) = gradient<C>(rank, i);
  Kokkos::deep_copy(values, host);
  return values;
}

template <class View>
auto to_host(View const& view) {
  auto const mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return std::vector<typename View::non_const_value_type>(mirror.data(), mirror.data() + mirror.extent(0));
}

/// Same bits on all ranks
template <class C>
bool same_everywhere(std::vector<C> const& values) {
  std::uint64_t hash = 14695981039346656037u;
  for (C const value : values) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(C));
    hash = (hash ^ bits) * 1099511628211u;
  }
  return Communicator::world().all_equal(hash);
}

TEMPLATE_TEST_CASE("The buffer becomes the sum over ranks, with the same bits on each and every time",
                   "[io][mpi][reducer]", float, double) {
  using C = TestType;
  Communicator const world = Communicator::world();
  Space const space;
  struct Case {
    std::int64_t size;
    std::size_t bucket_bytes;
    std::int64_t range;
  };
  for (Case const& c : {Case{1, 1 << 20, 1}, Case{10007, 4096, 777}, Case{10007, 1 << 20, 10007}, Case{65, 1, 2},
                        Case{50000, 65536, 1}, Case{300000, 1 << 17, 9999}, Case{0, 1024, 1}}) {
    std::int64_t const range = c.size == 50000 ? 500 : c.range;
    CAPTURE(c.size, c.bucket_bytes, range);
    Gradients<C> const values = values_of<C>(world.rank(), c.size);
    Gradients<C> const buffer("buffer", std::size_t(c.size));
    Reducer<C> reducer(world, space, buffer, c.bucket_bytes);

    std::vector<C> first;
    for (int run = 0; run < 3; ++run) {
      Kokkos::deep_copy(buffer, std::numeric_limits<C>::quiet_NaN());
      reducer.begin();
      run_backward<C>(space, reducer, buffer, values, range, c.size / range < 200 ? run : 0);
      reducer.finish();
      std::vector<C> const sums = to_host(buffer);
      REQUIRE(same_everywhere(sums));
      if (run == 0)
        first = sums;
      else
        REQUIRE((first.empty() || std::memcmp(first.data(), sums.data(), sums.size() * sizeof(C)) == 0));
    }

    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < c.size; ++i) {
      double sum = 0, magnitude = 0;
      for (int r = 0; r < world.size(); ++r) {
        sum += double(gradient<C>(r, i));
        magnitude += std::abs(double(gradient<C>(r, i)));
      }
      // Any order of n - 1 additions is within (n - 1) u of the sum of magnitudes, and of the double sum itself.
      double const bound = world.size() * double(std::numeric_limits<C>::epsilon()) * magnitude;
      if (!(std::abs(double(first[std::size_t(i)]) - sum) <= bound)) ++wrong;
    }
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("A bucket is on its way before finish is called", "[io][mpi][reducer]") {
  Communicator const world = Communicator::world();
  Space const space;
  std::int64_t const size = 4096;
  Gradients<float> const buffer("buffer", std::size_t(size));
  Kokkos::deep_copy(buffer, 1.0f);
  Reducer<float> reducer(world, space, buffer, 1024 * sizeof(float));
  reducer.begin();
  reducer.ready(3000, 4096);

  // Of four buckets the last is complete: it alone is summed while the backward pass goes on.
  bool arrived = false;
  for (int attempt = 0; attempt < 1000000 && !arrived; ++attempt) {
    reducer.ready(0, 0);
    arrived = to_host(Kokkos::subview(buffer, std::pair(4095, 4096)))[0] == float(world.size());
  }
  world.barrier();
  REQUIRE(world.all_agree(arrived));
  if (world.size() > 1) REQUIRE(to_host(Kokkos::subview(buffer, std::pair(3071, 3072)))[0] == 1.0f);
  reducer.finish();
  REQUIRE(to_host(buffer) == std::vector<float>(std::size_t(size), float(world.size())));
}

TEST_CASE("What is never reported is summed by finish", "[io][mpi][reducer]") {
  Communicator const world = Communicator::world();
  Gradients<double> const buffer("buffer", 1000);
  Reducer<double> reducer(world, Space(), buffer, 800);
  for (auto const& [first, last] : {std::pair(0, 0), std::pair(900, 1000), std::pair(0, 100), std::pair(450, 460)}) {
    Kokkos::deep_copy(buffer, world.rank() + 1.0);
    reducer.begin();
    reducer.ready(first, last);
    reducer.finish();
    REQUIRE(to_host(buffer) == std::vector<double>(1000, world.size() * (world.size() + 1) / 2.0));
  }
}

TEST_CASE("Ranges out of place are refused", "[io][mpi][reducer]") {
  Communicator const world = Communicator::world();
  Gradients<float> const buffer("buffer", 1000);
  Reducer<float> reducer(world, Space(), buffer, 400);
  REQUIRE_THROWS_WITH(reducer.ready(0, 10), ContainsSubstring("begin() has not been called"));
  REQUIRE_THROWS_WITH(reducer.finish(), ContainsSubstring("begin() has not been called"));
  reducer.begin();
  REQUIRE_THROWS_WITH(reducer.ready(-1, 10), ContainsSubstring("[-1, 10) of a buffer of 1000"));
  REQUIRE_THROWS_WITH(reducer.ready(990, 1001), ContainsSubstring("[990, 1001) of a buffer of 1000"));
  REQUIRE_THROWS_WITH(reducer.ready(10, 9), ContainsSubstring("[10, 9)"));
  reducer.ready(850, 1000);
  REQUIRE_THROWS_WITH(reducer.ready(900, 1000), ContainsSubstring("reported before"));
  reducer.finish();
}

TEST_CASE("Whether MPI takes device memory can be said from outside", "[io][mpi][reducer]") {
  REQUIRE(::setenv("SPOROS_GPU_AWARE_MPI", "1", 1) == 0);
  REQUIRE(Sporos::mpi_reduces_on_device());
  REQUIRE(::setenv("SPOROS_GPU_AWARE_MPI", "0", 1) == 0);
  REQUIRE_FALSE(Sporos::mpi_reduces_on_device());
  REQUIRE(::setenv("SPOROS_GPU_AWARE_MPI", "yes", 1) == 0);
  REQUIRE_THROWS_WITH(Sporos::mpi_reduces_on_device(), ContainsSubstring("\"yes\"; it must be 0 or 1"));
  REQUIRE(::unsetenv("SPOROS_GPU_AWARE_MPI") == 0);
}

}  // namespace
