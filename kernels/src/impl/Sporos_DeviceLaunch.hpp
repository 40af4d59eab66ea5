// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_DEVICELAUNCH_HPP
#define SPOROS_DEVICELAUNCH_HPP

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <limits>
#include <string>

#include "Sporos_Error.hpp"
#include "tile/Sporos_Tile.hpp"

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
/// Applies MACRO(ExecutionSpace) to the GPU that tile kernels are compiled for, if there is one.
#define SPOROS_INSTANTIATE_FOR_DEVICES(MACRO) MACRO(Kokkos::DefaultExecutionSpace)

namespace Sporos::Impl {

/// Scratch of a team, with room to align it
template <class Work>
inline constexpr int scratch_bytes = int(sizeof(typename Work::Scratch) + alignof(typename Work::Scratch));

/// How many teams at once the smallest multiprocessor has scratch for: 100 KB from compute capability 8.0 on, 64 KB of AMD's
template <class Work>
inline constexpr int teams_with_scratch =
#if defined(KOKKOS_ENABLE_HIP)
    64 * 1024 / scratch_bytes<Work>;
#else
    100 * 1024 / scratch_bytes<Work>;
#endif

/// One team of the architecture for each work item, with the scratch that Work::Scratch needs. Work is plain data with
///     Architecture                              whose team it is
///     teams_at_once                             that a multiprocessor shall hold, if it has the scratch: the compiler limits
///                                               registers to it, and Kokkos refuses a launch that cannot keep to it
///     Scratch                                   a type without constructor
///     work(team, scratch, item)                 in all threads of a team, device code
/// No lambda in the kernel: nvcc refuses KOKKOS_IF_ON_DEVICE in one.
template <class ExecutionSpace, class Work>
struct TileKernel {
  using Team = Sporos::Team<typename Work::Architecture>;
  using Scratch = typename Work::Scratch;

  static constexpr int teams_at_once = Work::teams_at_once < teams_with_scratch<Work> ? Work::teams_at_once
                                       : teams_with_scratch<Work> > 0                 ? teams_with_scratch<Work>
                                                                                      : 1;
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<Team::threads, teams_at_once>>;

  Work m_work;
  int m_level;

  KOKKOS_FUNCTION void operator()(typename Policy::member_type const& member) const {
    KOKKOS_IF_ON_DEVICE(
        (void* const scratch = member.team_scratch(m_level).get_shmem_aligned(sizeof(Scratch), alignof(Scratch));
         Team team; m_work(team, *static_cast<Scratch*>(scratch), member.league_rank());))
    KOKKOS_IF_ON_HOST(((void)member;))
  }
};

/// Launches work(team, scratch, item) for items 0 ... items - 1.
/// \throws InvalidArgument when there are more items than a launch can have teams
template <class ExecutionSpace, class Work>
void launch_tiles(std::string const& label, ExecutionSpace const& space, std::int64_t items, Work const& work) {
  using Kernel = TileKernel<ExecutionSpace, Work>;
  using Policy = typename Kernel::Policy;
  if (items == 0) return;
  SPOROS_THROW_IF(items > std::numeric_limits<int>::max(), label, " would need ", items, " teams");
  constexpr int bytes = scratch_bytes<Work>;
  // Wide heads in double precision exceed what some devices have; level 1 is slow there, but it is there.
  int const level = bytes <= Policy::scratch_size_max(0) ? 0 : 1;
  Policy policy(space, int(items), Kernel::Team::threads);
  policy.set_scratch_size(level, Kokkos::PerTeam(bytes));
  Kokkos::parallel_for(label, policy, Kernel{work, level});
}

}  // namespace Sporos::Impl

#else
#define SPOROS_INSTANTIATE_FOR_DEVICES(MACRO)
#endif

#endif
