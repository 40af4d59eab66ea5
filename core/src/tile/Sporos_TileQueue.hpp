// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TILEQUEUE_HPP
#define SPOROS_TILEQUEUE_HPP

#include "tile/Sporos_Arch_Sm90.hpp"

// Teams that live as long as the launch and take one tile after another. Device code only.
#if defined(__CUDACC__)
namespace Sporos::inline SPOROS_LEVEL {

/// Which items of a launch this team works on. The first warp of the producer, which leads, draws the next number from a
/// counter that all teams share, and hands it to the warps that follow: so long items, taken first, do not leave some teams
/// with more work than others.
template <class Arch>
class TileQueue {
 public:
  static constexpr int slots = 2;  // the leader may be one item ahead

  struct Storage {
    int item[slots];
  };

  /// What teams of a launch share: zeros before, and zeros again after it
  struct Counter {
    int drawn;
    int teams_done;
  };

  __device__ TileQueue(Team<Arch>& team, Storage& storage, Counter* counter, int items, int rank, int teams)
      : m_team(team),
        m_storage(storage),
        m_counter(counter),
        m_items(items),
        m_rank(rank),
        m_teams(teams),
        m_full(team.new_barriers(slots, 1)),
        m_free(team.new_barriers(slots, Team<Arch>::warps + team.loading_warps() - 1)) {}

  /// f(item) for each item of this team, by its leading warp
  template <class F>
  __device__ void lead(F const& f) {
    int next = m_rank;  // lane 0 knows it
    SPOROS_NO_UNROLL
    for (;;) {
      int const item = __shfl_sync(~0u, next, 0);
      m_team.wait(m_free + m_place.stage, m_place.parity ^ 1);
      m_team.for_one_lane([&] {
        static_cast<int volatile*>(m_storage.item)[m_place.stage] = item;
        m_team.arrive_alone(m_full + m_place.stage);
      });
      m_place.advance();
      if (item >= m_items) break;
      m_team.for_one_lane([&] { next = m_teams + atomicAdd(&m_counter->drawn, 1); });
      f(item);
    }
    m_team.for_one_lane([&] { retire(); });
  }

  /// The same in every other warp that takes part
  template <class F>
  __device__ void follow(F const& f) {
    SPOROS_NO_UNROLL
    for (;;) {
      m_team.wait(m_full + m_place.stage, m_place.parity);
      int const item = static_cast<int volatile*>(m_storage.item)[m_place.stage];
      m_team.arrive(m_free + m_place.stage);
      m_place.advance();
      if (item >= m_items) break;
      f(__shfl_sync(~0u, item, 0));
    }
  }

 private:
  /// The last team leaves the counter as it was.
  __device__ void retire() {
    if (atomicAdd(&m_counter->teams_done, 1) < m_teams - 1) return;
    m_counter->drawn = 0;
    m_counter->teams_done = 0;
  }

  Team<Arch>& m_team;
  Storage& m_storage;
  Counter* m_counter;
  int m_items, m_rank, m_teams;
  typename Team<Arch>::Barriers m_full, m_free;
  RingPlace<slots> m_place;
};

/// Scratch of a team that runs Work, from a multiple of `alignment` on
template <class Arch, class Work>
struct TeamScratch {
  using Tile = typename Work::Tile::Scratch;
  using Barriers = typename Team<Arch>::BarrierStorage;
  using Queue = typename TileQueue<Arch>::Storage;

  // Not members of a struct: its size would be rounded up by a kilobyte.
  static constexpr int alignment = alignof(Tile);
  static constexpr int barriers = int(sizeof(Tile));
  static constexpr int queue = barriers + int(sizeof(Barriers));
  static constexpr int bytes = queue + int(sizeof(Queue));
};

/// Both roles of one team; nothing where this is compiled for another GPU. Work has
///     Tile                               a body with produce() and consume()
///     items()                            how many there are in the launch
///     work.produce(tile, item), work.consume(tile, item)
template <class Arch, class Work>
__device__ __forceinline__ void run_team(Work const& work, unsigned char* scratch, TensorMap const* maps,
                                         typename TileQueue<Arch>::Counter* counter, int rank, int teams) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Scratch = TeamScratch<Arch, Work>;
  Team<Arch> team(*reinterpret_cast<typename Scratch::Barriers*>(scratch + Scratch::barriers), maps);
  typename Work::Tile tile(team, *reinterpret_cast<typename Scratch::Tile*>(scratch));
  TileQueue<Arch> queue(team, *reinterpret_cast<typename Scratch::Queue*>(scratch + Scratch::queue), counter,
                        work.items(), rank, teams);
  team.start();
  if (team.loads()) {
    team.give_registers();
    auto const produce = [&](int item) { work.produce(tile, item); };
    // Twice, for the compiler to see which way blocks are loaded: registers are few here.
    if (team.has_maps()) {
      if (team.is_first_loading_warp()) queue.lead(produce);
    } else if (team.is_first_loading_warp()) {
      queue.lead(produce);
    } else {
      queue.follow(produce);
    }
  } else {
    team.take_registers();
    queue.follow([&](int item) { work.consume(tile, item); });
  }
#endif
}

}  // namespace Sporos::inline SPOROS_LEVEL
#endif

#endif
