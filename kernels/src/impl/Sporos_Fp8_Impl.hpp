// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FP8_IMPL_HPP
#define SPOROS_FP8_IMPL_HPP

#include <limits>

#include "impl/Sporos_RowTeam.hpp"
#include "impl/Sporos_Rows.hpp"

namespace Sporos::Impl {

template <class T, class Fp8>
struct Fp8Quantize {
  std::int64_t columns;
  Rows<T const> x;
  float const* scale;
  Rows<Fp8> y;
  float* amax;
};

template <class T, class Fp8>
struct Fp8Dequantize {
  std::int64_t columns;
  Rows<Fp8 const> y;
  float const* scale;
  Rows<T> x;
};

struct Fp8UpdateScale {
  float largest;  // of the format
  float const* amax;
  float* scale;
};

inline namespace SPOROS_LEVEL {

/// One row
template <class Team, class T, class Fp8>
SPOROS_FUNCTION void run_item(Team const& team, Fp8Quantize<T, Fp8> const& a, std::int64_t row) {
  T const* const x = a.x[row];
  Fp8* const y = a.y[row];
  float const scale = *a.scale;
  team.for_each(a.columns, [=](std::int64_t c) { y[c] = convert<Fp8>(float(x[c]) * scale, Overflow::saturate); });
  float const amax = team.max(a.columns, 0.0f, [=](std::int64_t c) {
    float const value = float(x[c]);
    float const magnitude = value < 0 ? -value : value;
    return magnitude <= std::numeric_limits<float>::max() ? magnitude : 0.0f;
  });
  float* const target = a.amax;
  team.once([=] { Team::atomic_max(target, amax); });
}

/// One row
template <class Team, class T, class Fp8>
SPOROS_FUNCTION void run_item(Team const& team, Fp8Dequantize<T, Fp8> const& a, std::int64_t row) {
  Fp8 const* const y = a.y[row];
  T* const x = a.x[row];
  float const scale = *a.scale;
  team.for_each(a.columns, [=](std::int64_t c) { x[c] = store_as<T>(float(y[c]) / scale); });
}

/// There is one item.
template <class Team>
SPOROS_FUNCTION void run_item(Team const& team, Fp8UpdateScale const& a, std::int64_t) {
  Fp8UpdateScale const b = a;
  team.once([=] {
    float const amax = *b.amax;
    if (!(amax > 0 && amax <= std::numeric_limits<float>::max())) return;
    // Beyond 2^126 the reciprocal would be subnormal, and zero where subnormal numbers are flushed.
    float const scale = b.largest / amax;
    *b.scale = scale < 0x1p126f ? scale : 0x1p126f;
  });
}

}  // namespace SPOROS_LEVEL
}  // namespace Sporos::Impl

#endif
