// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_HOPPERLAUNCH_HPP
#define SPOROS_HOPPERLAUNCH_HPP

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "Sporos_Error.hpp"
#include "impl/Sporos_TensorMaps.hpp"
#include "tile/Sporos_TileQueue.hpp"

// Launches of teams that live as long as the launch, on NVIDIA Hopper.
#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__)
namespace Sporos::Impl {

// Whether the machine code that runs is for compute capability 9.0a: that of 9.0 has no matrix instructions.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static __device__ int runs_hopper_code = 1;
#else
static __device__ int runs_hopper_code = 0;
#endif

inline bool device_runs_hopper_code() {
  static bool const runs = [] {
    if (Kokkos::Cuda().cuda_device_prop().major != 9) return false;
    int value = 0;
    return cudaMemcpyFromSymbol(&value, runs_hopper_code, sizeof value) == cudaSuccess && value == 1;
  }();
  return runs;
}

/// Counters for launches, zeros. So many launches may be under way at once; each leaves its counter as it was.
template <class Counter>
Counter* next_counter() {
  constexpr unsigned count = 1024;
  static std::atomic<unsigned> next{0};
  static Kokkos::View<int*, Kokkos::CudaSpace>* const numbers = [] {
    auto* const view = new Kokkos::View<int*, Kokkos::CudaSpace>("Sporos::tile counters", count * sizeof(Counter) / 4);
    Kokkos::push_finalize_hook([view] { *view = {}; });
    return view;
  }();
  return reinterpret_cast<Counter*>(numbers->data()) + next++ % count;
}

template <class Arch, class Work>
struct HopperKernel {
  using HopperTeam = Sporos::Team<Arch>;
  using Scratch = TeamScratch<Arch, Work>;
  using Counter = typename TileQueue<Arch>::Counter;
  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<HopperTeam::threads, 1>>;

  static constexpr int scratch_bytes = Scratch::bytes + Scratch::alignment;

  Work m_work;
  TensorMaps<4> m_maps;
  Counter* m_counter;

  // "exit", because the loop of teams around this would make the compiler keep registers for a next team, and spill. There is
  // none: the launch has as many teams as it says.
  KOKKOS_FUNCTION void operator()(typename Policy::member_type const& member) const {
    KOKKOS_IF_ON_DEVICE(
        (void* const scratch =
             member.team_scratch(0).get_shmem_aligned(std::size_t(Scratch::bytes), int(Scratch::alignment));
         run_team<Arch>(m_work, static_cast<unsigned char*>(scratch), m_maps.count > 0 ? m_maps.maps : nullptr,
                        m_counter, member.league_rank(), member.league_size());
         asm volatile("exit;");))
    KOKKOS_IF_ON_HOST(((void)member;))
  }
};

template <class Arch, class Work>
bool fits_scratch() {
  using Kernel = HopperKernel<Arch, Work>;
  return Kernel::scratch_bytes <= Kernel::Policy::scratch_size_max(0);
}

/// One team for each multiprocessor. `maps` are those of the tensors that Work loads, or none.
template <class Arch, class Work>
void launch_hopper(std::string const& label, Kokkos::Cuda const& space, Work const& work, TensorMaps<4> const& maps) {
  using Kernel = HopperKernel<Arch, Work>;
  int const items = work.items();
  if (items == 0) return;
  int const teams = std::min(items, space.cuda_device_prop().multiProcessorCount);
  typename Kernel::Policy policy(space, teams, Kernel::HopperTeam::threads / 32, 32);
  policy.set_scratch_size(0, Kokkos::PerTeam(Kernel::scratch_bytes));
  Kokkos::parallel_for(label, policy, Kernel{work, maps, next_counter<typename Kernel::Counter>()});
}

/// pass(team, thread) in teams of Pass::threads threads
template <class Pass>
struct HopperPass {
  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<Pass::threads, 1>>;

  Pass m_pass;

  KOKKOS_FUNCTION void operator()(typename Policy::member_type const& member) const {
    KOKKOS_IF_ON_DEVICE((m_pass(member.league_rank(), int(threadIdx.x + blockDim.x * threadIdx.y));))
    KOKKOS_IF_ON_HOST(((void)member;))
  }
};

template <class Pass>
void launch_pass(std::string const& label, Kokkos::Cuda const& space, std::int64_t teams, Pass const& pass) {
  if (teams == 0) return;
  SPOROS_THROW_IF(teams > std::numeric_limits<int>::max(), label, " would need ", teams, " teams");
  Kokkos::parallel_for(label, typename HopperPass<Pass>::Policy(space, int(teams), Pass::threads / 32, 32),
                       HopperPass<Pass>{pass});
}

}  // namespace Sporos::Impl
#endif

#endif
