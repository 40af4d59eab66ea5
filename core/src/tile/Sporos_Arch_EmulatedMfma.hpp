// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_EMULATEDMFMA_HPP
#define SPOROS_ARCH_EMULATEDMFMA_HPP

#include "tile/Sporos_EmulatedWarp.hpp"
#include "tile/Sporos_Pipeline_Registers.hpp"

// The instructions of Arch::Gfx90a and Arch::Gfx942 on a CPU, for all 64 lanes of a wavefront at once.
namespace Sporos::inline SPOROS_LEVEL {

struct EmulatedMfmaInstructions : EmulatedWarp<MfmaAtom<16>> {
  static constexpr int warps = 4;
  static constexpr bool loads_transposed = false;
  static constexpr bool copies_asynchronously = false;

  template <class Address>
  static Registers<std::uint32_t, 4> load(Lanes, Address const& address) {
    Registers<std::uint32_t, 4> r;
    for_each_lane([&](int lane) { std::memcpy(r.m_value[lane], address(lane), sizeof r.m_value[lane]); });
    return r;
  }
};

/// gfx90a takes subnormal factors for zero.
template <bool FlushesSubnormals>
struct EmulatedMfma : EmulatedMfmaInstructions {
  template <class T>
  static void mma(Registers<float, 4>& c, Registers<std::uint32_t, 4> const& a, Registers<std::uint32_t, 4> const& b) {
    auto const element = [](Registers<std::uint32_t, 4> const& factor, int lane, int e) {
      T const x = half<T>(factor(lane, e / 2), e % 2);
      constexpr unsigned exponent = (1u << T::Format::exponent_bits) - 1;
      bool const subnormal = (x.bits >> T::Format::mantissa_bits & exponent) == 0;
      return FlushesSubnormals && subnormal ? 0.0f : float(x);
    };
    for (int step = 0; step < 2; ++step)
      multiply<Mfma<16>, 16, 16, 16>([&](int lane, int e) { return element(b, lane, 4 * step + e); },
                                     [&](int lane, int e) { return element(a, lane, 4 * step + e); },
                                     [&](int lane, int i) -> float& { return c(lane, i); });
  }
};

template <>
struct Arch::Emulated<Arch::Gfx90a> : EmulatedMfma<true> {
  using WarpMmaInstructions = Emulated;
};
template <>
struct Arch::Emulated<Arch::Gfx942> : EmulatedMfma<false> {
  using WarpMmaInstructions = Emulated;
};

/// One wavefront's view of the team
class EmulatedMfmaTeam {
 public:
  static constexpr int warps = EmulatedMfmaInstructions::warps;
  static constexpr int threads = EmulatedMfmaInstructions::lanes * warps;

  EmulatedMfmaTeam(Emulation::WarpScheduler& scheduler, int warp, Emulation::Adversary const& adversary)
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

template <>
class Team<Arch::Emulated<Arch::Gfx90a>> : public EmulatedMfmaTeam {
  using EmulatedMfmaTeam::EmulatedMfmaTeam;
};
template <>
class Team<Arch::Emulated<Arch::Gfx942>> : public EmulatedMfmaTeam {
  using EmulatedMfmaTeam::EmulatedMfmaTeam;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
