// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_BLAS_HPP
#define SPOROS_GEMM_BLAS_HPP

#include "impl/Sporos_Gemm_Arguments.hpp"

namespace Sporos::Impl {

/// The product on a GPU through a library that this build has: cuBLASLt or hipBLASLt for float and bfloat16, Kokkos Kernels for float and
/// double. False if none of them takes it; then nothing has been done. Defined for the types of gemm.
template <class ExecutionSpace, class T, class Output>
bool gemm_blas(ExecutionSpace const& space, GemmArguments<T, Output> const& arguments);

}  // namespace Sporos::Impl

#endif
