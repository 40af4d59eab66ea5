// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_SIMD_HPP
#define SPOROS_SIMD_HPP

#include <cstdint>
#include <utility>

#include "Sporos_Macros.hpp"
#include "Sporos_StorageTypes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/// For lambdas: a call would put the vectors that they hold into memory.
#define SPOROS_INLINE_LAMBDA __attribute__((always_inline))

// Vectors of one instruction-set level, over the vector extension that g++ and clang share. Arithmetic, comparison and
// selection (mask ? a : b) are written with operators; the functions below are what operators do not give.
namespace Sporos::inline SPOROS_LEVEL {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

// A test may want the packed paths on a processor without the instruction.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(SPOROS_EMULATE_BFLOAT16_DOT)
inline constexpr bool has_bfloat16_dot = true;
#else
inline constexpr bool has_bfloat16_dot = false;
#endif

namespace HostImpl {
template <class T, int Bytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(Bytes)));
};
}  // namespace HostImpl

/// A register full of T
template <class T>
using Vector = typename HostImpl::VectorOf<T, vector_bytes>::Type;

template <class T>
inline constexpr int lanes = vector_bytes / int(sizeof(T));

/// The unsigned integer as wide as T
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// A number that is a type: std::integral_constant converts by a function of std, which an unoptimised build would emit.
template <int I>
struct Index {
  SPOROS_FUNCTION constexpr operator int() const { return I; }
};

/// f(Index<0>()), f(Index<1>()) ... f(Index<N - 1>()): a loop whose index is constant, so that arrays indexed by it stay in
/// registers
template <int N, class F>
SPOROS_FUNCTION void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      SPOROS_INLINE_LAMBDA { (f(Index<I>{}), ...); }(std::make_integer_sequence<int, N>{});
}

// ---- Registers

template <class To, class From>
SPOROS_FUNCTION To bits_as(From const& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

/// x - 0 folds to a plain broadcast; x + 0 would stay an addition, because it turns -0 into 0.
template <class T>
SPOROS_FUNCTION Vector<T> splat(T x) {
  return x - Vector<T>{};
}

/// (0, 1, 2 ...)
template <class T>
SPOROS_FUNCTION Vector<T> lane_index() {
  Vector<T> v{};
  for (int i = 0; i < lanes<T>; ++i) v[i] = T(i);
  return v;
}

/// a · b + c, rounded once where the level can
SPOROS_FUNCTION Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
SPOROS_FUNCTION Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

/// The larger; b where either is NaN (on x86 this is one instruction)
SPOROS_FUNCTION Vector<float> max(Vector<float> a, Vector<float> b) { return a > b ? a : b; }
SPOROS_FUNCTION Vector<double> max(Vector<double> a, Vector<double> b) { return a > b ? a : b; }

/// The smaller; b where either is NaN
SPOROS_FUNCTION Vector<float> min(Vector<float> a, Vector<float> b) { return a < b ? a : b; }
SPOROS_FUNCTION Vector<double> min(Vector<double> a, Vector<double> b) { return a < b ? a : b; }

template <class T, class V>
SPOROS_FUNCTION T sum_of_lanes(V v) {
  T sum = v[0];
  for (int i = 1; i < lanes<T>; ++i) sum += v[i];
  return sum;
}

// ---- Memory

/// lanes<T> values of T from anywhere
template <class T>
SPOROS_FUNCTION Vector<T> load(T const* from) {
  Vector<T> v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
template <class T>
SPOROS_FUNCTION void store(T* to, Vector<T> v) {
  __builtin_memcpy(to, &v, sizeof v);
}

/// ... from an address that is a multiple of vector_bytes: scratch. Without AVX an operand in memory has to be aligned.
template <class T>
SPOROS_FUNCTION Vector<T> load_aligned(T const* from) {
  Vector<T> v;
  __builtin_memcpy(&v, __builtin_assume_aligned(from, vector_bytes), sizeof v);
  return v;
}
template <class T>
SPOROS_FUNCTION void store_aligned(T* to, Vector<T> v) {
  __builtin_memcpy(__builtin_assume_aligned(to, vector_bytes), &v, sizeof v);
}

using HalfVector = HostImpl::VectorOf<std::uint16_t, vector_bytes / 2>::Type;  ///< as many as lanes<float>

/// lanes<float> 16-bit words, each in 32 bits
SPOROS_FUNCTION Vector<std::uint32_t> load_words(bfloat16 const* from) {
  HalfVector half;
  __builtin_memcpy(&half, from, sizeof half);
  return __builtin_convertvector(half, Vector<std::uint32_t>);
}

/// x rounded to bfloat16 (nearest, ties to even), in the upper half of each lane; the lower half is not cleared. The same
/// bits as bfloat16(x): vcvtneps2bf16 is not used, for it flushes subnormal numbers to zero.
SPOROS_FUNCTION Vector<std::uint32_t> round_to_bfloat16(Vector<float> x) {
  auto const u = bits_as<Vector<std::uint32_t>>(x);
  auto const rounded = u + 0x7fffu + ((u >> 16) & 1u);
  // Rounding would carry a NaN's payload into its sign.
  return x != x ? (u & 0x80000000u) | 0x7fc00000u : rounded;
}

namespace HostImpl {

// float16 where no instruction converts it, with the exponents shifted by a multiplication: it is exact, also for the
// subnormal numbers, and shows infinities and NaN by their size.

SPOROS_FUNCTION Vector<float> widen_float16(Vector<std::uint32_t> half) {
  Vector<std::uint32_t> const magnitude = half & 0x7fffu;
  Vector<float> const finite = bits_as<Vector<float>>(magnitude << 13) * 0x1p112f;
  Vector<std::uint32_t> const special = magnitude << 13 | 0x7f800000u;
  auto const bits = magnitude >= 0x7c00u ? special : bits_as<Vector<std::uint32_t>>(finite);
  return bits_as<Vector<float>>(bits | (half & 0x8000u) << 16);
}

SPOROS_FUNCTION Vector<std::uint32_t> round_to_float16(Vector<float> x) {
  auto const all = bits_as<Vector<std::uint32_t>>(x);
  Vector<std::uint32_t> const magnitude = all & 0x7fffffffu;
  Vector<std::uint32_t> const normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  // The sum's last bit weighs 2^-24, as that of a subnormal result does: the addition rounds.
  auto const subnormal = bits_as<Vector<std::uint32_t>>(bits_as<Vector<float>>(magnitude) + 0.5f) - 0x3f000000u;
  Vector<std::uint32_t> bits = magnitude < (113u << 23) ? subnormal : normal;
  bits = magnitude >= 0x477ff000u ? Vector<std::uint32_t>{} + 0x7c00u : bits;
  bits = magnitude > 0x7f800000u ? Vector<std::uint32_t>{} + 0x7e00u : bits;
  return bits | (all >> 16 & 0x8000u);
}

}  // namespace HostImpl

/// Values of type C (float, double) from storage of type T: what kernels compute with
template <class C>
SPOROS_FUNCTION Vector<C> load_as(C const* from) {
  return load(from);
}
template <class C>
SPOROS_FUNCTION Vector<C> load_as(bfloat16 const* from) {
  static_assert(sizeof(C) == 4);
  return bits_as<Vector<float>>(load_words(from) << 16);
}

template <class C>
SPOROS_FUNCTION Vector<C> load_as(float16 const* from) {
  static_assert(sizeof(C) == 4);
  HalfVector half;
  __builtin_memcpy(&half, from, sizeof half);
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(bits_as<__m256i>(half));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(bits_as<__m128i>(half));
#elif defined(__aarch64__)
  return vcvt_f32_f16(bits_as<float16x4_t>(half));
#else
  return HostImpl::widen_float16(__builtin_convertvector(half, Vector<std::uint32_t>));
#endif
}

/// ... and back, rounded to nearest even
SPOROS_FUNCTION void store_as(float16* to, Vector<float> v) {
#if defined(__AVX512F__)
  __m256i const half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  __m128i const half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  float16x4_t const half = vcvt_f16_f32(v);
#else
  HalfVector const half = __builtin_convertvector(HostImpl::round_to_float16(v), HalfVector);
#endif
  __builtin_memcpy(to, &half, sizeof half);
}
SPOROS_FUNCTION void store_as(float* to, Vector<float> v) { store(to, v); }
SPOROS_FUNCTION void store_as(double* to, Vector<double> v) { store(to, v); }
SPOROS_FUNCTION void store_as(bfloat16* to, Vector<float> v) {
  HalfVector const half = __builtin_convertvector(round_to_bfloat16(v) >> 16, HalfVector);
  __builtin_memcpy(to, &half, sizeof half);
}

/// The first `count` < lanes<C> values, zero behind them: nothing beyond them is touched.
template <class C, class T>
SPOROS_FUNCTION Vector<C> load_first(T const* from, int count) {
  T values[lanes<C>] = {};
  for (int i = 0; i < count; ++i) values[i] = from[i];
  return load_as<C>(values);
}
template <class T, class V>
SPOROS_FUNCTION void store_first(T* to, V v, int count) {
  T values[sizeof(V) / sizeof(v[0])];
  store_as(values, v);
  for (int i = 0; i < count; ++i) to[i] = values[i];
}

// ---- Shuffles

namespace HostImpl {
template <class V, int... I>
SPOROS_FUNCTION V interleave_low(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int n = sizeof...(I);
  return __builtin_shufflevector(a, b, (I % 2 ? n + I / 2 : I / 2)...);
}
template <class V, int... I>
SPOROS_FUNCTION V interleave_high(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int n = sizeof...(I);
  return __builtin_shufflevector(a, b, (I % 2 ? n + n / 2 + I / 2 : n / 2 + I / 2)...);
}
}  // namespace HostImpl

/// Turns lanes<T> vectors, the rows of a square, into its columns: log2(lanes) perfect shuffles of all rows.
template <class T>
SPOROS_FUNCTION void transpose(Vector<T> (&rows)[lanes<T>]) {
  constexpr int n = lanes<T>;
  using Sequence = std::make_integer_sequence<int, n>;
  unroll<n == 2   ? 1
         : n == 4 ? 2
         : n == 8 ? 3
                  : 4>([&](auto) SPOROS_INLINE_LAMBDA {
    Vector<T> shuffled[n];
    unroll<n / 2>([&](auto i) SPOROS_INLINE_LAMBDA {
      shuffled[2 * i] = HostImpl::interleave_low(rows[i], rows[i + n / 2], Sequence{});
      shuffled[2 * i + 1] = HostImpl::interleave_high(rows[i], rows[i + n / 2], Sequence{});
    });
    unroll<n>([&](auto i) SPOROS_INLINE_LAMBDA { rows[i] = shuffled[i]; });
  });
}

// ---- Functions

namespace HostImpl {

/// Minimax polynomials of 2^f on [-1/2, 1/2]; relative error 2.6e-6, 7.5e-8, 1.9e-9 for degree 4, 5, 6
template <int Degree>
SPOROS_FUNCTION Vector<float> exp2_polynomial(Vector<float> f) {
  static_assert(Degree == 4 || Degree == 5 || Degree == 6);
  constexpr float coefficients[3][7] = {
      {0.999999261f, 0.693121815f, 0.240247448f, 0.0559178603f, 0.00957010191f, 0, 0},
      {1.00000007f, 0.693146967f, 0.240221197f, 0.0555071327f, 0.00967554133f, 0.0013276472f, 0},
      {1.0f, 0.693147206f, 0.240226469f, 0.0555032878f, 0.00961848896f, 0.00133999312f, 0.00015345812f}};
  Vector<float> sum = splat(coefficients[Degree - 4][Degree]);
  unroll<Degree>([&](auto i) SPOROS_INLINE_LAMBDA {
    sum = multiply_add(sum, f, splat(coefficients[Degree - 4][Degree - 1 - i]));
  });
  return sum;
}

}  // namespace HostImpl

/// 2^x: 0 below -127, -infinity included; infinity from 127.5 on; a NaN stays one. Degree 6 has 0.9 ulp; a result that is
/// rounded to bfloat16 needs 4 only.
template <int Degree = 6>
SPOROS_FUNCTION Vector<float> exp2(Vector<float> x) {
  constexpr float shift = 0x1.8p23f + 127.0f;      // x + shift has round(x) + 127 in its lowest bits
  x = min(splat(128.0f), max(splat(-127.0f), x));  // x second: a NaN passes
  Vector<float> const shifted = x + shift;
  Vector<float> const power = bits_as<Vector<float>>(bits_as<Vector<std::uint32_t>>(shifted) << 23);
  return HostImpl::exp2_polynomial<Degree>(x - (shifted - shift)) * power;
}

/// 2^x in double: 0 below -1023, infinity from 1023.5 on; 1.5 ulp. The polynomial is Taylor's, of degree 13: what it drops
/// is (ln 2 / 2)^14 / 14! = 4e-18.
SPOROS_FUNCTION Vector<double> exp2(Vector<double> x) {
  constexpr double shift = 0x1.8p52 + 1023.0;
  constexpr double ln_2 = 0.693147180559945309417;
  x = min(splat(1024.0), max(splat(-1023.0), x));
  Vector<double> const shifted = x + shift;
  Vector<double> const power = bits_as<Vector<double>>(bits_as<Vector<std::uint64_t>>(shifted) << 52);
  Vector<double> const f = (x - (shifted - shift)) * ln_2;
  Vector<double> sum = splat(1.0 / 6227020800.0);  // 1 / 13!
  unroll<13>([&](auto i) SPOROS_INLINE_LAMBDA {
    constexpr double inverse_factorial[13] = {1.0 / 479001600.0,
                                              1.0 / 39916800.0,
                                              1.0 / 3628800.0,
                                              1.0 / 362880.0,
                                              1.0 / 40320.0,
                                              1.0 / 5040.0,
                                              1.0 / 720.0,
                                              1.0 / 120.0,
                                              1.0 / 24.0,
                                              1.0 / 6.0,
                                              0.5,
                                              1.0,
                                              1.0};
    sum = multiply_add(sum, f, splat(inverse_factorial[int(i)]));
  });
  return sum * power;
}

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
