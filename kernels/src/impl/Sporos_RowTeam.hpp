// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ROWTEAM_HPP
#define SPOROS_ROWTEAM_HPP

#include <bit>
#include <cstdint>

#include "Sporos_Macros.hpp"
#include "Sporos_Random.hpp"
#include "Sporos_StorageTypes.hpp"

// What the kernels that work on rows are written with: loops over columns for whoever works on one row, and the few
// functions of arithmetic that a compiler can turn into vectors. No Kokkos in here: the host compiles these kernels once
// per instruction set.
namespace Sporos::Impl::inline SPOROS_LEVEL {

#if defined(__clang__)
#define SPOROS_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__) && !defined(__CUDA_ARCH__)
#define SPOROS_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#else
#define SPOROS_INDEPENDENT_ITERATIONS
#endif

/// A team of one thread, for hosts. Sums run in 16 lanes, so that they become vectors and yet have one fixed order.
class HostTeam {
 public:
  static constexpr int lanes = 16;

  /// f(i) for every i below n. No f may touch what another one writes.
  template <class F>
  SPOROS_FUNCTION void for_each(std::int64_t n, F const& f) const {
    SPOROS_INDEPENDENT_ITERATIONS
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }

  /// f(i, random bits of element first + i): four elements share one call of the generator
  template <class F>
  SPOROS_FUNCTION void for_each_with_bits(std::int64_t n, RandomStream const& random, std::uint64_t first,
                                          F const& f) const {
    constexpr int blocks = 64;
    for (std::int64_t begin = 0; begin < n;) {
      std::uint64_t const first_block = (first + std::uint64_t(begin)) / 4;
      int const skipped = int((first + std::uint64_t(begin)) % 4);
      std::uint32_t bits[4 * blocks];
      random.blocks<blocks>(first_block, bits);
      std::int64_t const left = n - begin;
      std::int64_t const count = left < 4 * blocks - skipped ? left : 4 * blocks - skipped;
      SPOROS_INDEPENDENT_ITERATIONS
      for (std::int64_t i = 0; i < count; ++i) f(begin + i, bits[skipped + i]);
      begin += count;
    }
  }

  /// The sum of f(i) over every i below n, for every member of the team
  template <class Value, class F>
  SPOROS_FUNCTION Value sum(std::int64_t n, F const& f) const {
    Value partial[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (int lane = 0; lane < lanes; ++lane) partial[lane] += f(i + lane);
    for (; i < n; ++i) partial[i % lanes] += f(i);
    for (int width = lanes / 2; width > 0; width /= 2)
      for (int lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
    return partial[0];
  }

  /// The largest of f(i) and `lowest`; a NaN among them is passed over
  template <class Value, class F>
  SPOROS_FUNCTION Value max(std::int64_t n, Value lowest, F const& f) const {
    Value partial[lanes];
    for (int lane = 0; lane < lanes; ++lane) partial[lane] = lowest;
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (int lane = 0; lane < lanes; ++lane) {
        Value const value = f(i + lane);
        partial[lane] = value > partial[lane] ? value : partial[lane];
      }
    for (; i < n; ++i) {
      Value const value = f(i);
      partial[0] = value > partial[0] ? value : partial[0];
    }
    for (int lane = 1; lane < lanes; ++lane) partial[0] = partial[lane] > partial[0] ? partial[lane] : partial[0];
    return partial[0];
  }

  /// f() by one member
  template <class F>
  SPOROS_FUNCTION void once(F const& f) const {
    f();
  }

  /// Raises *address, which many teams may do at once, to value. Neither is negative.
  SPOROS_FUNCTION static void atomic_max(float* address, float value) {
    float old;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange(address, &old, &value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }

  /// What a member has written before, the others see after.
  SPOROS_FUNCTION void barrier() const {}
};

#if defined(__CUDACC__) || defined(__HIPCC__)
SPOROS_FUNCTION float square_root(float x) { return ::sqrtf(x); }
SPOROS_FUNCTION double square_root(double x) { return ::sqrt(x); }
SPOROS_FUNCTION float logarithm(float x) { return ::logf(x); }
SPOROS_FUNCTION double logarithm(double x) { return ::log(x); }
SPOROS_FUNCTION double exponential(double x) { return ::exp(x); }
#else
SPOROS_FUNCTION float square_root(float x) { return __builtin_sqrtf(x); }
SPOROS_FUNCTION double square_root(double x) { return __builtin_sqrt(x); }
SPOROS_FUNCTION float logarithm(float x) { return __builtin_logf(x); }
SPOROS_FUNCTION double logarithm(double x) { return __builtin_log(x); }
SPOROS_FUNCTION double exponential(double x) { return __builtin_exp(x); }
#endif

/// e^x for x of at most 1, as softmax needs it. Plain arithmetic, so that loops turn into vectors: 1.2e-7 relative error,
/// 0 below -87 where the result would be subnormal, NaN for NaN.
SPOROS_FUNCTION float exponential(float x) {
  float const bounded = x < -87.0f ? -87.0f : x;
  float const shifted = bounded * 1.44269504f + 0x1.8p23f;  // its low bits hold round(x / log 2)
  float const multiple = shifted - 0x1.8p23f;
  float const rest = bounded - multiple * 0x1.62ep-1f - multiple * 0x1.0bfbe8p-15f;  // the first product is exact
  float series = 1.0f / 5040;  // Taylor: |rest| <= log(2)/2, so the first term left out is below 6e-9
  series = series * rest + 1.0f / 720;
  series = series * rest + 1.0f / 120;
  series = series * rest + 1.0f / 24;
  series = series * rest + 1.0f / 6;
  series = series * rest + 0.5f;
  series = series * rest + 1.0f;
  series = series * rest + 1.0f;
  float const result =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(series) + (std::bit_cast<std::uint32_t>(shifted) << 23));
  // Adding to the exponent field turns some NaN into numbers, among them the one that GPUs make.
  return x < -87.0f ? 0.0f : x == x ? result : x;
}

/// x in storage type T, rounded to nearest
template <class T, class Value>
SPOROS_FUNCTION T store_as(Value x) {
  if constexpr (is_storage_float<T>)
    return convert<T>(float(x));
  else
    return T(x);
}

}  // namespace Sporos::Impl::inline SPOROS_LEVEL

#endif
