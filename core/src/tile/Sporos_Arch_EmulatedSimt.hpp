// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_EMULATEDSIMT_HPP
#define SPOROS_ARCH_EMULATEDSIMT_HPP

#include <cmath>
#include <cstring>

#include "tile/Sporos_Emulation.hpp"
#include "tile/Sporos_Tile_Simt.hpp"

// The instructions of Arch::Simt on a CPU, for all lanes of a warp at once.
namespace Sporos::inline SPOROS_LEVEL {

template <>
struct Arch::Emulated<Arch::Simt> {
  using SimtInstructions = Emulated;

  static constexpr int lanes = SimtLayout::lanes;
  static constexpr int group = SimtLayout::group;

  /// N registers of every lane. They start as NaN.
  template <class T, int N>
  struct Registers {
    T m_value[lanes][N];
    Registers() { std::memset(m_value, Emulation::nan_byte, sizeof m_value); }
    T& operator()(int lane, int i) { return m_value[lane][i]; }
    T operator()(int lane, int i) const { return m_value[lane][i]; }
  };

  using ProductToken = Emulation::ProductToken;

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

  template <class T, int N>
  static Registers<T, N> exchange(Registers<T, N> const& x, int mask) {
    return from(x, [mask](int lane) { return lane ^ mask; });
  }

  template <class T, int N>
  static Registers<T, N> broadcast(Registers<T, N> const& x, int source) {
    return from(x, [source](int lane) { return lane / group * group + source; });
  }

  template <class T>
  static T exp2(T x) {
    return std::exp2(x);
  }
  template <class T>
  static T log2(T x) {
    return std::log2(x);
  }
  template <class T>
  static T ceil(T x) {
    return std::ceil(x);
  }
  template <class T>
  static T max(T a, T b) {
    return std::fmax(a, b);
  }
  template <class T>
  static T multiply_add(T a, T b, T c) {
    return std::fma(a, b, c);
  }

 private:
  template <class T, int N, class Source>
  static Registers<T, N> from(Registers<T, N> const& x, Source const& source) {
    Registers<T, N> other;
    for_each_lane([&](int lane) { std::memcpy(other.m_value[lane], x.m_value[source(lane)], sizeof x.m_value[lane]); });
    return other;
  }
};

/// One warp's view of the team
template <>
class Team<Arch::Emulated<Arch::Simt>> {
 public:
  static constexpr int warps = SimtLayout::warps;
  static constexpr int threads = SimtLayout::lanes * warps;

  Team(Emulation::WarpScheduler& scheduler, int warp, Emulation::Adversary const& adversary)
      : m_scheduler(scheduler), m_warp(warp), m_adversary(adversary) {}

  int warp() const { return m_warp; }

  void barrier() {
    if (m_barriers++ != m_adversary.forgotten_barrier) m_scheduler.barrier(m_warp);
  }

 private:
  Emulation::WarpScheduler& m_scheduler;
  int m_warp;
  Emulation::Adversary m_adversary;
  int m_barriers = 0;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
