// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_EMULATEDWARP_HPP
#define SPOROS_EMULATEDWARP_HPP

#include <cmath>
#include <cstring>

#include "tile/Sporos_Emulation.hpp"
#include "tile/Sporos_Tile_WarpMma.hpp"

// What all emulated architectures with matrix instructions of a warp have in common.
namespace Sporos::inline SPOROS_LEVEL {

/// The instructions of a warp, for all its lanes at once. Registers start as NaN.
template <class AtomType>
struct EmulatedWarp {
  using Atom = AtomType;
  static constexpr int lanes = Atom::lanes;

  template <class T, int N>
  struct Registers {
    T m_value[lanes][N];
    Registers() { std::memset(m_value, Emulation::nan_byte, sizeof m_value); }
    T& operator()(int lane, int i) { return m_value[lane][i]; }
    T operator()(int lane, int i) const { return m_value[lane][i]; }
  };

  struct Lanes {};  // all

  using ProductToken = Emulation::ProductToken;
  using Products = Emulation::Products;

  template <class F>
  static void for_each_lane(F const& f) {
    for (int lane = 0; lane < lanes; ++lane) f(lane);
  }

  template <class F>
  static bool any_lane(F const& f) {
    bool found = false;
    for_each_lane([&](int lane) { found = f(lane) || found; });
    return found;
  }

  template <int N>
  static Registers<float, N> exchange(Registers<float, N> const& x, int mask) {
    Registers<float, N> other;
    for_each_lane([&](int lane) { std::memcpy(other.m_value[lane], x.m_value[lane ^ mask], sizeof x.m_value[lane]); });
    return other;
  }

  template <class T>
  static std::uint32_t pack(float low, float high) {
    return T(low).bits | std::uint32_t(T(high).bits) << 16;
  }
  template <class T>
  static T half(std::uint32_t pair, int which) {
    return T::from_bits(typename T::Bits(pair >> 16 * which));
  }
  template <class T>
  static std::uint32_t load_pair(T const* from) {
    return from[0].bits | std::uint32_t(from[1].bits) << 16;
  }
  template <class T>
  static void store_pair(T* to, std::uint32_t pair) {
    to[0] = half<T>(pair, 0), to[1] = half<T>(pair, 1);
  }
  template <class T>
  static void put(T* to, std::uint32_t pair) {
    store_pair(to, pair);
  }
  template <class T>
  static void put(T* to, T x) {
    *to = x;
  }
  static void add_to(float* to, float x) { *to += x; }

  static float exp2(float x) { return std::exp2(x); }
  static float log2(float x) { return std::log2(x); }
  static float ceil(float x) { return std::ceil(x); }
  static float max(float a, float b) { return std::fmax(a, b); }
  static float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }

  /// One matrix instruction: C (rows x columns) += A B, where Map says which elements the lanes hold. a(lane, e) and
  /// b(lane, e) are element e of a lane's factors, c(lane, i) its accumulator i.
  template <class Map, int Rows, int Columns, int Depth, class A, class B, class C>
  static void multiply(A const& a, B const& b, C const& c) {
    float left[Rows][Depth], right[Columns][Depth];
    for_each_lane([&](int lane) {
      for (int e = 0; e < Rows * Depth / lanes; ++e) {
        Position const at = Map::left(lane, e);
        left[at.row][at.column] = a(lane, e);
      }
      for (int e = 0; e < Columns * Depth / lanes; ++e) {
        Position const at = Map::right(lane, e);
        right[at.column][at.row] = b(lane, e);
      }
    });
    for_each_lane([&](int lane) {
      for (int i = 0; i < Rows * Columns / lanes; ++i) {
        Position const at = Map::accumulator(lane, i);
        float sum = c(lane, i);
        for (int k = 0; k < Depth; ++k) sum += left[at.row][k] * right[at.column][k];
        c(lane, i) = sum;
      }
    });
  }
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
