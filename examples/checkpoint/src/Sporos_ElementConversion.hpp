// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ELEMENTCONVERSION_HPP
#define SPOROS_ELEMENTCONVERSION_HPP

#include <cstddef>
#include <cstring>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_StorageTypes.hpp"

namespace Sporos::Tool {

template <class T>
T load_element(std::byte const* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

/// The number that an element of a checkpoint is
inline double element_value(Impl::ElementType type, std::byte const* data) {
  if (type == Impl::ElementType::bfloat16) return double(load_element<bfloat16>(data));
  if (type == Impl::ElementType::float32) return double(load_element<float>(data));
  return load_element<double>(data);
}

}  // namespace Sporos::Tool

#endif
