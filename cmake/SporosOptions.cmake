# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Every option of the build, with its default.

# An option of three values: AUTO turns into ON or OFF by what is found.
function(sporos_auto_option name description)
  set(${name} AUTO CACHE STRING "${description} (AUTO: if found)")
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
endfunction()

option(SPOROS_ENABLE_IO "Build Sporos::io: MPI communicator, parallel-HDF5 checkpoints, datasets" ON)
sporos_auto_option(SPOROS_ENABLE_KOKKOSKERNELS "fp32 and fp64 GEMM through Kokkos Kernels")
set(SPOROS_HIGHEST_HOST_LEVEL x86_64_v4_bf16 CACHE STRING "Host kernels are compiled for no higher instruction set")
set_property(CACHE SPOROS_HIGHEST_HOST_LEVEL PROPERTY STRINGS baseline x86_64_v3 x86_64_v4 x86_64_v4_bf16)
if(NOT SPOROS_HIGHEST_HOST_LEVEL MATCHES "^(baseline|x86_64_v3|x86_64_v4|x86_64_v4_bf16)$")
  message(FATAL_ERROR "SPOROS_HIGHEST_HOST_LEVEL is \"${SPOROS_HIGHEST_HOST_LEVEL}\"; it must be baseline, x86_64_v3, x86_64_v4 or x86_64_v4_bf16")
endif()
option(SPOROS_ENABLE_CUBLASLT "bf16 and fp32 GEMM through cuBLASLt" OFF)
option(SPOROS_ENABLE_HIPBLASLT "bf16 and fp32 GEMM through hipBLASLt" OFF)
option(SPOROS_ENABLE_NCCL "Gradients summed by NCCL" OFF)
option(SPOROS_ENABLE_RCCL "Gradients summed by RCCL" OFF)
option(SPOROS_ENABLE_TESTS "Build the tests (needs Catch2 3)" ${PROJECT_IS_TOP_LEVEL})
option(SPOROS_ENABLE_BENCHMARKS "Build the benchmark programs" OFF)
option(SPOROS_ENABLE_EXAMPLES "Build train_gpt, generate, tokenize and sporos-checkpoint (needs Sporos::io, CLI11 and toml++)"
       ${PROJECT_IS_TOP_LEVEL})
option(SPOROS_ENABLE_WARNINGS_AS_ERRORS "Stop at a compiler warning" OFF)

set(CMAKE_CXX_EXTENSIONS OFF)  # Kokkos refuses gnu++20
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

if(SPOROS_ENABLE_EXAMPLES AND NOT SPOROS_ENABLE_IO)
  message(FATAL_ERROR "SPOROS_ENABLE_EXAMPLES=ON needs SPOROS_ENABLE_IO=ON: train_gpt reads data and writes checkpoints.")
endif()
if((SPOROS_ENABLE_NCCL OR SPOROS_ENABLE_RCCL) AND NOT SPOROS_ENABLE_IO)
  message(FATAL_ERROR "SPOROS_ENABLE_NCCL and SPOROS_ENABLE_RCCL need SPOROS_ENABLE_IO=ON, whose communicator uses them.")
endif()
