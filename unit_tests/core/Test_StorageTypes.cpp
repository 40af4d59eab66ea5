// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <bit>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "Sporos_Random.hpp"
#include "Sporos_StorageTypes.hpp"

namespace {

using Sporos::Overflow;

// The formats once more, from their definitions: IEEE 754, the OCP 8-bit specification, and the fnuz variants of gfx942.
enum class Special { ieee, last_code_is_nan, fnuz };

template <class T>
struct Definition;
template <>
struct Definition<Sporos::bfloat16> {
  static constexpr int exponent_bits = 8, mantissa_bits = 7, bias = 127;
  static constexpr Special special = Special::ieee;
};
template <>
struct Definition<Sporos::float16> {
  static constexpr int exponent_bits = 5, mantissa_bits = 10, bias = 15;
  static constexpr Special special = Special::ieee;
};
template <>
struct Definition<Sporos::float8_e4m3> {
  static constexpr int exponent_bits = 4, mantissa_bits = 3, bias = 7;
  static constexpr Special special = Special::last_code_is_nan;
};
template <>
struct Definition<Sporos::float8_e5m2> {
  static constexpr int exponent_bits = 5, mantissa_bits = 2, bias = 15;
  static constexpr Special special = Special::ieee;
};
template <>
struct Definition<Sporos::float8_e4m3fnuz> {
  static constexpr int exponent_bits = 4, mantissa_bits = 3, bias = 8;
  static constexpr Special special = Special::fnuz;
};
template <>
struct Definition<Sporos::float8_e5m2fnuz> {
  static constexpr int exponent_bits = 5, mantissa_bits = 2, bias = 16;
  static constexpr Special special = Special::fnuz;
};

/// Rounds by looking into the table of all values of a format, in exact arithmetic.
template <class T>
class Reference {
 public:
  using D = Definition<T>;

  Reference() {
    int const codes = 1 << (D::exponent_bits + D::mantissa_bits);
    int finite = codes;
    if (D::special == Special::ieee) finite = codes - (1 << D::mantissa_bits);
    if (D::special == Special::last_code_is_nan) finite = codes - 1;
    // One value more: what the next code would be worth if the exponents went on, where rounding overflows.
    for (int code = 0; code <= finite; ++code) {
      int const exponent = code >> D::mantissa_bits, mantissa = code & ((1 << D::mantissa_bits) - 1);
      m_values.push_back(exponent == 0
                             ? std::ldexp(mantissa, 1 - D::bias - D::mantissa_bits)
                             : std::ldexp((1 << D::mantissa_bits) + mantissa, exponent - D::bias - D::mantissa_bits));
    }
  }

  int sign_bit() const { return 1 << (D::exponent_bits + D::mantissa_bits); }
  int codes() const { return 2 * sign_bit(); }
  int beyond() const { return int(m_values.size()) - 1; }  // the first code that is not finite
  double value(int code) const { return m_values[std::size_t(code)]; }

  bool is_nan(int code) const {
    int const magnitude = code & (sign_bit() - 1);
    if (D::special == Special::fnuz) return code == sign_bit();
    return D::special == Special::ieee ? magnitude > beyond() : magnitude == beyond();
  }
  bool is_infinity(int code) const { return D::special == Special::ieee && (code & (sign_bit() - 1)) == beyond(); }

  /// The largest code whose value is at most |x|
  int floor(double magnitude) const {
    return int(std::upper_bound(m_values.begin(), m_values.end(), magnitude) - m_values.begin()) - 1;
  }

  int nearest(int below, double magnitude) const {
    if (below == beyond()) return below;
    double const middle = (value(below) + value(below + 1)) / 2;
    if (magnitude == middle) return below + below % 2;
    return magnitude < middle ? below : below + 1;
  }

  /// Up when the random number is among the upper part of its 2^32 values, a part as large as x is far up
  int stochastic(int below, double magnitude, std::uint32_t random) const {
    if (below == beyond()) return below;
    double const part = (magnitude - value(below)) / (value(below + 1) - value(below));
    return 0x1p32 - double(random) <= 0x1p32 * part ? below + 1 : below;
  }

  /// The code, or -1 for any NaN
  int finish(int magnitude_code, bool negative, Overflow overflow) const {
    if (magnitude_code == beyond()) {
      if (overflow == Overflow::saturate)
        magnitude_code = beyond() - 1;
      else if (D::special != Special::ieee)
        return -1;
    }
    if (D::special == Special::fnuz && magnitude_code == 0) return 0;
    return negative ? magnitude_code + sign_bit() : magnitude_code;
  }

  int of_infinity(bool negative, Overflow overflow) const {
    return D::special == Special::fnuz ? -1 : finish(beyond(), negative, overflow);
  }

 private:
  std::vector<double> m_values;
};

/// Counts what differs, for a REQUIRE for each of millions of conversions would take minutes.
template <class T>
class Comparison {
 public:
  explicit Comparison(Reference<T> const& reference) : m_reference(reference) {}

  void check(float x, int below, Overflow overflow) {
    double const magnitude = std::abs(double(x));
    compare(x, overflow, Sporos::convert<T>(x, overflow),
            m_reference.finish(m_reference.nearest(below, magnitude), std::signbit(x), overflow));
  }
  void check_stochastic(float x, int below, Overflow overflow, std::uint32_t random) {
    double const magnitude = std::abs(double(x));
    compare(x, overflow, Sporos::convert_stochastic<T>(x, random, overflow),
            m_reference.finish(m_reference.stochastic(below, magnitude, random), std::signbit(x), overflow));
  }
  void compare(float x, Overflow overflow, T actual, int expected) {
    ++m_checked;
    bool const same = expected == -1 ? m_reference.is_nan(actual.bits) : actual.bits == expected;
    if (same) return;
    if (++m_wrong == 1) {
      char text[200];
      std::snprintf(text, sizeof text, "%a (%s) became %x, %x is right", double(x),
                    overflow == Overflow::saturate ? "saturating" : "propagating", unsigned(actual.bits),
                    unsigned(expected));
      m_first = text;
    }
  }
  void finish() const {
    INFO(m_first);
    CAPTURE(m_checked);
    REQUIRE(m_wrong == 0);
    REQUIRE(m_checked > 0);
  }

 private:
  Reference<T> const& m_reference;
  long m_checked = 0, m_wrong = 0;
  std::string m_first;
};

constexpr Overflow overflows[] = {Overflow::propagate, Overflow::saturate};

#define ALL_STORAGE_TYPES                                                                               \
  Sporos::bfloat16, Sporos::float16, Sporos::float8_e4m3, Sporos::float8_e5m2, Sporos::float8_e4m3fnuz, \
      Sporos::float8_e5m2fnuz

TEMPLATE_TEST_CASE("A storage type is as large as its bits and trivially copyable", "[core][storage]",
                   ALL_STORAGE_TYPES) {
  using D = Definition<TestType>;
  STATIC_REQUIRE(8 * sizeof(TestType) == 1 + D::exponent_bits + D::mantissa_bits);
  STATIC_REQUIRE(std::is_trivially_copyable_v<TestType>);
  STATIC_REQUIRE(std::is_trivially_default_constructible_v<TestType>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<float, TestType>);  // a rounding shows in the source
  STATIC_REQUIRE(float(TestType(1.5f)) == 1.5f);                 // in constant expressions, too
  STATIC_REQUIRE(Sporos::is_storage_float<TestType>);
  STATIC_REQUIRE(std::is_same_v<Sporos::ComputeType<TestType>, float>);
}

TEMPLATE_TEST_CASE("Every code decodes to its value and encodes to itself", "[core][storage]", ALL_STORAGE_TYPES) {
  Reference<TestType> const reference;
  for (int code = 0; code < reference.codes(); ++code) {
    CAPTURE(code);
    auto const x = TestType::from_bits(typename TestType::Bits(code));
    int const magnitude = code & (reference.sign_bit() - 1);
    bool const negative = code & reference.sign_bit();
    if (reference.is_nan(code)) {
      REQUIRE(std::isnan(float(x)));
      REQUIRE(std::isnan(double(x)));
      REQUIRE(reference.is_nan(TestType(float(x)).bits));
      continue;
    }
    double const value =
        reference.is_infinity(code) ? std::numeric_limits<double>::infinity() : reference.value(magnitude);
    REQUIRE(double(float(x)) == (negative ? -value : value));
    REQUIRE(double(x) == (negative ? -value : value));
    REQUIRE(std::signbit(float(x)) == negative);
    REQUIRE(TestType(float(x)).bits == code);
    // An exact value stays, whatever the random number.
    for (std::uint32_t random : {0u, 0x80000000u, 0xffffffffu})
      REQUIRE(Sporos::convert_stochastic<TestType>(float(x), random).bits == code);
  }
}

TEMPLATE_TEST_CASE("Around every value and every boundary between values, rounding is exact", "[core][storage]",
                   ALL_STORAGE_TYPES) {
  Reference<TestType> const reference;
  Comparison<TestType> comparison(reference);
  Sporos::RandomStream const random(1, 2);
  std::uint64_t draws = 0;

  auto const check = [&](float magnitude) {
    if (!std::isfinite(magnitude)) return;
    int const below = reference.floor(magnitude);
    for (Overflow overflow : overflows)
      for (float x : {magnitude, -magnitude}) {
        comparison.check(x, below, overflow);
        for (std::uint32_t r : {0u, 0xffffffffu, random.bits(draws++)})
          comparison.check_stochastic(x, below, overflow, r);
      }
  };
  auto const check_around = [&](double centre) {
    if (centre > double(std::numeric_limits<float>::max())) return;
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(float(centre));
    for (int offset = -2; offset <= 2; ++offset)
      if (std::int64_t(bits) + offset >= 0) check(std::bit_cast<float>(bits + std::uint32_t(offset)));
  };

  for (int code = 0; code < reference.beyond(); ++code) {
    double const value = reference.value(code), next = reference.value(code + 1);
    check_around(value);
    check_around((value + next) / 2);
    check_around(value + (next - value) * 0.75);
  }
  check_around(reference.value(reference.beyond()));

  // Every exponent of float, far below the smallest and far above the largest value included
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent)
    for (std::uint32_t bit = 0; bit < 23; ++bit)
      for (std::uint32_t mantissa : {1u << bit, (1u << bit) - 1, 0x7fffffu ^ (1u << bit)})
        check(std::bit_cast<float>(exponent << 23 | mantissa));
  comparison.finish();
}

TEMPLATE_TEST_CASE("Infinities and NaN", "[core][storage]", ALL_STORAGE_TYPES) {
  Reference<TestType> const reference;
  Comparison<TestType> comparison(reference);
  float const infinity = std::numeric_limits<float>::infinity();
  for (Overflow overflow : overflows)
    for (std::uint32_t random : {0u, 12345u, 0xffffffffu}) {
      for (float x : {infinity, -infinity}) {
        int const expected = reference.of_infinity(x < 0, overflow);
        comparison.compare(x, overflow, Sporos::convert<TestType>(x, overflow), expected);
        comparison.compare(x, overflow, Sporos::convert_stochastic<TestType>(x, random, overflow), expected);
      }
      for (std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu}) {
        float const x = std::bit_cast<float>(bits);
        comparison.compare(x, overflow, Sporos::convert<TestType>(x, overflow), -1);
        comparison.compare(x, overflow, Sporos::convert_stochastic<TestType>(x, random, overflow), -1);
        if (Definition<TestType>::special != Special::fnuz)
          CHECK((Sporos::convert<TestType>(x, overflow).bits & reference.sign_bit()) ==
                (bits >> 31 ? reference.sign_bit() : 0));
      }
    }
  comparison.finish();
}

// Ten minutes on one core, so it runs on demand: sporos_test_core "[.exhaustive]"
TEMPLATE_TEST_CASE("Every float rounds exactly", "[.exhaustive]", ALL_STORAGE_TYPES) {
  Reference<TestType> const reference;
  Comparison<TestType> comparison(reference);
  int below = 0;
  for (std::uint32_t bits = 0; bits < 0x7f800000u; ++bits) {
    float const x = std::bit_cast<float>(bits);
    while (below < reference.beyond() && reference.value(below + 1) <= double(x)) ++below;
    for (Overflow overflow : overflows) {
      comparison.check(x, below, overflow);
      comparison.check(-x, below, overflow);
      comparison.check_stochastic(x, below, overflow, bits * 2654435761u);
    }
  }
  comparison.finish();
}

// The mean of many roundings, within four standard deviations of the rounding that has two outcomes
TEMPLATE_TEST_CASE("Stochastic rounding has no bias", "[core][storage]", ALL_STORAGE_TYPES) {
  using D = Definition<TestType>;
  double const ulp = std::ldexp(1.0, -D::mantissa_bits);  // of values from 1 to 2
  double const smallest = std::ldexp(1.0, 1 - D::bias - D::mantissa_bits);
  constexpr int draws = 200000;
  struct Case {
    double x, below, step;
  };
  for (Case const& c : {Case{1 + 0.25 * ulp, 1, ulp}, Case{-1 - 0.9 * ulp, -1, -ulp}, Case{1 + ulp / 1024, 1, ulp},
                        Case{0.3 * smallest, 0, smallest}, Case{5.7 * smallest, 5 * smallest, smallest}}) {
    double const x = float(c.x);
    CAPTURE(x);
    Sporos::RandomStream const random(42, 7);
    double sum = 0;
    for (int i = 0; i < draws; ++i) {
      double const y = double(Sporos::convert_stochastic<TestType>(float(x), random.bits(std::uint64_t(i))));
      REQUIRE((y == c.below || y == c.below + c.step));
      sum += (y - c.below) / c.step;
    }
    double const part = (x - c.below) / c.step;
    REQUIRE(std::abs(sum / draws - part) <= 4 * std::sqrt(part * (1 - part) / draws));
  }
}

// Far below the smallest value the probability is tiny, not a constant: 2^-30 of an ulp rounds up for four random numbers.
TEST_CASE("Stochastic rounding of values far below the smallest one", "[core][storage]") {
  float const x = 0x1p-46f;  // 2^-30 of the smallest float8_e5m2
  for (std::uint32_t random : {0xffffffffu, 0xfffffffcu})
    CHECK(Sporos::convert_stochastic<Sporos::float8_e5m2>(x, random).bits == 1);
  for (std::uint32_t random : {0xfffffffbu, 0x80000000u, 0u})
    CHECK(Sporos::convert_stochastic<Sporos::float8_e5m2>(x, random).bits == 0);
  for (float tiny : {0x1p-100f, 0x1p-149f})
    CHECK(Sporos::convert_stochastic<Sporos::float8_e5m2>(tiny, 0xffffffffu).bits == 0);
}

struct KnownCodes {
  std::uint32_t x;
  // e4m3, e5m2, e4m3fnuz, e5m2fnuz: saturating and not of each
  std::uint8_t codes[8];
};

// Values where implementations are known to go wrong: ties, subnormal numbers, both sides of the overflow, -0, infinities,
// NaN. The codes were computed by an exact reference; for OCP formats CUDA's conversions give the same. An infinity
// becomes NaN in the fnuz formats, as in ONNX's Cast. NaN is compared as a class, since its sign and payload differ.
constexpr KnownCodes known_codes[] = {
    {0x00000000, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x80000000, {0x80, 0x80, 0x80, 0x80, 0x00, 0x00, 0x00, 0x00}},
    {0x00000001, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x80000001, {0x80, 0x80, 0x80, 0x80, 0x00, 0x00, 0x00, 0x00}},
    {0x00800000, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x36800000, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}},
    {0x37000000, {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x01}},
    {0x37000001, {0x00, 0x00, 0x01, 0x01, 0x00, 0x00, 0x01, 0x01}},
    {0x37800000, {0x00, 0x00, 0x01, 0x01, 0x00, 0x00, 0x02, 0x02}},
    {0x37c00000, {0x00, 0x00, 0x02, 0x02, 0x00, 0x00, 0x03, 0x03}},
    {0x38200000, {0x00, 0x00, 0x02, 0x02, 0x00, 0x00, 0x05, 0x05}},
    {0x38600000, {0x00, 0x00, 0x04, 0x04, 0x00, 0x00, 0x07, 0x07}},
    {0x38800000, {0x00, 0x00, 0x04, 0x04, 0x00, 0x00, 0x08, 0x08}},
    {0x3a000000, {0x00, 0x00, 0x10, 0x10, 0x00, 0x00, 0x14, 0x14}},
    {0x3a800000, {0x00, 0x00, 0x14, 0x14, 0x01, 0x01, 0x18, 0x18}},
    {0x3a800001, {0x01, 0x01, 0x14, 0x14, 0x01, 0x01, 0x18, 0x18}},
    {0xba800000, {0x80, 0x80, 0x94, 0x94, 0x81, 0x81, 0x98, 0x98}},
    {0x3b000000, {0x01, 0x01, 0x18, 0x18, 0x02, 0x02, 0x1c, 0x1c}},
    {0x3b400000, {0x02, 0x02, 0x1a, 0x1a, 0x03, 0x03, 0x1e, 0x1e}},
    {0x3ba00000, {0x02, 0x02, 0x1d, 0x1d, 0x05, 0x05, 0x21, 0x21}},
    {0x3c700000, {0x08, 0x08, 0x24, 0x24, 0x0f, 0x0f, 0x28, 0x28}},
    {0x3c6fffff, {0x07, 0x07, 0x23, 0x23, 0x0f, 0x0f, 0x27, 0x27}},
    {0x3c800000, {0x08, 0x08, 0x24, 0x24, 0x10, 0x10, 0x28, 0x28}},
    {0x3f880000, {0x38, 0x38, 0x3c, 0x3c, 0x40, 0x40, 0x40, 0x40}},
    {0x3f880001, {0x39, 0x39, 0x3c, 0x3c, 0x41, 0x41, 0x40, 0x40}},
    {0x3f900000, {0x39, 0x39, 0x3c, 0x3c, 0x41, 0x41, 0x40, 0x40}},
    {0x3f980000, {0x3a, 0x3a, 0x3d, 0x3d, 0x42, 0x42, 0x41, 0x41}},
    {0x3fb00000, {0x3b, 0x3b, 0x3e, 0x3e, 0x43, 0x43, 0x42, 0x42}},
    {0x3fffffff, {0x40, 0x40, 0x40, 0x40, 0x48, 0x48, 0x44, 0x44}},
    {0x40880000, {0x48, 0x48, 0x44, 0x44, 0x50, 0x50, 0x48, 0x48}},
    {0x40980000, {0x4a, 0x4a, 0x45, 0x45, 0x52, 0x52, 0x49, 0x49}},
    {0x3dcccccd, {0x1d, 0x1d, 0x2e, 0x2e, 0x25, 0x25, 0x32, 0x32}},
    {0x43700000, {0x77, 0x77, 0x5c, 0x5c, 0x7f, 0x7f, 0x60, 0x60}},
    {0x43780000, {0x78, 0x78, 0x5c, 0x5c, 0x7f, 0x80, 0x60, 0x60}},
    {0x43df8000, {0x7e, 0x7e, 0x5f, 0x5f, 0x7f, 0x80, 0x63, 0x63}},
    {0x43e00000, {0x7e, 0x7e, 0x5f, 0x5f, 0x7f, 0x80, 0x63, 0x63}},
    {0x43e80000, {0x7e, 0x7e, 0x5f, 0x5f, 0x7f, 0x80, 0x63, 0x63}},
    {0x43e80001, {0x7e, 0x7f, 0x5f, 0x5f, 0x7f, 0x80, 0x63, 0x63}},
    {0x43e88000, {0x7e, 0x7f, 0x5f, 0x5f, 0x7f, 0x80, 0x63, 0x63}},
    {0x43f00000, {0x7e, 0x7f, 0x60, 0x60, 0x7f, 0x80, 0x64, 0x64}},
    {0xc3e80001, {0xfe, 0xff, 0xdf, 0xdf, 0xff, 0x80, 0xe3, 0xe3}},
    {0x447a0000, {0x7e, 0x7f, 0x64, 0x64, 0x7f, 0x80, 0x68, 0x68}},
    {0x47600000, {0x7e, 0x7f, 0x7b, 0x7b, 0x7f, 0x80, 0x7f, 0x7f}},
    {0x476fffff, {0x7e, 0x7f, 0x7b, 0x7b, 0x7f, 0x80, 0x7f, 0x7f}},
    {0x47700000, {0x7e, 0x7f, 0x7b, 0x7c, 0x7f, 0x80, 0x7f, 0x80}},
    {0xc7700000, {0xfe, 0xff, 0xfb, 0xfc, 0xff, 0x80, 0xff, 0x80}},
    {0x47700001, {0x7e, 0x7f, 0x7b, 0x7c, 0x7f, 0x80, 0x7f, 0x80}},
    {0x47800000, {0x7e, 0x7f, 0x7b, 0x7c, 0x7f, 0x80, 0x7f, 0x80}},
    {0x7f7fffff, {0x7e, 0x7f, 0x7b, 0x7c, 0x7f, 0x80, 0x7f, 0x80}},
    {0xff7fffff, {0xfe, 0xff, 0xfb, 0xfc, 0xff, 0x80, 0xff, 0x80}},
    {0x7f800000, {0x7e, 0x7f, 0x7b, 0x7c, 0x80, 0x80, 0x80, 0x80}},
    {0xff800000, {0xfe, 0xff, 0xfb, 0xfc, 0x80, 0x80, 0x80, 0x80}},
    {0x7fc00000, {0x7f, 0x7f, 0x7f, 0x7f, 0x80, 0x80, 0x80, 0x80}},
    {0xffc00000, {0x7f, 0x7f, 0x7f, 0x7f, 0x80, 0x80, 0x80, 0x80}},
    {0x7f800001, {0x7f, 0x7f, 0x7f, 0x7f, 0x80, 0x80, 0x80, 0x80}},
};

template <class T>
void check_known(KnownCodes const& row, Overflow overflow, std::uint8_t expected) {
  float const x = std::bit_cast<float>(row.x);
  T const y = Sporos::convert<T>(x, overflow);
  if (Reference<T>().is_nan(expected))
    CHECK(Reference<T>().is_nan(y.bits));
  else
    CHECK(int(y.bits) == int(expected));
}

TEST_CASE("FP8 codes of values that are known to be hard", "[core][storage]") {
  for (KnownCodes const& row : known_codes) {
    CAPTURE(row.x);
    check_known<Sporos::float8_e4m3>(row, Overflow::saturate, row.codes[0]);
    check_known<Sporos::float8_e4m3>(row, Overflow::propagate, row.codes[1]);
    check_known<Sporos::float8_e5m2>(row, Overflow::saturate, row.codes[2]);
    check_known<Sporos::float8_e5m2>(row, Overflow::propagate, row.codes[3]);
    check_known<Sporos::float8_e4m3fnuz>(row, Overflow::saturate, row.codes[4]);
    check_known<Sporos::float8_e4m3fnuz>(row, Overflow::propagate, row.codes[5]);
    check_known<Sporos::float8_e5m2fnuz>(row, Overflow::saturate, row.codes[6]);
    check_known<Sporos::float8_e5m2fnuz>(row, Overflow::propagate, row.codes[7]);
  }
}

}  // namespace
