// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_EXCHANGE_HPP
#define SPOROS_EXCHANGE_HPP

#include <mpi.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_StorageTypes.hpp"
#include "impl/Sporos_DeviceCollectives.hpp"
#include "impl/Sporos_Event.hpp"

namespace Sporos {

/// Whether MPI takes device pointers: GPU-aware MPICH, Cray MPICH. The environment variable SPOROS_GPU_AWARE_MPI=0|1
/// overrules the answer.
bool mpi_takes_device_memory();

namespace Impl {

template <class Element>
MPI_Datatype mpi_type() {
  static_assert(std::is_same_v<Element, double> || std::is_same_v<Element, float> || std::is_same_v<Element, bfloat16>);
  if constexpr (std::is_same_v<Element, bfloat16>) return MPI_UINT16_T;
  return std::is_same_v<Element, double> ? MPI_DOUBLE : MPI_FLOAT;
}

/// The instance on which data are moved beside the kernels of `space`; on a host there is no beside.
template <class ExecutionSpace>
ExecutionSpace copy_instance(ExecutionSpace const& space) {
  if constexpr (executes_on_host<ExecutionSpace>)
    return space;
  else
    return Kokkos::Experimental::partition_space(space, 1).front();
}

/// One round of messages between ranks, under way while other things are computed. By NCCL or RCCL where they are available;
/// else by MPI, through pinned host memory where it does not take device memory.
///
/// Every pair of ranks agrees on count and order of its messages of one tag.
template <class ExecutionSpace, class Element>
class Exchange {
 public:
  using Messages = std::vector<Message<Element>>;

  /// \param space where messages become ready and arrive: an instance for moving data
  Exchange(Communicator const& communicator, DeviceCollectives<ExecutionSpace>& collectives,
           ExecutionSpace const& space)
      : m_communicator(communicator), m_collectives(collectives), m_space(space) {}
  Exchange(Exchange const&) = delete;
  Exchange& operator=(Exchange const&) = delete;

  /// What is sent is ready when the work enqueued on the space so far is done. Nobody touches it or the places of what is
  /// received until the messages have arrived.
  void start(Messages sends, Messages receives, int tag) {
    m_sends = std::move(sends);
    m_receives = std::move(receives);
    m_tag = tag;
    if (m_sends.empty() && m_receives.empty()) return;
    if (m_collectives.available()) return m_collectives.exchange(m_space, m_sends, m_receives);
    stage_out();
    m_ready.record(m_space);
    m_state = State::leaving;
    advance();
  }

  /// Goes as far as it gets without waiting. True when all has arrived, for work enqueued on the space from now on.
  bool advance() {
    if (m_state == State::leaving && m_ready.done()) post();
    if (m_state == State::travelling) {
      int arrived = 0;
      MPI_Testall(int(m_requests.size()), m_requests.data(), &arrived, MPI_STATUSES_IGNORE);
      if (arrived) bring_in();
    }
    return m_state == State::idle;
  }

  void wait() {
    if (m_state == State::leaving) {
      m_ready.wait();
      post();
    }
    if (m_state == State::travelling) {
      MPI_Waitall(int(m_requests.size()), m_requests.data(), MPI_STATUSES_IGNORE);
      bring_in();
    }
  }

  std::size_t bytes() const { return m_staging.extent(0) * sizeof(Element); }

 private:
  enum class State { idle, leaving, travelling };
  using Staging = Kokkos::View<Element*, StagingSpace>;

  static constexpr bool on_host = executes_on_host<ExecutionSpace>;
  bool staged() const { return !on_host && !m_on_device; }

  auto device_view(Message<Element> const& message) const {
    return Kokkos::View<Element*, typename ExecutionSpace::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
        message.data, std::size_t(message.count));
  }

  /// Calls function(message, its place in pinned memory): what is sent first, then what is received.
  template <class Function>
  void for_each_staged(Messages const& messages, std::int64_t begin, Function const& function) {
    for (Message<Element> const& message : messages) {
      function(message, Staging(Kokkos::subview(m_staging, std::pair(begin, begin + message.count))));
      begin += message.count;
    }
  }

  static std::int64_t total(Messages const& messages) {
    std::int64_t count = 0;
    for (Message<Element> const& message : messages) count += message.count;
    return count;
  }

  void stage_out() {
    if (!staged()) return;
    std::int64_t const needed = total(m_sends) + total(m_receives);
    if (std::int64_t(m_staging.extent(0)) < needed) {
      m_space.fence("Sporos::Exchange: staging grows");
      m_staging =
          Staging(Kokkos::view_alloc(Kokkos::WithoutInitializing, "Sporos::Exchange::staging"), std::size_t(needed));
    }
    for_each_staged(m_sends, 0, [&](Message<Element> const& message, Staging const& place) {
      Kokkos::deep_copy(m_space, place, device_view(message));
    });
  }

  void post() {
    Messages sends = m_sends, receives = m_receives;
    if (staged()) {
      std::size_t next = 0;
      for_each_staged(m_sends, 0, [&](auto const&, Staging const& place) { sends[next++].data = place.data(); });
      next = 0;
      for_each_staged(m_receives, total(m_sends),
                      [&](auto const&, Staging const& place) { receives[next++].data = place.data(); });
    }
    m_requests.clear();
    // Receives first: what arrives then has its place.
    for (Message<Element> const& message : receives)
      for_each_piece(message, [&](Element* data, int count) {
        MPI_Irecv(data, count, mpi_type<Element>(), message.rank, m_tag, m_communicator.handle(), next_request());
      });
    for (Message<Element> const& message : sends)
      for_each_piece(message, [&](Element* data, int count) {
        MPI_Isend(data, count, mpi_type<Element>(), message.rank, m_tag, m_communicator.handle(), next_request());
      });
    m_state = State::travelling;
  }

  MPI_Request* next_request() { return &m_requests.emplace_back(MPI_REQUEST_NULL); }

  // MPI 3 counts in int.
  template <class Function>
  static void for_each_piece(Message<Element> const& message, Function const& function) {
    constexpr std::int64_t largest = std::int64_t(1) << 28;
    for (std::int64_t begin = 0; begin < message.count; begin += largest)
      function(message.data + begin, int(std::min(largest, message.count - begin)));
  }

  void bring_in() {
    m_state = State::idle;
    if (!staged()) return;
    for_each_staged(m_receives, total(m_sends), [&](Message<Element> const& message, Staging const& place) {
      Kokkos::deep_copy(m_space, device_view(message), place);
    });
  }

  Communicator const& m_communicator;
  DeviceCollectives<ExecutionSpace>& m_collectives;
  ExecutionSpace m_space;
  bool m_on_device = !on_host && mpi_takes_device_memory();
  State m_state = State::idle;
  Messages m_sends, m_receives;
  int m_tag = 0;
  Event<ExecutionSpace> m_ready;
  Staging m_staging;
  std::vector<MPI_Request> m_requests;
};

}  // namespace Impl
}  // namespace Sporos

#endif
