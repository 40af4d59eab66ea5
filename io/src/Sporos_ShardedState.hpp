// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_SHARDEDSTATE_HPP
#define SPOROS_SHARDEDSTATE_HPP

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "Sporos_Error.hpp"
#include "Sporos_StateLayout.hpp"
#include "Sporos_StorageTypes.hpp"

namespace Sporos {
namespace Impl {

/// Element with Rank stars, as a View's data type
template <class Element, std::size_t Rank>
struct Pointers {
  using type = typename Pointers<Element, Rank - 1>::type*;
};
template <class Element>
struct Pointers<Element, 0> {
  using type = Element;
};

}  // namespace Impl

/// Everything that training changes: parameters in T, gradients, master weights and the two moments of AdamW in
/// ComputeType<T>. Each is one flat buffer described by one StateLayout, so that a kernel, a reduction or a checkpoint can
/// treat it as one array, and a later sharding cuts it without knowledge of the model. All start as zero.
///
/// Where T is its own compute type, master() is the same memory as parameters(): a rounded copy would be equal.
template <class ExecutionSpace, class T>
class ShardedState {
 public:
  using Compute = ComputeType<T>;
  using MemorySpace = typename ExecutionSpace::memory_space;
  template <class Element>
  using Flat = Kokkos::View<Element*, MemorySpace>;
  template <class Element, std::size_t Rank>
  using Tensor = Kokkos::View<typename Impl::Pointers<Element, Rank>::type, Kokkos::LayoutRight, MemorySpace,
                              Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  static constexpr bool has_own_master = !std::is_same_v<T, Compute>;

  /// Enqueues the allocations and their zeroing on `space`.
  ShardedState(ExecutionSpace const& space, StateLayout layout) : m_space(space), m_layout(std::move(layout)) {
    m_parameters = allocate<T>("Sporos::ShardedState::parameters");
    m_gradients = allocate<Compute>("Sporos::ShardedState::gradients");
    m_first_moment = allocate<Compute>("Sporos::ShardedState::first_moment");
    m_second_moment = allocate<Compute>("Sporos::ShardedState::second_moment");
    if constexpr (has_own_master)
      m_master = allocate<Compute>("Sporos::ShardedState::master");
    else
      m_master = m_parameters;
  }

  ExecutionSpace const& space() const { return m_space; }
  StateLayout const& layout() const { return m_layout; }

  Flat<T> const& parameters() const { return m_parameters; }
  Flat<Compute> const& gradients() const { return m_gradients; }
  Flat<Compute> const& master() const { return m_master; }
  Flat<Compute> const& first_moment() const { return m_first_moment; }
  Flat<Compute> const& second_moment() const { return m_second_moment; }

  /// See StateLayout::owned.
  std::pair<std::int64_t, std::int64_t> owned(int rank, int size) const { return m_layout.owned(rank, size); }

  /// One tensor of one of the buffers, e.g. `view<2>(state.parameters(), state.layout().find("wte.weight"))`.
  /// Throws InvalidArgument where the tensor is not of this rank or does not lie in the buffer.
  template <std::size_t Rank, class Element>
  static Tensor<Element, Rank> view(Flat<Element> const& flat, TensorRange const& tensor) {
    static_assert(Rank >= 1 && Rank <= 4);
    SPOROS_THROW_IF(tensor.shape.size() != Rank, "tensor \"", tensor.name, "\" is ", shape_text(tensor.shape),
                    ", asked for with ", Rank, " dimensions");
    SPOROS_THROW_IF(tensor.offset + tensor.size > std::int64_t(flat.extent(0)), "tensor \"", tensor.name, "\" ends at ",
                    tensor.offset + tensor.size, ", the buffer at ", flat.extent(0));
    typename Tensor<Element, Rank>::array_layout layout;
    for (std::size_t r = 0; r < Rank; ++r) layout.dimension[r] = std::size_t(tensor.shape[r]);
    return Tensor<Element, Rank>(flat.data() + tensor.offset, layout);
  }

  /// The optimizer steps that have been made
  std::int64_t step = 0;

 private:
  template <class Element>
  Flat<Element> allocate(std::string const& label) const {
    return Flat<Element>(Kokkos::view_alloc(m_space, label), std::size_t(m_layout.size()));
  }

  ExecutionSpace m_space;
  StateLayout m_layout;
  Flat<T> m_parameters;
  Flat<Compute> m_gradients, m_master, m_first_moment, m_second_moment;
};

}  // namespace Sporos

#endif
