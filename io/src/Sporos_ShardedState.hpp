// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_SHARDEDSTATE_HPP
#define SPOROS_SHARDEDSTATE_HPP

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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

/// What a rank does not hold but share with the others (Rajbhandari et al., "ZeRO: memory optimizations toward training
/// trillion parameter models", 2020)
enum class ZeroStage {
  nothing = 0,     ///< every rank holds all
  optimizer = 1,   ///< master weights and moments are shared out
  gradients = 2,   ///< and gradients
  parameters = 3,  ///< and parameters
};

/// How a state is shared out, and whose part this is
struct Sharding {
  ZeroStage stage = ZeroStage::nothing;
  int rank = 0;
  int ranks = 1;
};

/// Everything that training changes: parameters in T, gradients, master weights and the two moments of AdamW in
/// ComputeType<T>. Each is one flat buffer described by one StateLayout, so that a kernel, a reduction or a checkpoint can
/// treat it as one array. All start as zero.
///
/// A buffer holds either all elements or, where the stage shares it out, only the parts that this rank owns, one after
/// another; part() and for_each_held() find an element in both.
///
/// Where T is its own compute type, master() is the same memory as parameters(): a rounded copy would be equal. With the
/// stages 1 and 2 it then is as long as they are, and only its owned parts are master weights.
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
  ShardedState(ExecutionSpace const& space, StateLayout layout, Sharding sharding = {})
      : m_space(space),
        m_layout(std::move(layout)),
        m_sharding(sharding),
        m_owned(m_layout.owned(sharding.rank, sharding.ranks)) {
    m_parameters = allocate<T>("Sporos::ShardedState::parameters", ZeroStage::parameters);
    m_gradients = allocate<Compute>("Sporos::ShardedState::gradients", ZeroStage::gradients);
    m_first_moment = allocate<Compute>("Sporos::ShardedState::first_moment", ZeroStage::optimizer);
    m_second_moment = allocate<Compute>("Sporos::ShardedState::second_moment", ZeroStage::optimizer);
    if constexpr (has_own_master)
      m_master = allocate<Compute>("Sporos::ShardedState::master", ZeroStage::optimizer);
    else
      m_master = m_parameters;
  }

  ExecutionSpace const& space() const { return m_space; }
  StateLayout const& layout() const { return m_layout; }
  Sharding const& sharding() const { return m_sharding; }

  Flat<T> const& parameters() const { return m_parameters; }
  Flat<Compute> const& gradients() const { return m_gradients; }
  Flat<Compute> const& master() const { return m_master; }
  Flat<Compute> const& first_moment() const { return m_first_moment; }
  Flat<Compute> const& second_moment() const { return m_second_moment; }

  /// Whether buffers of this kind are shared out: is_shared(ZeroStage::gradients) speaks of the gradients.
  bool is_shared(ZeroStage kind) const { return m_sharding.stage >= kind; }

  /// What this rank owns, unit by unit
  std::vector<OwnedPart> const& owned() const { return m_owned; }
  std::int64_t owned_size() const { return m_owned.back().offset + m_owned.back().range.size(); }

  /// An owned part of one of the buffers
  template <class Element>
  Flat<Element> part(Flat<Element> const& flat, OwnedPart const& owned) const {
    std::int64_t const begin = holds_all(flat) ? owned.range.first : owned.offset;
    return Kokkos::subview(flat, std::pair(begin, begin + owned.range.size()));
  }

  /// Calls function(interval, elements) for every stretch of `wanted` that one of the buffers holds, in order.
  template <class Element, class Function>
  void for_each_held(Flat<Element> const& flat, Interval const& wanted, Function const& function) const {
    if (holds_all(flat)) {
      function(wanted, Flat<Element>(Kokkos::subview(flat, std::pair(wanted.first, wanted.last))));
      return;
    }
    for (OwnedPart const& owned : m_owned) {
      Interval const held{std::max(wanted.first, owned.range.first), std::min(wanted.last, owned.range.last)};
      if (held.size() <= 0) continue;
      std::int64_t const begin = owned.offset + held.first - owned.range.first;
      function(held, Flat<Element>(Kokkos::subview(flat, std::pair(begin, begin + held.size()))));
    }
  }

  struct Bytes {
    std::size_t parameters, gradients, optimizer;
    std::size_t sum() const { return parameters + gradients + optimizer; }
  };
  /// What this rank's buffers take; master weights and moments count as the optimizer's.
  Bytes bytes() const {
    std::size_t const moments = size_of(m_first_moment) + size_of(m_second_moment);
    return {size_of(m_parameters), size_of(m_gradients), moments + (has_own_master ? size_of(m_master) : 0)};
  }

  /// One tensor of a buffer that holds all, e.g. `view<2>(state.parameters(), state.layout().find("wte.weight"))`.
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
  Flat<Element> allocate(std::string const& label, ZeroStage kind) const {
    std::int64_t const size = is_shared(kind) ? owned_size() : m_layout.size();
    return Flat<Element>(Kokkos::view_alloc(m_space, label), std::size_t(size));
  }

  // A rank whose parts are as long as all of it owns all of it, and both places are the same.
  template <class Element>
  bool holds_all(Flat<Element> const& flat) const {
    return std::int64_t(flat.extent(0)) == m_layout.size();
  }

  template <class Element>
  static std::size_t size_of(Flat<Element> const& flat) {
    return flat.extent(0) * sizeof(Element);
  }

  ExecutionSpace m_space;
  StateLayout m_layout;
  Sharding m_sharding;
  std::vector<OwnedPart> m_owned;
  Flat<T> m_parameters;
  Flat<Compute> m_gradients, m_master, m_first_moment, m_second_moment;
};

}  // namespace Sporos

#endif
