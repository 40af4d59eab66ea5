// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GRADIENTREDUCER_HPP
#define SPOROS_GRADIENTREDUCER_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_ShardedState.hpp"
#include "Sporos_StateLayout.hpp"
#include "impl/Sporos_DeviceCollectives.hpp"
#include "impl/Sporos_Event.hpp"
#include "impl/Sporos_Exchange.hpp"

namespace Sporos {
namespace Impl {

/// The same elements of the gradients of several ranks, in rank order: one of them in the rank's own buffer, the others where
/// they were received, one after another
template <class C>
struct Contributions {
  int count;
  int own;  ///< which of them is the rank's own; −1: none
  C const* own_gradient;
  C const* received;
  std::int64_t stride;

  KOKKOS_FUNCTION C operator()(int source, std::int64_t i) const {
    if (source == own) return own_gradient[i];
    int const place = own >= 0 && source > own ? source - 1 : source;
    return received[place * stride + i];
  }
};

/// sum = contribution 0 + contribution 1 + …, or sum += contribution 0, then contribution 1, …
template <class C>
struct SumInOrder {
  Contributions<C> contributions;
  bool is_first;
  C* sum;  // may be the rank's own contribution

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    C total = is_first ? contributions(0, i) : sum[i] + contributions(0, i);
    for (int source = 1; source < contributions.count; ++source) total += contributions(source, i);
    sum[i] = total;
  }
};

/// Adds leaves to a binary counter: level l holds the sum of 2^l leaves where bit l of the number of leaves so far is set. A
/// new leaf is carried upwards, as in 0111 + 1, and each carry is the addition of two siblings.
template <class C>
struct AddLeaves {
  Contributions<C> contributions;
  std::int64_t first_leaf;
  C* levels;
  std::int64_t level_size;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for (int source = 0; source < contributions.count; ++source) {
      std::int64_t const leaf = first_leaf + source;
      C sum = contributions(source, i);
      int level = 0;
      for (; (leaf >> level & 1) != 0; ++level) sum = levels[level * level_size + i] + sum;
      levels[level * level_size + i] = sum;
    }
  }
};

/// The root of the tree: from the right, each incomplete subtree is added to the complete one on its left.
template <class C>
struct SumOfLevels {
  std::int64_t leaves;
  C const* levels;
  std::int64_t level_size;
  C* sum;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    bool is_first = true;
    C total = 0;
    for (int level = 0; leaves >> level != 0; ++level) {
      if ((leaves >> level & 1) == 0) continue;
      C const subtree = levels[level * level_size + i];
      total = is_first ? subtree : subtree + total;
      is_first = false;
    }
    sum[i] = total;
  }
};

}  // namespace Impl

/// Sums gradients over ranks and micro-batches while the backward pass is still at work: every rank gets the sums of the parts
/// that it owns, and with `everywhere` all others too. A unit is on its way as soon as it is reported.
///
///     reducer.begin_step();
///     for each round:
///       reducer.begin_round(which ranks contribute);
///       ... backward pass, calling reducer.ready(unit, its gradients) for each finished unit ...
///     reducer.finish_step();
///
/// The order of additions is fixed: over the rounds, and in each over the ranks in order. So sums have the same bits on all
/// ranks and in every run, whatever the sizes of buckets and units.
///
/// With `tree_leaves` the order does not even depend on the number of ranks: the contributions of a step, counted through, are
/// the leaves of a binary tree: the left half of n leaves are as many as the largest power of two below n. An owner keeps one
/// sum for each of the ⌊log₂ leaves⌋ + 1 levels.
///
/// Owners receive the contributions of all ranks and add them, so each element travels once, as in a reduce-scatter. On a GPU
/// this happens on an instance of its own beside the kernels; by NCCL or RCCL if Sporos was built with it and every rank has a
/// GPU to itself, else by MPI.
///
/// A rank that leaves a step by an exception must end the program by MpiEnvironment::abort: the other ranks wait for it. (The
/// destructor does not, or the abort would never be reached.)
template <class ExecutionSpace, class C>
class GradientReducer {
 public:
  using Gradients = Kokkos::View<C*, typename ExecutionSpace::memory_space>;

  struct Options {
    /// So much is exchanged at a time, on all ranks together; two of them are under way at once. 4 to 64 MB.
    std::size_t bucket_bytes = 16'000'000;
    /// Contributions of a step that are summed as a tree; 0: in the order of rounds and ranks
    std::int64_t tree_leaves = 0;
    /// Whether every rank gets all sums; the buffer must hold all elements
    bool everywhere = false;
  };

  /// \param space the instance that the backward pass runs on
  /// \param sums  holds all elements, or the parts that this rank owns. Gradients may be reported from their places in it.
  GradientReducer(Communicator const& communicator, ExecutionSpace const& space, StateLayout const& layout,
                  Gradients const& sums, Options const& options)
      : m_communicator(communicator.duplicate()),
        m_collectives(m_communicator),
        m_space(space),
        m_copy_space(Impl::copy_instance(space)),
        m_layout(layout),
        m_units(layout.units()),
        m_owned(layout.owned(communicator.rank(), communicator.size())),
        m_sums(sums),
        m_options(options),
        m_unfinished(m_units.size(), 0) {
    std::int64_t const all = layout.size(), mine = m_owned.back().offset + m_owned.back().range.size();
    std::int64_t const extent = std::int64_t(sums.extent(0));
    SPOROS_THROW_IF(extent != all && (extent != mine || options.everywhere), "the buffer for the sums has ", extent,
                    " elements; all have ", all, ", the parts of this rank ", mine);
    SPOROS_THROW_IF(options.tree_leaves < 0, "the tree has ", options.tree_leaves, " leaves");
    m_sums_hold_all = extent == all;
    std::int64_t const granules =
        std::int64_t(options.bucket_bytes / sizeof(C)) / communicator.size() / StateLayout::granule;
    m_bucket = std::max<std::int64_t>(granules, 1) * StateLayout::granule;
    std::int64_t longest = 0;
    for (OwnedPart const& part : m_owned) longest = std::max(longest, part.range.size());
    auto const others = std::int64_t(communicator.size() - 1);
    for (Slot& slot : m_slots) {
      slot.exchange.emplace(m_communicator, m_collectives, m_copy_space);
      slot.received =
          Gradients(view_alloc("Sporos::GradientReducer::received"), std::size_t(others * std::min(m_bucket, longest)));
    }
    if (options.tree_leaves > 0) {
      m_level_size = mine;
      auto const levels = std::int64_t(std::bit_width(std::uint64_t(options.tree_leaves)));
      m_levels = Gradients(view_alloc("Sporos::GradientReducer::levels"), std::size_t(levels * m_level_size));
    }
  }
  GradientReducer(GradientReducer const&) = delete;
  GradientReducer& operator=(GradientReducer const&) = delete;

  void begin_step() {
    SPOROS_THROW_IF(m_running, "the step before has not been finished");
    m_leaves = 0;
  }

  /// \param contributors the ranks that report gradients in this round, ascending; the same on all ranks
  void begin_round(std::vector<int> const& contributors) {
    SPOROS_THROW_IF(contributors.empty() || contributors.front() < 0 || contributors.back() >= m_communicator.size() ||
                        !std::is_sorted(contributors.begin(), contributors.end()),
                    "the contributing ranks are out of order or not among 0 to ", m_communicator.size() - 1);
    SPOROS_THROW_IF(m_running && m_options.everywhere && m_options.tree_leaves == 0,
                    "sums that go everywhere are made in one round");
    if (m_running) require_all_reported();
    m_round = {contributors, m_leaves, !m_running};
    m_running = true;
    m_leaves += std::int64_t(contributors.size());
    m_reported.assign(m_units.size(), false);
  }

  /// The kernels that write the gradients of this unit have been enqueued. All ranks report all units in the same order in
  /// each round, those that do not contribute with a null pointer.
  /// \param gradients the unit's first element. Nobody touches them before wait(unit).
  void ready(std::size_t unit, C* gradients) {
    SPOROS_THROW_IF(!m_running, "begin_round() has not been called");
    SPOROS_THROW_IF(unit >= m_units.size(), "unit ", unit, " of ", m_units.size());
    SPOROS_THROW_IF(m_reported[unit], "unit ", unit, " was reported before in this round");
    bool const contributes = contribution_of(m_round, m_communicator.rank()) >= 0;
    SPOROS_THROW_IF(contributes != (gradients != nullptr), "rank ", m_communicator.rank(),
                    contributes ? " contributes to" : " does not contribute to", " this round, but reports unit ", unit,
                    gradients ? " with gradients" : " without gradients");
    m_reported[unit] = true;
    m_produced.record(m_space);
    m_produced.hold_back(m_copy_space);
    std::int64_t const first = m_next_number;
    for_each_bucket(unit, [&](std::int64_t begin, std::int64_t end) {
      enqueue({Stage::sum, unit, begin, end, gradients, m_round});
    });
    // In the queue now, not when the sums are made: the order of messages must not depend on time.
    if (m_options.everywhere && m_options.tree_leaves == 0) enqueue_everywhere(unit, first);
    advance();
  }

  /// Returns when a unit's gradients as last reported have been added; work enqueued on the space from now on may write there.
  void wait(std::size_t unit) {
    while (m_unfinished[unit] > 0) wait_for_oldest();
    give_back();
  }

  /// Whether wait(unit) would return at once
  bool is_finished(std::size_t unit) {
    advance();
    return m_unfinished[unit] == 0;
  }

  /// Waits for the network, not for the device: work enqueued on the space from now on finds the sums.
  void finish_step() {
    Kokkos::Profiling::ScopedRegion region("Sporos::GradientReducer::finish_step");
    SPOROS_THROW_IF(!m_running, "begin_round() has not been called");
    require_all_reported();
    while (!m_buckets.empty()) wait_for_oldest();
    if (m_options.tree_leaves > 0) sum_levels();
    give_back();
    m_running = false;
  }

  /// What it holds besides the sums: sums of subtrees, and buckets on their way
  std::size_t bytes() const {
    std::size_t bytes = m_levels.extent(0) * sizeof(C);
    for (Slot const& slot : m_slots) bytes += slot.received.extent(0) * sizeof(C) + slot.exchange->bytes();
    return bytes;
  }

 private:
  struct Round {
    std::vector<int> contributors;
    std::int64_t first_leaf = 0;
    bool is_first = true;
  };

  enum class Stage { sum, everywhere };

  /// The elements [begin, end) of every owner's part of a unit, counted from the start of that part
  struct Bucket {
    Stage stage;
    std::size_t unit;
    std::int64_t begin, end;
    C* gradients;
    Round round;
    std::int64_t after = -1;  ///< the number of the bucket that must have ended before
    std::int64_t number = 0;
    bool started = false;
  };

  /// What a bucket needs while it is under way
  struct Slot {
    std::optional<Impl::Exchange<ExecutionSpace, C>> exchange;
    Gradients received;  // where others' contributions arrive
  };
  static constexpr std::size_t slots = 2;

  auto view_alloc(std::string const& label) const {
    return Kokkos::view_alloc(m_space, Kokkos::WithoutInitializing, label);
  }

  template <class Function>
  void for_each_bucket(std::size_t unit, Function const& function) const {
    std::int64_t const longest = m_layout.owned(unit, 0, m_communicator.size()).size();
    for (std::int64_t begin = 0; begin < longest; begin += m_bucket)
      function(begin, std::min(begin + m_bucket, longest));
  }

  /// The bucket's elements of a rank's part, as an interval of the flat index space
  Interval part_of(Bucket const& bucket, int rank) const {
    Interval const part = m_layout.owned(bucket.unit, rank, m_communicator.size());
    return {std::min(part.first + bucket.begin, part.last), std::min(part.first + bucket.end, part.last)};
  }

  C* sum_of(Bucket const& bucket) const {
    OwnedPart const& part = m_owned[bucket.unit];
    return m_sums.data() + (m_sums_hold_all ? part.range.first : part.offset) + bucket.begin;
  }

  static int contribution_of(Round const& round, int rank) {
    auto const found = std::lower_bound(round.contributors.begin(), round.contributors.end(), rank);
    return found != round.contributors.end() && *found == rank ? int(found - round.contributors.begin()) : -1;
  }

  void require_all_reported() const {
    for (std::size_t unit = 0; unit < m_units.size(); ++unit)
      SPOROS_THROW_IF(!m_reported[unit], "unit ", unit, " of ", m_units.size(), " was not reported");
  }

  /// Buckets of sums on their way to all ranks, each after the bucket that makes them: `first`, `first` + 1, … if any
  void enqueue_everywhere(std::size_t unit, std::optional<std::int64_t> first) {
    if (m_communicator.size() == 1) return;
    for_each_bucket(unit, [&](std::int64_t begin, std::int64_t end) {
      enqueue({Stage::everywhere, unit, begin, end, nullptr, {}, first ? (*first)++ : -1});
    });
  }

  void enqueue(Bucket bucket) {
    bucket.number = m_next_number++;
    ++m_unfinished[bucket.unit];
    m_buckets.push_back(std::move(bucket));
  }

  // Buckets are started and ended strictly in order: sums depend on it, and messages of NCCL are matched by it.
  void advance() {
    start_oldest();
    while (!m_buckets.empty() && slot_of(m_buckets.front()).exchange->advance()) end_oldest();
    for (Bucket const& bucket : m_buckets)
      if (bucket.started) slot_of(bucket).exchange->advance();
  }

  void wait_for_oldest() {
    start_oldest();
    slot_of(m_buckets.front()).exchange->wait();
    end_oldest();
  }

  Slot& slot_of(Bucket const& bucket) { return m_slots[std::size_t(bucket.number) % slots]; }

  void start_oldest() {
    for (std::size_t i = 0; i < std::min(slots, m_buckets.size()); ++i)
      if (!m_buckets[i].started && m_buckets[i].after < m_buckets.front().number) start(m_buckets[i]);
  }

  void end_oldest() {
    Bucket bucket = std::move(m_buckets.front());
    m_buckets.pop_front();
    if (bucket.stage == Stage::sum) add(bucket);
    --m_unfinished[bucket.unit];
    start_oldest();
  }

  void start(Bucket& bucket) {
    bucket.started = true;
    int const rank = m_communicator.rank(), size = m_communicator.size();
    std::vector<Impl::Message<C>> sends, receives;
    bool const is_sum = bucket.stage == Stage::sum;
    Interval const mine = part_of(bucket, rank);
    // Every rank begins with another partner, or all would send to rank 0 first.
    for (int distance = 1; distance < size; ++distance) {
      int const other = (rank + distance) % size;
      Interval const theirs = part_of(bucket, other);
      if (is_sum) {
        if (bucket.gradients && theirs.size() > 0)
          sends.push_back({other, bucket.gradients + (theirs.first - m_units[bucket.unit].first), theirs.size()});
      } else {
        if (mine.size() > 0) sends.push_back({other, m_sums.data() + mine.first, mine.size()});
        if (theirs.size() > 0) receives.push_back({other, m_sums.data() + theirs.first, theirs.size()});
      }
    }
    if (is_sum && mine.size() > 0) {
      C* place = slot_of(bucket).received.data();
      for (int const other : bucket.round.contributors) {
        if (other == rank) continue;
        receives.push_back({other, place, mine.size()});
        place += mine.size();
      }
    }
    // A tag of its own for each bucket under way; MPI guarantees no more than 32767 of them.
    slot_of(bucket).exchange->start(std::move(sends), std::move(receives), int(bucket.number % 8192));
  }

  void add(Bucket const& bucket) {
    Interval const mine = part_of(bucket, m_communicator.rank());
    C* const own = bucket.gradients ? bucket.gradients + (mine.first - m_units[bucket.unit].first) : nullptr;
    Impl::Contributions<C> const contributions{.count = int(bucket.round.contributors.size()),
                                               .own = contribution_of(bucket.round, m_communicator.rank()),
                                               .own_gradient = own,
                                               .received = slot_of(bucket).received.data(),
                                               .stride = mine.size()};
    if (m_options.tree_leaves > 0) {
      C* const levels = m_levels.data() + m_owned[bucket.unit].offset + bucket.begin;
      launch("Sporos::GradientReducer::add_leaves", mine.size(),
             Impl::AddLeaves<C>{contributions, bucket.round.first_leaf, levels, m_level_size});
      return;
    }
    C* const sum = sum_of(bucket);
    bool const is_there = bucket.round.is_first && contributions.count == 1 && own == sum;
    if (is_there) return;
    launch("Sporos::GradientReducer::sum", mine.size(), Impl::SumInOrder<C>{contributions, bucket.round.is_first, sum});
  }

  void sum_levels() {
    SPOROS_THROW_IF(m_leaves != m_options.tree_leaves, "the step had ", m_leaves, " contributions, the tree has ",
                    m_options.tree_leaves, " leaves");
    for (OwnedPart const& part : m_owned) {
      C* const sum = m_sums.data() + (m_sums_hold_all ? part.range.first : part.offset);
      launch("Sporos::GradientReducer::sum_levels", part.range.size(),
             Impl::SumOfLevels<C>{m_leaves, m_levels.data() + part.offset, m_level_size, sum});
      if (m_options.everywhere) enqueue_everywhere(part.unit, std::nullopt);
    }
    while (!m_buckets.empty()) wait_for_oldest();
  }

  template <class Functor>
  void launch(char const* label, std::int64_t size, Functor const& functor) const {
    using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;
    if (size > 0) Kokkos::parallel_for(label, Policy(m_copy_space, 0, size), functor);
  }

  /// What is enqueued on the space from now on comes after all that was moved and added.
  void give_back() {
    m_returned.record(m_copy_space);
    m_returned.hold_back(m_space);
  }

  Communicator m_communicator;  // its own, so that no other message is matched with a bucket
  Impl::DeviceCollectives<ExecutionSpace> m_collectives;
  ExecutionSpace m_space, m_copy_space;
  StateLayout m_layout;
  std::vector<Interval> m_units;
  std::vector<OwnedPart> m_owned;
  Gradients m_sums;
  Options m_options;
  bool m_sums_hold_all = true;
  std::int64_t m_bucket = 0;  // elements of each owner in a bucket
  std::array<Slot, slots> m_slots;
  Gradients m_levels;  // (levels, the parts of this rank)
  std::int64_t m_level_size = 0;

  std::deque<Bucket> m_buckets;            // under way or waiting for a slot
  std::vector<std::int64_t> m_unfinished;  // buckets of each unit
  std::int64_t m_next_number = 0;
  Impl::Event<ExecutionSpace> m_produced, m_returned;

  bool m_running = false;
  std::int64_t m_leaves = 0;
  Round m_round;
  std::vector<bool> m_reported;
};

}  // namespace Sporos

#endif
