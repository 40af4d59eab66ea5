// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_RING_HPP
#define SPOROS_RING_HPP

#include <Kokkos_Core.hpp>
#include <cstdint>

#include "Sporos_Communicator.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_DeviceCollectives.hpp"
#include "impl/Sporos_Event.hpp"
#include "impl/Sporos_Exchange.hpp"

namespace Sporos {

/// Blocks of one size that travel round a ring of ranks, from each to the next, while kernels work on what is there:
///
///     for (int step = 0; step < ring.size(); ++step) {
///       bool const goes_on = step + 1 < ring.size();
///       if (goes_on) ring.start(here, there);
///       ... kernels that read `here`, the block of rank ring.origin(step), with ring.advance() between them ...
///       if (goes_on) ring.finish();
///       std::swap(here, there);
///     }
///
/// By NCCL or RCCL where they are available, else by MPI. Collective: all ranks start blocks of the same size in the same order.
///
/// Element = double, float or bfloat16.
template <class ExecutionSpace, class Element>
class Ring {
 public:
  using Block = Kokkos::View<Element*, typename ExecutionSpace::memory_space>;

  /// \param space the instance of the kernels that write and read the blocks
  Ring(Communicator const& communicator, ExecutionSpace const& space)
      : m_communicator(communicator.duplicate()),
        m_collectives(m_communicator),
        m_space(space),
        m_copy_space(Impl::copy_instance(space)),
        m_exchange(m_communicator, m_collectives, m_copy_space) {}
  Ring(Ring const&) = delete;
  Ring& operator=(Ring const&) = delete;

  int rank() const { return m_communicator.rank(); }
  int size() const { return m_communicator.size(); }
  /// Whose block is here after `step` steps
  int origin(int step) const { return (rank() + size() - step % size()) % size(); }

  /// Sends a block to the next rank and receives that of the rank before. What is sent is ready, and the place of what is received
  /// free, when the work enqueued so far is done; nobody writes to either, nor reads the latter, before finish().
  void start(Block const& sent, Block const& received) {
    SPOROS_THROW_IF(m_running, "the block before has not been finished");
    SPOROS_THROW_IF(sent.extent(0) != received.extent(0), "a block of ", sent.extent(0),
                    " elements is sent, the place for the next has ", received.extent(0));
    SPOROS_THROW_IF(sent.data() == received.data() && sent.extent(0) > 0, "a block is received where one is sent from");
    m_running = true;
    m_given.record(m_space);
    m_given.hold_back(m_copy_space);
    auto const count = std::int64_t(sent.extent(0));
    int const next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
    m_exchange.start({{next, sent.data(), count}}, {{previous, received.data(), count}}, 0);
  }

  /// Lets the messages go on as far as they get without waiting. MPI makes progress in its calls only, so kernels that take long
  /// on a host are worth a call between them.
  void advance() { m_exchange.advance(); }

  /// Waits for the network, not for the device: work enqueued from now on finds the block, and may write over the one that was
  /// sent. Does nothing where no block is on its way.
  void finish() {
    if (!m_running) return;
    m_exchange.wait();
    m_arrived.record(m_copy_space);
    m_arrived.hold_back(m_space);
    m_running = false;
  }

  /// Pinned memory that it holds where MPI does not take device memory
  std::size_t bytes() const { return m_exchange.bytes(); }

 private:
  Communicator m_communicator;  // its own, so that no other message is matched with a block
  Impl::DeviceCollectives<ExecutionSpace> m_collectives;
  ExecutionSpace m_space, m_copy_space;
  Impl::Exchange<ExecutionSpace, Element> m_exchange;
  Impl::Event<ExecutionSpace> m_given, m_arrived;
  bool m_running = false;
};

}  // namespace Sporos

#endif
