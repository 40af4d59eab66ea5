// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_DEVICECOLLECTIVES_HPP
#define SPOROS_DEVICECOLLECTIVES_HPP

#include <Kokkos_Core.hpp>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_Error.hpp"

#if defined(SPOROS_ENABLE_NCCL) && defined(KOKKOS_ENABLE_CUDA)
#include <nccl.h>
#define SPOROS_HAVE_DEVICE_COLLECTIVES
#elif defined(SPOROS_ENABLE_RCCL) && defined(KOKKOS_ENABLE_HIP)
#include <rccl/rccl.h>  // the same interface under the same names
#define SPOROS_HAVE_DEVICE_COLLECTIVES
#endif

namespace Sporos::Impl {

/// Elements that go to another rank, or come from it
template <class Element>
struct Message {
  int rank;
  Element* data;
  std::int64_t count;
};

/// Collectives that GPUs do among themselves. This one is for execution spaces without: it is never available.
template <class ExecutionSpace>
class DeviceCollectives {
 public:
  explicit DeviceCollectives(Communicator const&) {}
  bool available() const { return false; }
  template <class Element>
  void exchange(ExecutionSpace const&, std::vector<Message<Element>> const&, std::vector<Message<Element>> const&) {}
};

#if defined(SPOROS_HAVE_DEVICE_COLLECTIVES)

#if defined(KOKKOS_ENABLE_CUDA)
using DeviceWithCollectives = Kokkos::Cuda;
inline auto stream_of(Kokkos::Cuda const& space) { return space.cuda_stream(); }
inline std::string bus_of_current_device() {
  int device = 0;
  std::array<char, 32> bus{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetPCIBusId(bus.data(), int(bus.size()), device) != cudaSuccess)
    throw InputError("the PCI address of the current CUDA device cannot be read");
  return bus.data();
}
#else
using DeviceWithCollectives = Kokkos::HIP;
inline auto stream_of(Kokkos::HIP const& space) { return space.hip_stream(); }
inline std::string bus_of_current_device() {
  int device = 0;
  std::array<char, 32> bus{};
  if (hipGetDevice(&device) != hipSuccess || hipDeviceGetPCIBusId(bus.data(), int(bus.size()), device) != hipSuccess)
    throw InputError("the PCI address of the current HIP device cannot be read");
  return bus.data();
}
#endif

/// NCCL or RCCL. Both refuse ranks that share a GPU; then it is not available and MPI has to do.
template <>
class DeviceCollectives<DeviceWithCollectives> {
 public:
  explicit DeviceCollectives(Communicator const& communicator) {
    if (!every_rank_has_its_own_device(communicator)) return;
    ncclUniqueId id{};
    communicator.run_agreed([&] {
      if (communicator.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    communicator.broadcast(id);
    communicator.run_agreed(
        [&] { check(ncclCommInitRank(&m_handle, communicator.size(), id, communicator.rank()), "ncclCommInitRank"); });
  }
  ~DeviceCollectives() {
    if (m_handle) ncclCommDestroy(m_handle);
  }
  DeviceCollectives(DeviceCollectives const&) = delete;
  DeviceCollectives& operator=(DeviceCollectives const&) = delete;

  bool available() const { return m_handle != nullptr; }

  /// Enqueues all of the messages. Every rank's sends meet the receives of the others.
  template <class Element>
  void exchange(DeviceWithCollectives const& space, std::vector<Message<Element>> const& sends,
                std::vector<Message<Element>> const& receives) {
    auto const bytes = [](Message<Element> const& message) { return std::size_t(message.count) * sizeof(Element); };
    check(ncclGroupStart(), "ncclGroupStart");
    for (Message<Element> const& message : sends)
      check(ncclSend(message.data, bytes(message), ncclChar, message.rank, m_handle, stream_of(space)), "ncclSend");
    for (Message<Element> const& message : receives)
      check(ncclRecv(message.data, bytes(message), ncclChar, message.rank, m_handle, stream_of(space)), "ncclRecv");
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

 private:
  static bool every_rank_has_its_own_device(Communicator const& communicator) {
    struct Place {
      char host[MPI_MAX_PROCESSOR_NAME];
      char bus[32];
    };
    Place mine{};
    int length = 0;
    MPI_Get_processor_name(mine.host, &length);
    communicator.run_agreed([&] { bus_of_current_device().copy(mine.bus, sizeof mine.bus - 1); });
    std::set<std::string> places;
    for (Place const& place : communicator.all_gather(mine)) places.insert(std::string(place.host) + " " + place.bus);
    return int(places.size()) == communicator.size();
  }

  static void check(ncclResult_t result, char const* call) {
    SPOROS_THROW_INPUT_ERROR_IF(result != ncclSuccess, call, ": ", ncclGetErrorString(result));
  }

  ncclComm_t m_handle = nullptr;
};

#endif

}  // namespace Sporos::Impl

#endif
