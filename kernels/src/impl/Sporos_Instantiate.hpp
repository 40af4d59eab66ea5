// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_INSTANTIATE_HPP
#define SPOROS_INSTANTIATE_HPP

#include <Kokkos_Core.hpp>

/// Applies MACRO(ExecutionSpace) to the execution spaces that the library is compiled for: the default one and, where that
/// is a GPU, the default host space too.
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
#define SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(MACRO) \
  MACRO(Kokkos::DefaultExecutionSpace)                 \
  MACRO(Kokkos::DefaultHostExecutionSpace)
#else
#define SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(MACRO) MACRO(Kokkos::DefaultExecutionSpace)
#endif

#endif
