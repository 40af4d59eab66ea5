// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_WORKSPACE_HPP
#define SPOROS_WORKSPACE_HPP

#include <Kokkos_Core.hpp>
#include <cstddef>

namespace Sporos {

/// Memory that operations need while they run, kept from one call to the next. It grows to the largest request and is never
/// shrunk. Operations enqueued on the same execution-space instance run one after another, so each may use all of it;
/// a second instance needs a Workspace of its own.
template <class ExecutionSpace>
class Workspace {
 public:
  using MemorySpace = typename ExecutionSpace::memory_space;
  template <class T>
  using Array = Kokkos::View<T*, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  explicit Workspace(ExecutionSpace const& space) : m_space(space) {}
  Workspace(Workspace const&) = delete;
  Workspace& operator=(Workspace const&) = delete;

  /// At least `bytes` from now on. Fences when it has to grow, for the old memory may be in use.
  void reserve(std::size_t bytes) {
    if (bytes <= m_memory.extent(0)) return;
    m_space.fence("Sporos::Workspace: memory grows");
    m_memory = {};
    m_memory = Memory(Kokkos::view_alloc(m_space, Kokkos::WithoutInitializing, "Sporos::Workspace"), bytes);
  }

  /// `count` elements, uninitialised, valid until the next call of any operation with this workspace
  template <class T>
  Array<T> take(std::size_t count) {
    reserve(count * sizeof(T));
    return Array<T>(reinterpret_cast<T*>(m_memory.data()), count);
  }

  std::size_t bytes() const { return m_memory.extent(0); }

 private:
  using Memory = Kokkos::View<std::byte*, MemorySpace>;

  ExecutionSpace m_space;
  Memory m_memory;
};

}  // namespace Sporos

#endif
