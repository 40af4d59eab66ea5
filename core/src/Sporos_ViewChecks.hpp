// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_VIEWCHECKS_HPP
#define SPOROS_VIEWCHECKS_HPP

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <string>

#include "Sporos_Error.hpp"

namespace Sporos::Impl {

/// "(2, 3, 4)", for error texts
template <class View>
std::string extents(View const& view) {
  std::string text = "(";
  for (std::size_t r = 0; r < View::rank(); ++r) text += (r ? ", " : "") + std::to_string(view.extent(r));
  return text + ")";
}

/// Kernels read rows as they lie: elements of the last dimension must be neighbours.
template <class View>
void require_unit_stride(char const* name, View const& view) {
  constexpr std::size_t last = View::rank() - 1;
  SPOROS_THROW_IF(view.extent(last) > 1 && view.stride(last) != 1, name, " is ", extents(view), " with stride ",
                  view.stride(last), " in its last dimension; it must be 1");
}

/// The data of a View of any rank must be one piece in row-major order.
template <class View>
void require_contiguous(char const* name, View const& view) {
  std::size_t expected = 1;
  for (std::size_t r = View::rank(); r-- > 0;) {
    SPOROS_THROW_IF(view.extent(r) > 1 && view.stride(r) != expected, name, " is ", extents(view), " with stride ",
                    view.stride(r), " in dimension ", r, "; row-major without gaps would be ", expected);
    expected *= view.extent(r);
  }
}

template <class A, class B>
void require_same_extents(char const* name_a, A const& a, char const* name_b, B const& b) {
  static_assert(A::rank() == B::rank());
  for (std::size_t r = 0; r < A::rank(); ++r)
    SPOROS_THROW_IF(a.extent(r) != b.extent(r), name_a, " is ", extents(a), ", ", name_b, " is ", extents(b));
}

/// The execution space must be able to reach the View's memory.
template <class ExecutionSpace, class View>
inline constexpr bool is_accessible =
    Kokkos::SpaceAccessibility<ExecutionSpace, typename View::memory_space>::accessible;

}  // namespace Sporos::Impl

#endif
