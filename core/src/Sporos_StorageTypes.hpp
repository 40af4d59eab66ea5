// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_STORAGETYPES_HPP
#define SPOROS_STORAGETYPES_HPP

#include <bit>
#include <cstdint>
#include <type_traits>

#include "Sporos_Macros.hpp"

namespace Sporos {

/// What a conversion does with a finite value beyond the largest finite one of the target, and with an infinity
enum class Overflow {
  propagate,  ///< ±infinity, or NaN in a format without infinities
  saturate  ///< ± the largest finite value. An infinity too in the OCP formats; NaN in the fnuz formats (as ONNX's Cast)
};

namespace Impl {

/// A binary floating-point format of at most 16 bits, as its definition states it.
template <int ExponentBits, int MantissaBits, int Bias, bool HasInfinity, bool Fnuz>
struct FloatFormat {
  static constexpr int exponent_bits = ExponentBits;
  static constexpr int mantissa_bits = MantissaBits;
  static constexpr int bias = Bias;
  static constexpr bool has_infinity = HasInfinity;
  static constexpr bool fnuz = Fnuz;  ///< finite, NaN is the code of -0, no negative zero

  using Bits = std::conditional_t<(1 + ExponentBits + MantissaBits > 8), std::uint16_t, std::uint8_t>;

  static constexpr std::uint32_t sign = 1u << (ExponentBits + MantissaBits);
  static constexpr std::uint32_t infinity = ((1u << ExponentBits) - 1) << MantissaBits;  // only if has_infinity
  static constexpr std::uint32_t nan = fnuz ? sign : has_infinity ? infinity | 1u << (MantissaBits - 1) : sign - 1;
  /// The code below infinity; below NaN where only the code of all ones is one; every code where NaN is that of -0
  static constexpr std::uint32_t largest = fnuz ? sign - 1 : has_infinity ? infinity - 1 : sign - 2;
};

using BFloat16Format = FloatFormat<8, 7, 127, true, false>;
using Float16Format = FloatFormat<5, 10, 15, true, false>;
using Float8E4M3Format = FloatFormat<4, 3, 7, false, false>;
using Float8E5M2Format = FloatFormat<5, 2, 15, true, false>;
using Float8E4M3FnuzFormat = FloatFormat<4, 3, 8, false, true>;
using Float8E5M2FnuzFormat = FloatFormat<5, 2, 16, false, true>;

/// Half an ulp of the target, less one if the part that is kept is even: to nearest, ties to even
struct ToNearestEven {
  template <class Significand>
  SPOROS_FUNCTION constexpr Significand operator()(Significand significand, int dropped) const {
    return (Significand(1) << (dropped - 1)) - 1 + (significand >> dropped & 1);
  }
};

/// A uniform random number of `dropped` bits: up with the probability of the part that is dropped, exact to 2^-32
struct Stochastically {
  std::uint32_t random;

  template <class Significand>
  SPOROS_FUNCTION constexpr Significand operator()(Significand, int dropped) const {
    return dropped <= 32 ? Significand(random >> (32 - dropped)) : Significand(std::uint64_t(random) << (dropped - 32));
  }
};

/// Adds what `rounding` says to the part of x that is below the last kept bit, and truncates.
template <class Format, class Rounding>
SPOROS_FUNCTION constexpr typename Format::Bits encode(float x, Overflow overflow, Rounding const& rounding) {
  using Bits = typename Format::Bits;
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(x);
  std::uint32_t const magnitude = bits & 0x7fffffffu;
  std::uint32_t const sign = bits >> 31 ? Format::sign : 0u;

  if constexpr (Format::exponent_bits == 8) {
    // The exponents of float: the code is the upper part of its bits, subnormal numbers included. Without branches, so
    // that loops turn into vectors.
    constexpr int dropped = 23 - Format::mantissa_bits;
    std::uint32_t code = (magnitude + rounding(magnitude, dropped)) >> dropped;
    if (overflow == Overflow::saturate) code = code > Format::largest ? Format::largest : code;
    return Bits(sign | (magnitude > 0x7f800000u ? Format::nan : code));
  } else {
    if (magnitude > 0x7f800000u) return Bits(Format::fnuz ? Format::nan : sign | Format::nan);
    std::uint32_t const beyond = overflow == Overflow::saturate ? sign | Format::largest
                                 : Format::has_infinity         ? sign | Format::infinity
                                 : Format::fnuz                 ? Format::nan
                                                                : sign | Format::nan;
    if (magnitude == 0x7f800000u) return Bits(Format::fnuz ? Format::nan : beyond);

    // The significand with its leading one, as a multiple of 2^(exponent - 23); subnormal floats have the exponent -126 too.
    int const biased = int(magnitude >> 23);
    int const exponent = (biased == 0 ? 1 : biased) - 127;
    std::uint64_t const significand = (magnitude & 0x7fffffu) | (biased == 0 ? 0u : 0x800000u);

    // In the target the last bit weighs 2^(max(exponent, smallest) - mantissa_bits): so many bits of the significand go.
    constexpr int smallest = 1 - Format::bias;
    int dropped = 23 - Format::mantissa_bits + (exponent < smallest ? smallest - exponent : 0);
    if (dropped > 56) dropped = 56;  // nothing above rounds up, not even by chance, and the shifts stay in range

    std::uint64_t const rounded = (significand + rounding(significand, dropped)) >> dropped;

    // Normal numbers: the leading one adds one to the exponent field below. A carry moves into it by itself.
    std::uint32_t const field = exponent < smallest ? 0u : std::uint32_t(exponent - smallest);
    std::uint64_t const code = (std::uint64_t(field) << Format::mantissa_bits) + rounded;
    if (code > Format::largest) return Bits(beyond);
    if (Format::fnuz && code == 0) return 0;
    return Bits(sign | std::uint32_t(code));
  }
}

template <class Format>
SPOROS_FUNCTION constexpr float decode(typename Format::Bits bits) {
  std::uint32_t const code = bits & (Format::sign - 1);
  std::uint32_t const sign = bits & Format::sign ? 0x80000000u : 0u;
  constexpr int shift = 23 - Format::mantissa_bits;
  if constexpr (Format::exponent_bits == 8) {
    return std::bit_cast<float>(sign | code << shift);
  } else {
    std::uint32_t const field = code >> Format::mantissa_bits;
    std::uint32_t mantissa = code & ((1u << Format::mantissa_bits) - 1);

    if constexpr (Format::fnuz) {
      if (bits == Format::sign) return std::bit_cast<float>(0x7fc00000u);
    } else if constexpr (Format::has_infinity) {
      if (code >= Format::infinity) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << shift);
    } else {
      if (code == Format::nan) return std::bit_cast<float>(sign | 0x7fc00000u);
    }

    if (field != 0) return std::bit_cast<float>(sign | (field + 127 - Format::bias) << 23 | mantissa << shift);
    if (mantissa == 0) return std::bit_cast<float>(sign);
    int exponent = 1 - Format::bias;
    while (!(mantissa >> Format::mantissa_bits)) {
      mantissa <<= 1;
      --exponent;
    }
    mantissa &= (1u << Format::mantissa_bits) - 1;
    return std::bit_cast<float>(sign | std::uint32_t(exponent + 127) << 23 | mantissa << shift);
  }
}

}  // namespace Impl

/// A number in one of the storage formats: exactly as large as its bits on every backend, trivially copyable, with no
/// arithmetic of its own. Conversion from float rounds to nearest even and does not saturate; convert() has every mode.
/// A NaN stays one, with its sign where the format has signed NaN.
template <class FormatType>
struct StorageFloat {
  using Format = FormatType;
  using Bits = typename Format::Bits;

  Bits bits;

  StorageFloat() = default;
  SPOROS_FUNCTION explicit constexpr StorageFloat(float x)
      : bits(Impl::encode<Format>(x, Overflow::propagate, Impl::ToNearestEven{})) {}
  SPOROS_FUNCTION explicit constexpr operator float() const { return Impl::decode<Format>(bits); }
  SPOROS_FUNCTION explicit constexpr operator double() const { return double(Impl::decode<Format>(bits)); }

  SPOROS_FUNCTION static constexpr StorageFloat from_bits(Bits bits) {
    StorageFloat x;
    x.bits = bits;
    return x;
  }
};

using bfloat16 = StorageFloat<Impl::BFloat16Format>;               ///< 8 exponent bits, 7 mantissa bits
using float16 = StorageFloat<Impl::Float16Format>;                 ///< IEEE 754 binary16
using float8_e4m3 = StorageFloat<Impl::Float8E4M3Format>;          ///< OCP FP8: up to 448, NaN, no infinity
using float8_e5m2 = StorageFloat<Impl::Float8E5M2Format>;          ///< OCP FP8: up to 57344, infinity, NaN
using float8_e4m3fnuz = StorageFloat<Impl::Float8E4M3FnuzFormat>;  ///< gfx942: up to 240, no infinity, no -0
using float8_e5m2fnuz = StorageFloat<Impl::Float8E5M2FnuzFormat>;  ///< gfx942: up to 57344, no infinity, no -0

template <class T>
inline constexpr bool is_storage_float = false;
template <class Format>
inline constexpr bool is_storage_float<StorageFloat<Format>> = true;

/// The type that arithmetic on T is done in: double for double, float for everything smaller
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<std::remove_cv_t<T>, double>, double, float>;

/// x in the format of T, rounded to nearest, ties to even
template <class T>
SPOROS_FUNCTION constexpr T convert(float x, Overflow overflow = Overflow::propagate) {
  return T::from_bits(Impl::encode<typename T::Format>(x, overflow, Impl::ToNearestEven{}));
}

/// x in the format of T, rounded up with the probability of the part that is dropped: E[result] = x within the finite range
/// \param random 32 independent uniform bits
template <class T>
SPOROS_FUNCTION constexpr T convert_stochastic(float x, std::uint32_t random, Overflow overflow = Overflow::propagate) {
  return T::from_bits(Impl::encode<typename T::Format>(x, overflow, Impl::Stochastically{random}));
}

}  // namespace Sporos

#endif
