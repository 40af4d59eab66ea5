// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_STATEACCESS_HPP
#define SPOROS_STATEACCESS_HPP

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_GradientReducer.hpp"
#include "Sporos_ShardedState.hpp"
#include "impl/Sporos_DeviceCollectives.hpp"
#include "impl/Sporos_Event.hpp"
#include "impl/Sporos_Exchange.hpp"

namespace Sporos {

/// How a model reaches a state, unit by unit. It need not know what of it is here and what on other ranks.
///
/// This class is for a state of which everything is here; ShardedAccess is for the others.
template <class ExecutionSpace, class T>
class StateAccess {
 public:
  using State = ShardedState<ExecutionSpace, T>;
  using Compute = typename State::Compute;

  /// \throws InvalidArgument unless the state holds all parameters and gradients
  explicit StateAccess(State const& state) : StateAccess(state, true) {}
  virtual ~StateAccess() = default;
  StateAccess(StateAccess const&) = delete;
  StateAccess& operator=(StateAccess const&) = delete;

  StateLayout const& layout() const { return m_state.layout(); }

  /// The parameters of a unit, for work enqueued on the state's space until release(unit)
  /// \param next the unit that is asked for next, if any: it is fetched meanwhile
  virtual T* parameters(std::size_t unit, std::optional<std::size_t> next) {
    (void)next;
    return m_state.parameters().data() + m_units[unit].first;
  }
  virtual void release(std::size_t unit) { (void)unit; }

  /// Where a backward pass adds the gradients of a unit
  virtual Compute* gradients(std::size_t unit) { return m_state.gradients().data() + m_units[unit].first; }

  /// The kernels that add to a unit's gradients in this backward pass have been enqueued. Each pass reports every unit once.
  virtual void ready(std::size_t unit) { (void)unit; }

 protected:
  StateAccess(State const& state, bool needs_all) : m_state(state), m_units(state.layout().units()) {
    SPOROS_THROW_IF(needs_all && state.is_shared(ZeroStage::gradients) && state.sharding().ranks > 1,
                    "the state is shared out over ", state.sharding().ranks, " ranks in stage ",
                    int(state.sharding().stage), "; it needs a ShardedAccess");
  }

  State m_state;
  std::vector<Interval> m_units;
};

namespace Impl {

/// Buffers of the size of a unit, lent and given back. There are as many of a size as were lent at once.
template <class ExecutionSpace, class Element>
class UnitPool {
 public:
  UnitPool(ExecutionSpace const& space, std::string label) : m_space(space), m_label(std::move(label)) {}

  struct Buffer {
    Kokkos::View<Element*, typename ExecutionSpace::memory_space> elements;
    std::optional<std::size_t> user;  ///< the unit
    std::int64_t leaves = -1;         ///< when it was given to be sent; it is free again after that
  };

  /// All of this size
  std::vector<Buffer*> of_size(std::int64_t size) {
    std::vector<Buffer*> found;
    for (Buffer& buffer : m_buffers)
      if (std::int64_t(buffer.elements.extent(0)) == size) found.push_back(&buffer);
    return found;
  }

  /// One that nobody uses, a new one if need be
  Buffer& lend(std::size_t user, std::int64_t size) {
    for (Buffer* const buffer : of_size(size))
      if (!buffer->user) return lend(user, *buffer);
    Buffer& made = m_buffers.emplace_back();
    made.elements =
        decltype(made.elements)(Kokkos::view_alloc(m_space, Kokkos::WithoutInitializing, m_label), std::size_t(size));
    return lend(user, made);
  }

  static Buffer& lend(std::size_t user, Buffer& buffer) {
    buffer.user = user;
    buffer.leaves = -1;
    return buffer;
  }

  std::size_t bytes() const {
    std::size_t bytes = 0;
    for (Buffer const& buffer : m_buffers) bytes += buffer.elements.extent(0) * sizeof(Element);
    return bytes;
  }

 private:
  ExecutionSpace m_space;
  std::string m_label;
  std::deque<Buffer> m_buffers;  // deque: a buffer does not move
};

}  // namespace Impl

/// Access to a state that is shared out over ranks, in any stage; collective in all it does.
///
/// Parameters are gathered one unit ahead: after each change of them, or in stage 3 each time they are asked for, into a buffer
/// that is free again after their release. Gradients go to a GradientReducer as soon as they are reported. In stages 0 and 1
/// they are added up in the state's buffer over the rounds of a step, and reduced in the last; in the stages above, and
/// wherever contributions are summed as a tree, they are reduced in every round.
///
///     access.begin_step();
///     for each round:
///       access.begin_round(...);
///       ... a backward pass, or on a rank that has none the same calls of parameters(), release() and ready() ...
///     access.finish_step();             // now the state's gradients are the sums of the owned parts, in stage 0 of all
///     ... the optimizer updates the owned parts of the state ...
///     access.parameters_changed();
template <class ExecutionSpace, class T>
class ShardedAccess final : public StateAccess<ExecutionSpace, T> {
 public:
  using Base = StateAccess<ExecutionSpace, T>;
  using State = typename Base::State;
  using Compute = typename Base::Compute;

  struct Options {
    std::size_t bucket_bytes = 16'000'000;  ///< see GradientReducer
    std::int64_t tree_leaves = 0;           ///< see GradientReducer
  };

  /// The state must have been made for this communicator's rank and size.
  ShardedAccess(Communicator const& communicator, State const& state, Options const& options)
      : Base(state, false),
        m_communicator(checked(communicator, state).duplicate()),
        m_collectives(m_communicator),
        m_copy_space(Impl::copy_instance(state.space())),
        m_accumulates(!state.is_shared(ZeroStage::gradients) && options.tree_leaves == 0),
        m_reducer(communicator, state.space(), state.layout(), state.gradients(),
                  {options.bucket_bytes, options.tree_leaves, !state.is_shared(ZeroStage::optimizer)}),
        m_gathered_pool(state.space(), "Sporos::ShardedAccess::parameters"),
        m_gradient_pool(state.space(), "Sporos::ShardedAccess::gradients"),
        m_gathered(m_units.size()),
        m_contribution(m_units.size(), nullptr),
        m_lent(m_units.size(), nullptr),
        m_touched(m_units.size(), false) {
    for (auto& exchange : m_exchanges) exchange.emplace(m_communicator, m_collectives, m_copy_space);
  }

  void begin_step() {
    m_reducer.begin_step();
    m_step_contributors.clear();
    m_touched.assign(m_units.size(), false);
  }

  /// \param contributors the ranks that have a backward pass in this round, ascending; the same on all ranks
  /// \param is_last      whether it is the last round of the step
  void begin_round(std::vector<int> const& contributors, bool is_last) {
    for (int const rank : contributors)
      if (!contains(m_step_contributors, rank)) m_step_contributors.push_back(rank);
    std::sort(m_step_contributors.begin(), m_step_contributors.end());
    m_reduces = is_last || !m_accumulates;
    if (m_reduces) m_reducer.begin_round(m_accumulates ? m_step_contributors : contributors);
    m_contribution.assign(m_units.size(), nullptr);
  }

  void finish_step() { m_reducer.finish_step(); }

  /// The owned parts of the parameters are new: by an update, from a checkpoint, as initial weights.
  void parameters_changed() {
    for (std::size_t unit = 0; unit < m_units.size(); ++unit) {
      finish_gather(unit);
      if (m_gathered[unit].buffer) release(unit);
      m_gathered[unit].is_here = false;
    }
  }

  T* parameters(std::size_t unit, std::optional<std::size_t> next) override {
    if (!m_state.is_shared(ZeroStage::optimizer)) return Base::parameters(unit, next);
    start_gather(unit);
    if (next) start_gather(*next);
    finish_gather(unit);
    return place_of(unit);
  }

  void release(std::size_t unit) override {
    if (!m_state.is_shared(ZeroStage::parameters)) return;
    Gathered& gathered = m_gathered[unit];
    gathered.buffer->user.reset();
    gathered = {};
  }

  Compute* gradients(std::size_t unit) override {
    Compute*& place = m_contribution[unit];
    if (place) return place;
    Interval const range = m_units[unit];
    if (m_state.is_shared(ZeroStage::gradients)) {
      m_lent[unit] = &lend_gradients(unit);
      place = m_lent[unit]->elements.data();
    } else {
      m_reducer.wait(unit);
      place = Base::gradients(unit);
    }
    if (!m_accumulates || !m_touched[unit])
      Kokkos::deep_copy(m_state.space(), Unmanaged<Compute>(place, std::size_t(range.size())), Compute(0));
    m_touched[unit] = true;
    return place;
  }

  void ready(std::size_t unit) override {
    if (!m_reduces) return;
    Compute* const earlier = m_accumulates && m_touched[unit] ? Base::gradients(unit) : nullptr;
    m_reducer.ready(unit, m_contribution[unit] ? m_contribution[unit] : earlier);
    if (m_contribution[unit] && m_lent[unit]) m_lent[unit]->leaves = m_next_leave++;
  }

  struct Bytes {
    std::size_t parameters, gradients, communication;
    std::size_t sum() const { return parameters + gradients + communication; }
  };
  /// What it holds besides the state: units in use, buckets on their way. Known after the first step.
  Bytes bytes() const {
    std::size_t exchanges = 0;
    for (auto const& exchange : m_exchanges) exchanges += exchange->bytes();
    return {m_gathered_pool.bytes(), m_gradient_pool.bytes(), m_reducer.bytes() + exchanges};
  }

 private:
  using Base::m_state;
  using Base::m_units;
  using Exchange = Impl::Exchange<ExecutionSpace, T>;
  using GatheredPool = Impl::UnitPool<ExecutionSpace, T>;
  using GradientPool = Impl::UnitPool<ExecutionSpace, Compute>;
  template <class Element>
  using Unmanaged =
      Kokkos::View<Element*, typename ExecutionSpace::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  /// Where the gathering of a unit is
  struct Gathered {
    bool is_here = false;
    std::optional<std::size_t> exchange;              ///< on its way by this one
    typename GatheredPool::Buffer* buffer = nullptr;  ///< in stage 3
  };

  static Communicator const& checked(Communicator const& communicator, State const& state) {
    SPOROS_THROW_IF(state.sharding().rank != communicator.rank() || state.sharding().ranks != communicator.size(),
                    "the state was made for rank ", state.sharding().rank, " of ", state.sharding().ranks,
                    ", the communicator has rank ", communicator.rank(), " of ", communicator.size());
    return communicator;
  }

  static bool contains(std::vector<int> const& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }

  T* place_of(std::size_t unit) {
    return m_gathered[unit].buffer ? m_gathered[unit].buffer->elements.data() : Base::parameters(unit, std::nullopt);
  }

  void start_gather(std::size_t unit) {
    Gathered& gathered = m_gathered[unit];
    if (gathered.is_here || gathered.exchange) return;
    std::size_t const free = m_in_flight[0] ? 1 : 0;
    if (m_in_flight[free]) finish_gather(*m_in_flight[free]);
    if (m_state.is_shared(ZeroStage::parameters)) gathered.buffer = &m_gathered_pool.lend(unit, m_units[unit].size());
    // After the update of the parameters, and after the last kernel that read this buffer
    m_given.record(m_state.space());
    m_given.hold_back(m_copy_space);

    T* const place = place_of(unit);
    int const rank = m_communicator.rank(), size = m_communicator.size();
    OwnedPart const& mine = m_state.owned()[unit];
    auto const own = m_state.part(m_state.parameters(), mine);
    if (gathered.buffer)
      Kokkos::deep_copy(m_copy_space, Unmanaged<T>(place + (mine.range.first - m_units[unit].first), own.extent(0)),
                        own);
    typename Exchange::Messages sends, receives;
    for (int distance = 1; distance < size; ++distance) {
      int const other = (rank + distance) % size;
      Interval const theirs = m_state.layout().owned(unit, other, size);
      if (own.extent(0) > 0) sends.push_back({other, own.data(), std::int64_t(own.extent(0))});
      if (theirs.size() > 0) receives.push_back({other, place + (theirs.first - m_units[unit].first), theirs.size()});
    }
    gathered.exchange = free;
    m_in_flight[free] = unit;
    m_exchanges[free]->start(std::move(sends), std::move(receives), int(m_next_gather++ % 8192));
  }

  void finish_gather(std::size_t unit) {
    Gathered& gathered = m_gathered[unit];
    if (!gathered.exchange) return;
    m_exchanges[*gathered.exchange]->wait();
    m_in_flight[*gathered.exchange].reset();
    gathered.exchange.reset();
    gathered.is_here = true;
    m_arrived.record(m_copy_space);
    m_arrived.hold_back(m_state.space());
  }

  /// A buffer that nobody uses, or one that has been sent. Two will do for units of one size: one is written, the other is on
  /// its way.
  typename GradientPool::Buffer& lend_gradients(std::size_t unit) {
    std::int64_t const size = m_units[unit].size();
    typename GradientPool::Buffer* oldest = nullptr;
    auto const buffers = m_gradient_pool.of_size(size);
    for (auto* const buffer : buffers)
      if (buffer->leaves >= 0 && (!oldest || buffer->leaves < oldest->leaves)) oldest = buffer;
    auto const units_of_size =
        std::count_if(m_units.begin(), m_units.end(), [&](Interval const& one) { return one.size() == size; });
    std::size_t const enough = units_of_size == 1 ? 1 : 2;
    if (oldest && (buffers.size() >= enough || m_reducer.is_finished(*oldest->user))) {
      m_reducer.wait(*oldest->user);
      return GradientPool::lend(unit, *oldest);
    }
    return m_gradient_pool.lend(unit, size);
  }

  Communicator m_communicator;  // its own, so that no other message is matched with a unit
  Impl::DeviceCollectives<ExecutionSpace> m_collectives;
  ExecutionSpace m_copy_space;
  bool m_accumulates;
  GradientReducer<ExecutionSpace, Compute> m_reducer;
  GatheredPool m_gathered_pool;
  GradientPool m_gradient_pool;

  std::array<std::optional<Exchange>, 2> m_exchanges;  // of the unit that is waited for, and of the next
  std::array<std::optional<std::size_t>, 2> m_in_flight;
  std::vector<Gathered> m_gathered;
  std::int64_t m_next_gather = 0;
  Impl::Event<ExecutionSpace> m_given, m_arrived;

  std::vector<int> m_step_contributors;
  std::vector<Compute*> m_contribution;  // of each unit in this round
  std::vector<typename GradientPool::Buffer*> m_lent;
  std::vector<bool> m_touched;  // whether a unit has been added to in this step
  std::int64_t m_next_leave = 0;
  bool m_reduces = false;
};

}  // namespace Sporos

#endif
