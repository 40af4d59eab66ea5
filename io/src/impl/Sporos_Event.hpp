// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_EVENT_HPP
#define SPOROS_EVENT_HPP

#include <Kokkos_Core.hpp>

#include "Sporos_Error.hpp"

namespace Sporos::Impl {

/// A point in the work of an execution-space instance. Kokkos can only wait for all of an instance's work, which would stop
/// the host from running ahead of a GPU.
///
/// Where the host executes, the work is done when the call that launches it returns, after a fence at most.
template <class ExecutionSpace>
class Event {
 public:
  void record(ExecutionSpace const& space) { space.fence("Sporos::Event::record"); }
  bool done() const { return true; }
  void wait() const {}
  /// What `space` is given from now on starts after this point.
  void hold_back(ExecutionSpace const&) const {}
};

#if defined(KOKKOS_ENABLE_CUDA)
template <>
class Event<Kokkos::Cuda> {
 public:
  Event() { check(cudaEventCreateWithFlags(&m_event, cudaEventDisableTiming)); }
  ~Event() { (void)cudaEventDestroy(m_event); }
  Event(Event const&) = delete;
  Event& operator=(Event const&) = delete;

  void record(Kokkos::Cuda const& space) { check(cudaEventRecord(m_event, space.cuda_stream())); }
  bool done() const {
    cudaError_t const status = cudaEventQuery(m_event);
    if (status != cudaErrorNotReady) check(status);
    return status == cudaSuccess;
  }
  void wait() const { check(cudaEventSynchronize(m_event)); }
  void hold_back(Kokkos::Cuda const& space) const { check(cudaStreamWaitEvent(space.cuda_stream(), m_event, 0)); }

 private:
  static void check(cudaError_t status) {
    SPOROS_THROW_INPUT_ERROR_IF(status != cudaSuccess, "CUDA: ", cudaGetErrorString(status));
  }
  cudaEvent_t m_event = nullptr;
};
#endif

#if defined(KOKKOS_ENABLE_HIP)
template <>
class Event<Kokkos::HIP> {
 public:
  Event() { check(hipEventCreateWithFlags(&m_event, hipEventDisableTiming)); }
  ~Event() { (void)hipEventDestroy(m_event); }
  Event(Event const&) = delete;
  Event& operator=(Event const&) = delete;

  void record(Kokkos::HIP const& space) { check(hipEventRecord(m_event, space.hip_stream())); }
  bool done() const {
    hipError_t const status = hipEventQuery(m_event);
    if (status != hipErrorNotReady) check(status);
    return status == hipSuccess;
  }
  void wait() const { check(hipEventSynchronize(m_event)); }
  void hold_back(Kokkos::HIP const& space) const { check(hipStreamWaitEvent(space.hip_stream(), m_event, 0)); }

 private:
  static void check(hipError_t status) {
    SPOROS_THROW_INPUT_ERROR_IF(status != hipSuccess, "HIP: ", hipGetErrorString(status));
  }
  hipEvent_t m_event = nullptr;
};
#endif

/// Host memory that a GPU copies from and to without a detour; ordinary host memory where no GPU is
#if defined(KOKKOS_HAS_SHARED_HOST_PINNED_SPACE)
using StagingSpace = Kokkos::SharedHostPinnedSpace;
#else
using StagingSpace = Kokkos::HostSpace;
#endif

/// Whether the host works on an execution space's memory itself, so that nothing needs to be staged
template <class ExecutionSpace>
inline constexpr bool executes_on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename ExecutionSpace::memory_space>::accessible &&
    Kokkos::SpaceAccessibility<ExecutionSpace, Kokkos::HostSpace>::accessible;

}  // namespace Sporos::Impl

#endif
