// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GELU_HOST_HPP
#define SPOROS_GELU_HOST_HPP

#include <cstdint>

#include "Sporos_StorageTypes.hpp"

namespace Sporos::Impl {

/// What one instruction-set level provides for one type: `count` consecutive elements a call
template <class T>
struct GeluHostKernel {
  void (*forward)(T const* x, T* y, std::int64_t count);
  void (*backward)(T const* dy, T const* x, T* dx, std::int64_t count);  // dx may be dy
};

struct GeluHostKernels : GeluHostKernel<double>, GeluHostKernel<float>, GeluHostKernel<bfloat16> {};

}  // namespace Sporos::Impl

#endif
