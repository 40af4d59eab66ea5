// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_DEVICE_HPP
#define SPOROS_GEMM_DEVICE_HPP

#include "impl/Sporos_Gemm_Arguments.hpp"

namespace Sporos::Impl {

/// The portable product on a GPU, everything that GemmArguments can say. Instantiated for Kokkos::DefaultExecutionSpace
/// where that is a GPU, and (T, Output) = (double, double), (float, float), (bfloat16, bfloat16), (bfloat16, float).
template <class ExecutionSpace, class T, class Output>
void gemm_device(ExecutionSpace const& space, GemmArguments<T, Output> const& arguments);

}  // namespace Sporos::Impl

#endif
