// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_VIEWCHECKS_HPP
#define SPOROS_VIEWCHECKS_HPP

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <string>

#include "Sporos_Error.hpp"
#include "Sporos_Random.hpp"

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

/// The View must be (rows, columns) with unit stride in columns.
template <class View>
void require_rows(char const* name, View const& view, std::size_t rows, std::size_t columns) {
  static_assert(View::rank() == 2);
  SPOROS_THROW_IF(view.extent(0) != rows || view.extent(1) != columns, name, " is ", extents(view), "; (", rows, ", ",
                  columns, ") is needed");
  require_unit_stride(name, view);
}

/// The View must be (rows, columns) or have no rows, which stands for an argument that is not given.
template <class View>
void require_rows_or_none(char const* name, View const& view, std::size_t rows, std::size_t columns) {
  static_assert(View::rank() == 2);
  if (view.extent(0) != 0) require_rows(name, view, rows, columns);
}

/// The View must be (size) without gaps.
template <class View>
void require_vector(char const* name, View const& view, std::size_t size) {
  static_assert(View::rank() == 1);
  SPOROS_THROW_IF(view.extent(0) != size, name, " is ", extents(view), "; (", size, ") is needed");
  require_unit_stride(name, view);
}

/// The probability must be in [0, 1): with 1 nothing would be left to scale.
inline void require_dropout(Dropout const& dropout) {
  SPOROS_THROW_IF(!(dropout.probability >= 0 && dropout.probability < 1), "the dropout probability is ",
                  dropout.probability, "; it must be at least 0 and below 1");
}

/// The execution space must be able to reach the View's memory.
template <class ExecutionSpace, class View>
inline constexpr bool is_accessible =
    Kokkos::SpaceAccessibility<ExecutionSpace, typename View::memory_space>::accessible;

template <class ExecutionSpace, class... Views>
void require_accessible(Views const&...) {
  static_assert((is_accessible<ExecutionSpace, Views> && ...),
                "The execution space cannot reach the memory of one of the Views");
}

}  // namespace Sporos::Impl

#endif
