// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ROWLAUNCH_HPP
#define SPOROS_ROWLAUNCH_HPP

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>

#include "impl/Sporos_HostLevel.hpp"
#include "impl/Sporos_RowTeam.hpp"
#include "impl/Sporos_RowsHost.hpp"

namespace Sporos {
SPOROS_DECLARE_HOST_KERNELS(Impl::RowsHostKernels, rows_host)
}

namespace Sporos::Impl {

/// Whether kernels of this space run as one thread per item
template <class ExecutionSpace>
inline constexpr bool is_host_space =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename ExecutionSpace::memory_space>::accessible &&
    std::is_same_v<typename ExecutionSpace::memory_space, Kokkos::HostSpace>;

/// The interface of HostTeam for a Kokkos team: neighbouring members work on neighbouring columns.
template <class Member>
class DeviceTeam {
 public:
  KOKKOS_FUNCTION explicit DeviceTeam(Member const& member) : m_member(member) {}

  template <class F>
  KOKKOS_FUNCTION void for_each(std::int64_t n, F const& f) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(m_member, n), f);
  }

  template <class F>
  KOKKOS_FUNCTION void for_each_with_bits(std::int64_t n, RandomStream const& random, std::uint64_t first,
                                          F const& f) const {
    std::int64_t const skipped = std::int64_t(first % 4);
    std::uint64_t const first_block = first / 4;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(m_member, (skipped + n + 3) / 4), [&](std::int64_t const b) {
      Philox4x32Block const block = random.block(first_block + std::uint64_t(b));
      for (int j = 0; j < 4; ++j) {
        std::int64_t const i = 4 * b + j - skipped;
        if (i >= 0 && i < n) f(i, block.word[j]);
      }
    });
  }

  template <class Value, class F>
  KOKKOS_FUNCTION Value sum(std::int64_t n, F const& f) const {
    Value result = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(m_member, n), [&](std::int64_t const i, Value& partial) { partial += f(i); }, result);
    return result;
  }

  template <class Value, class F>
  KOKKOS_FUNCTION Value max(std::int64_t n, Value lowest, F const& f) const {
    Value result = lowest;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(m_member, n),
        [&](std::int64_t const i, Value& partial) {
          Value const value = f(i);
          if (value > partial) partial = value;
        },
        Kokkos::Max<Value>(result));
    return result > lowest ? result : lowest;
  }

  template <class F>
  KOKKOS_FUNCTION void once(F const& f) const {
    Kokkos::single(Kokkos::PerTeam(m_member), f);
  }

  KOKKOS_FUNCTION static void atomic_max(float* address, float value) { Kokkos::atomic_max(address, value); }

  KOKKOS_FUNCTION void barrier() const { m_member.team_barrier(); }

 private:
  Member const& m_member;
};

/// Teams take the items in turns, for a league is counted in int.
template <class ExecutionSpace, class Arguments>
struct DeviceItems {
  Arguments arguments;
  std::int64_t items;

  template <class Member>
  KOKKOS_FUNCTION void operator()(Member const& member) const {
    DeviceTeam<Member> const team(member);
    for (std::int64_t item = member.league_rank(); item < items; item += member.league_size())
      run_item(team, arguments, item);
  }
};

template <class Arguments>
struct HostItems {
  Arguments arguments;
  void (*run)(Arguments const&, std::int64_t, std::int64_t);

  void operator()(std::int64_t const item) const { run(arguments, item, item + 1); }
};

/// run_item(team, arguments, item) for every item below `items`. A team is one thread on hosts, up to 256 on GPUs.
template <class ExecutionSpace, class Arguments>
void run_items(ExecutionSpace const& space, char const* label, std::int64_t items, Arguments const& arguments) {
  if (items == 0) return;
  if constexpr (is_host_space<ExecutionSpace>) {
    HostItemsFunction<Arguments> const function = rows_host(best_host_level());
    using Policy =
        Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for(label, Policy(space, 0, items), HostItems<Arguments>{arguments, function.run});
  } else {
    using Policy = Kokkos::TeamPolicy<ExecutionSpace>;
    DeviceItems<ExecutionSpace, Arguments> const kernel{arguments, items};
    int const league = int(std::min<std::int64_t>(items, 1 << 20));
    int const largest = Policy(space, league, 1).team_size_max(kernel, Kokkos::ParallelForTag());
    Kokkos::parallel_for(label, Policy(space, league, std::min(256, largest)), kernel);
  }
}

}  // namespace Sporos::Impl

#endif
