// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GRADIENTREDUCER_HPP
#define SPOROS_GRADIENTREDUCER_HPP

#include <mpi.h>

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <type_traits>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_DeviceCollectives.hpp"
#include "impl/Sporos_Event.hpp"

namespace Sporos {

/// Whether nonblocking reductions take device pointers: GPU-aware MPICH, Cray MPICH. The environment variable
/// SPOROS_GPU_AWARE_MPI=0|1 overrules the answer.
bool mpi_reduces_on_device();

/// Sums a flat gradient buffer over all ranks while the backward pass is still filling it.
///
/// The buffer is cut into buckets, counted from its end, because the backward pass finishes the last layer first. A bucket
/// is on its way as soon as all of it has been reported by ready(). Sums are bitwise repeatable for one number of ranks and
/// one bucket size, and the same on all ranks.
///
///     reducer.begin();
///     ... backward pass, calling reducer.ready(first, last) for each finished range of the buffer ...
///     reducer.finish();
///
/// Between begin() and finish() MPI owns the buffer. A rank that leaves in between, by an exception, must end the program by
/// MpiEnvironment::abort: the other ranks wait for it. (The destructor does not, or the abort would never be reached.)
///
/// On a GPU, on an instance of its own beside the kernels: by NCCL or RCCL if Sporos was built with it and every rank has a
/// GPU to itself; else by MPI, through pinned host memory, or directly where MPI reduces on the device.
template <class ExecutionSpace, class C>
class GradientReducer {
 public:
  using Gradients = Kokkos::View<C*, typename ExecutionSpace::memory_space>;

  /// \param space         the instance that the backward pass runs on
  /// \param gradients     the buffer, the same size on all ranks
  /// \param bucket_bytes  4 to 64 MiB: smaller buckets start earlier, larger ones use the network better
  GradientReducer(Communicator const& communicator, ExecutionSpace const& space, Gradients const& gradients,
                  std::size_t bucket_bytes)
      : m_communicator(communicator.duplicate()),
        m_collectives(m_communicator),
        m_space(space),
        m_gradients(gradients),
        m_bucket_elements(std::int64_t(
            std::clamp<std::size_t>(bucket_bytes / sizeof(C), 1, std::size_t(std::numeric_limits<int>::max())))) {
    static_assert(std::is_same_v<C, float> || std::is_same_v<C, double>);
    if constexpr (!Impl::executes_on_host<ExecutionSpace>) {
      m_copy_space = Kokkos::Experimental::partition_space(space, 1).front();
      if (m_communicator.size() > 1 && !m_collectives.available() && !m_on_device)
        m_staging =
            Staging(Kokkos::view_alloc(Kokkos::WithoutInitializing, "Sporos::GradientReducer::staging"), size());
    }
    for (std::int64_t last = size(); last > 0; last -= m_bucket_elements)
      m_buckets.emplace_back(std::max<std::int64_t>(0, last - m_bucket_elements), last);
  }
  GradientReducer(GradientReducer const&) = delete;
  GradientReducer& operator=(GradientReducer const&) = delete;

  std::int64_t size() const { return std::int64_t(m_gradients.extent(0)); }

  /// Before the backward pass whose gradients are to be summed: the last micro-batch of a step
  void begin() {
    for (Bucket& bucket : m_buckets) bucket.missing = bucket.last - bucket.first;
    m_next_to_copy = m_next_to_send = m_next_to_return = 0;
    m_running = true;
  }

  /// The kernels that write elements [first, last) have been enqueued, and none that writes them follows. Each element is
  /// reported at most once. Every rank reports the same ranges in the same order, or else buckets wait for one another.
  /// Gaps between tensors belong to a range: a bucket with an element never reported waits for finish().
  /// \throws InvalidArgument when the range is out of bounds or overlaps one reported before
  void ready(std::int64_t first, std::int64_t last) {
    SPOROS_THROW_IF(!m_running, "begin() has not been called");
    SPOROS_THROW_IF(first < 0 || last < first || last > size(), "range [", first, ", ", last, ") of a buffer of ",
                    size());
    for (std::int64_t b = bucket_of(last - 1); first < last && b < std::int64_t(m_buckets.size()); ++b) {
      Bucket& bucket = m_buckets[std::size_t(b)];
      std::int64_t const begin = std::max(first, bucket.first), end = std::min(last, bucket.last);
      if (begin >= end) break;
      SPOROS_THROW_IF(bucket.missing < end - begin, "range [", first, ", ", last,
                      ") holds elements that were reported before");
      bucket.missing -= end - begin;
    }
    advance();
  }

  /// Whatever was not reported is ready now. Waits for the network, not for the device: work enqueued on the space from now
  /// on finds the sums in the buffer.
  void finish() {
    Kokkos::Profiling::ScopedRegion region("Sporos::GradientReducer::finish");
    SPOROS_THROW_IF(!m_running, "begin() has not been called");
    for (Bucket& bucket : m_buckets) bucket.missing = 0;
    advance();
    wait_for_all();
    m_running = false;
  }

 private:
  using Staging = Kokkos::View<C*, Impl::StagingSpace>;

  struct Bucket {
    Bucket(std::int64_t first_element, std::int64_t last_element) : first(first_element), last(last_element) {}
    std::int64_t first, last;
    std::int64_t missing = 0;
    Impl::Event<ExecutionSpace> available;  ///< where MPI may read it
    MPI_Request request = MPI_REQUEST_NULL;
  };

  std::int64_t bucket_of(std::int64_t element) const { return (size() - 1 - element) / m_bucket_elements; }
  bool staged() const { return m_staging.extent(0) > 0; }
  Bucket& bucket(std::size_t index) { return m_buckets[index]; }

  /// Moves every bucket as far as it gets without waiting. Strictly in order, for collectives are matched by order.
  void advance() {
    if (m_collectives.available()) return reduce_on_device();
    if (m_communicator.size() == 1) return;
    for (; m_next_to_copy < m_buckets.size() && bucket(m_next_to_copy).missing == 0; ++m_next_to_copy)
      take_over(bucket(m_next_to_copy));
    for (; m_next_to_send < m_next_to_copy && bucket(m_next_to_send).available.done(); ++m_next_to_send)
      send(bucket(m_next_to_send));
    for (; m_next_to_return < m_next_to_send; ++m_next_to_return) {
      int arrived = 0;
      MPI_Test(&bucket(m_next_to_return).request, &arrived, MPI_STATUS_IGNORE);  // this call moves all the others too
      if (!arrived) break;
      give_back(bucket(m_next_to_return));
    }
  }

  /// The host has nothing to do but to enqueue: the device waits for the bucket, and finish() lets the space wait for all.
  void reduce_on_device() {
    for (; m_next_to_copy < m_buckets.size() && bucket(m_next_to_copy).missing == 0; ++m_next_to_copy) {
      Bucket& ready = bucket(m_next_to_copy);
      ready.available.record(m_space);
      ready.available.hold_back(m_copy_space);
      m_collectives.all_reduce_sum(m_copy_space, m_gradients.data() + ready.first, ready.last - ready.first);
    }
    m_next_to_send = m_next_to_return = m_next_to_copy;
  }

  void wait_for_all() {
    for (; m_next_to_send < m_next_to_copy; ++m_next_to_send) {
      bucket(m_next_to_send).available.wait();
      send(bucket(m_next_to_send));
    }
    for (; m_next_to_return < m_next_to_send; ++m_next_to_return) {
      MPI_Wait(&bucket(m_next_to_return).request, MPI_STATUS_IGNORE);
      give_back(bucket(m_next_to_return));
    }
    if constexpr (!Impl::executes_on_host<ExecutionSpace>) {
      m_returned.record(m_copy_space);
      m_returned.hold_back(m_space);
    }
  }

  void take_over(Bucket& bucket) {
    bucket.available.record(m_space);
    if constexpr (!Impl::executes_on_host<ExecutionSpace>) {
      if (!staged()) return;
      auto const range = std::pair(bucket.first, bucket.last);
      bucket.available.hold_back(m_copy_space);
      Kokkos::deep_copy(m_copy_space, Kokkos::subview(m_staging, range), Kokkos::subview(m_gradients, range));
      bucket.available.record(m_copy_space);
    }
  }

  void send(Bucket& bucket) {
    C* const data = (staged() ? m_staging.data() : m_gradients.data()) + bucket.first;
    MPI_Datatype const type = std::is_same_v<C, double> ? MPI_DOUBLE : MPI_FLOAT;
    MPI_Iallreduce(MPI_IN_PLACE, data, int(bucket.last - bucket.first), type, MPI_SUM, m_communicator.handle(),
                   &bucket.request);
  }

  void give_back(Bucket& bucket) {
    if constexpr (!Impl::executes_on_host<ExecutionSpace>) {
      if (!staged()) return;
      auto const range = std::pair(bucket.first, bucket.last);
      Kokkos::deep_copy(m_copy_space, Kokkos::subview(m_gradients, range), Kokkos::subview(m_staging, range));
    }
  }

  Communicator m_communicator;  // its own, so that no other message is matched with a bucket
  Impl::DeviceCollectives<ExecutionSpace> m_collectives;
  ExecutionSpace m_space;
  ExecutionSpace m_copy_space;  // used on GPUs only
  Gradients m_gradients;
  std::int64_t m_bucket_elements;
  bool m_on_device = !Impl::executes_on_host<ExecutionSpace> && mpi_reduces_on_device();
  Staging m_staging;
  std::deque<Bucket> m_buckets;  // deque: an event does not move
  Impl::Event<ExecutionSpace> m_returned;
  std::size_t m_next_to_copy = 0;
  std::size_t m_next_to_send = 0;
  std::size_t m_next_to_return = 0;
  bool m_running = false;
};

}  // namespace Sporos

#endif
