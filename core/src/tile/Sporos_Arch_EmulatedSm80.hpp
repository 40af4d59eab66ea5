// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_EMULATEDSM80_HPP
#define SPOROS_ARCH_EMULATEDSM80_HPP

#include <random>
#include <vector>

#include "tile/Sporos_EmulatedWarp.hpp"
#include "tile/Sporos_Pipeline_AsyncCopy.hpp"

// The instructions of Arch::Sm80 on a CPU, for all 32 lanes of a warp at once.
namespace Sporos::inline SPOROS_LEVEL {

template <>
struct Arch::Emulated<Arch::Sm80> : EmulatedWarp<MmaSyncAtom> {
  using WarpMmaInstructions = Emulated;

  static constexpr int warps = 4;
  static constexpr bool loads_transposed = true;
  static constexpr bool copies_asynchronously = true;
  static constexpr int most_left_registers = 32;

  template <class Address>
  static Registers<std::uint32_t, 4> load(Lanes, Address const& address) {
    return load_matrices(address, [](int lane, int e) { return LoadMatrix::element(lane, e); });
  }

  template <class Address>
  static Registers<std::uint32_t, 4> load_transposed(Lanes, Address const& address) {
    return load_matrices(address, [](int lane, int e) { return LoadMatrix::element_transposed(lane, e); });
  }

  template <class T>
  static void mma(Registers<float, 8>& c, Registers<std::uint32_t, 4> const& a, Registers<std::uint32_t, 4> const& b) {
    for (int side = 0; side < 2; ++side)
      multiply<MmaM16N8K16, 16, 8, 16>(
          [&](int lane, int e) { return float(half<T>(a(lane, e / 2), e % 2)); },
          [&](int lane, int e) { return float(half<T>(b(lane, 2 * side + e / 2), e % 2)); },
          [&](int lane, int i) -> float& { return c(lane, 4 * side + i); });
  }

 private:
  template <class Address, class Element>
  static Registers<std::uint32_t, 4> load_matrices(Address const& address, Element const& element) {
    Registers<std::uint32_t, 4> r;
    auto const bits = [&](int matrix, Position at) { return address(8 * matrix + at.row)[at.column].bits; };
    for_each_lane([&](int lane) {
      for (int j = 0; j < 4; ++j)
        r(lane, j) = bits(j, element(lane, 0)) | std::uint32_t(bits(j, element(lane, 1))) << 16;
    });
    return r;
  }
};

/// One warp's view of the team. Its copies land as late as its waits permit, or earlier, as the seed has it.
template <>
class Team<Arch::Emulated<Arch::Sm80>> {
 public:
  static constexpr int warps = Arch::Emulated<Arch::Sm80>::warps;
  static constexpr int threads = 32 * warps;

  Team(Emulation::WarpScheduler& scheduler, int warp, Emulation::Adversary const& adversary)
      : m_scheduler(scheduler), m_warp(warp), m_adversary(adversary), m_random(100 * adversary.seed + unsigned(warp)) {}

  int warp() const { return m_warp; }

  void barrier() {
    if (m_barriers++ != m_adversary.forgotten_barrier) m_scheduler.barrier(m_warp);
  }

  template <class T>
  void copy_async(T* to, T const* from, bool real) {
    m_copies.push_back({to, real ? from : nullptr, m_closed});
  }

  int commit_copies() {
    if (m_commits++ != m_adversary.forgotten_commit) ++m_closed;
    int const group = m_groups.close();
    if (m_adversary.seed != 0 && m_random() % 2) land(m_closed);
    return group;
  }

  void wait_copies(int group) {
    if (m_waits++ != m_adversary.forgotten_wait) wait_group(m_groups.younger_than(group));
  }

 private:
  struct Copy {
    void* to;
    void const* from;  // null: zeros
    int group;
  };

  /// As the instruction does: all groups that were closed, but for so many of the youngest.
  void wait_group(int younger) { land(m_closed - younger); }

  /// Groups before `end`
  void land(int end) {
    std::erase_if(m_copies, [&](Copy const& copy) {
      if (copy.group >= end) return false;
      if (copy.from)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
      return true;
    });
  }

  Emulation::WarpScheduler& m_scheduler;
  int m_warp;
  Emulation::Adversary m_adversary;
  std::mt19937 m_random;
  std::vector<Copy> m_copies;
  CopyGroups m_groups;  // as the program counts them
  int m_closed = 0;     // as they are
  int m_commits = 0;
  int m_waits = 0;
  int m_barriers = 0;
};

template <>
struct Arch::Emulated<Arch::Sm80SmallScratch> : Arch::Emulated<Arch::Sm80> {};

template <>
class Team<Arch::Emulated<Arch::Sm80SmallScratch>> : public Team<Arch::Emulated<Arch::Sm80>> {
  using Team<Arch::Emulated<Arch::Sm80>>::Team;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
