// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_MACROS_HPP
#define SPOROS_MACROS_HPP

// Everything that a kernel body may use includes no Kokkos header, because the host kernels are compiled once per
// instruction set and Kokkos' inline functions, compiled with a level's instructions, could end up in callers that run on
// any processor. So this is KOKKOS_FUNCTION without Kokkos.
//
// Inlining is forced: on a GPU a real call would put fragments into memory; on a host a function that was not inlined
// would be one weak symbol, of which the linker keeps the copy of some level.
#if defined(__CUDACC__)
#define SPOROS_FUNCTION __host__ __device__ __forceinline__
#elif defined(__HIPCC__)
#define SPOROS_FUNCTION __host__ __device__ inline __attribute__((always_inline))
#else
#define SPOROS_FUNCTION inline __attribute__((always_inline))
#endif

// Only in the pass that compiles for the device: the host's compiler need not know the pragma.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define SPOROS_UNROLL _Pragma("unroll")
#define SPOROS_NO_UNROLL _Pragma("unroll 1")
#else
#define SPOROS_UNROLL
#define SPOROS_NO_UNROLL
#endif

/// The instruction-set level that this source is compiled for. Code of the host kernels lives in a namespace of this name.
#ifndef SPOROS_LEVEL
#define SPOROS_LEVEL portable
#endif

#endif
