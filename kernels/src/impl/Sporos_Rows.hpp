// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ROWS_HPP
#define SPOROS_ROWS_HPP

#include <cstdint>

#include "Sporos_Macros.hpp"

namespace Sporos::Impl {

/// A rank-2 View without Kokkos: rows with unit stride inside
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;

  SPOROS_FUNCTION T* operator[](std::int64_t row) const { return data + row * stride; }
};

template <class View>
Rows<typename View::value_type> rows_of(View const& view) {
  return {view.data(), std::int64_t(view.stride(0))};
}

/// The same, read-only
template <class View>
Rows<typename View::const_value_type> const_rows_of(View const& view) {
  return {view.data(), std::int64_t(view.stride(0))};
}

/// The same, or null where the View has no rows
template <class View>
Rows<typename View::const_value_type> rows_or_none(View const& view) {
  return view.extent(0) == 0 ? Rows<typename View::const_value_type>{nullptr, 0} : const_rows_of(view);
}

}  // namespace Sporos::Impl

#endif
