# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Finds what the enabled parts need; a message says how to get what is missing.
find_package(Kokkos 4.7...<6 REQUIRED)

if(Kokkos_ENABLE_CUDA)
  set(SPOROS_BACKEND CUDA)
elseif(Kokkos_ENABLE_HIP)
  set(SPOROS_BACKEND HIP)
elseif(Kokkos_ENABLE_OPENMP)
  set(SPOROS_BACKEND OPENMP)
elseif(Kokkos_ENABLE_THREADS)
  set(SPOROS_BACKEND THREADS)
else()
  set(SPOROS_BACKEND SERIAL)
endif()

# Debian's package names the target KokkosKernels::all_libs, the project itself Kokkos::kokkoskernels.
set(SPOROS_WITH_KOKKOSKERNELS OFF)
if(SPOROS_ENABLE_KOKKOSKERNELS)
  # The major version must be that of Kokkos: Kokkos Kernels' headers use its internals.
  if(SPOROS_ENABLE_KOKKOSKERNELS STREQUAL "AUTO")
    find_package(KokkosKernels QUIET)
  else()
    find_package(KokkosKernels REQUIRED)
  endif()
  if(KokkosKernels_FOUND)
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" sporos_kokkos_release "${Kokkos_VERSION}")
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" sporos_kernels_release "${KokkosKernels_VERSION}")
    if(sporos_kernels_release AND NOT sporos_kernels_release STREQUAL sporos_kokkos_release)
      message(FATAL_ERROR "Kokkos is ${Kokkos_VERSION} but Kokkos Kernels is ${KokkosKernels_VERSION}: both must be of one release. "
                          "Set KokkosKernels_ROOT to the matching one, or SPOROS_ENABLE_KOKKOSKERNELS=OFF.")
    endif()
    set(SPOROS_WITH_KOKKOSKERNELS ON)
    if(NOT TARGET Kokkos::kokkoskernels)
      add_library(Kokkos::kokkoskernels ALIAS KokkosKernels::all_libs)
    endif()
  endif()
endif()

if(SPOROS_ENABLE_CUBLASLT)
  if(NOT SPOROS_BACKEND STREQUAL "CUDA")
    message(FATAL_ERROR "SPOROS_ENABLE_CUBLASLT=ON needs a Kokkos with the CUDA back end; the one found has ${Kokkos_DEVICES}.")
  endif()
  find_package(CUDAToolkit 12.2 REQUIRED)
endif()
if(SPOROS_ENABLE_HIPBLASLT)
  message(FATAL_ERROR "SPOROS_ENABLE_HIPBLASLT=ON: GEMM through hipBLASLt is not written yet. On HIP, GEMM runs through "
                      "Kokkos Kernels (fp32, fp64) or the portable kernel (bf16).")
endif()

if(SPOROS_ENABLE_IO)
  enable_language(C)  # FindHDF5 asks the C compiler
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI 3.1 REQUIRED COMPONENTS CXX)
  set(HDF5_PREFER_PARALLEL ON)
  find_package(HDF5 1.10 REQUIRED COMPONENTS C)
  if(NOT HDF5_IS_PARALLEL)
    message(FATAL_ERROR "The HDF5 found (${HDF5_VERSION}, ${HDF5_C_INCLUDE_DIRS}) is a serial build; Sporos::io writes one file from all "
                        "ranks and needs a parallel one. Debian: libhdf5-openmpi-dev; Spack: hdf5+mpi; then set HDF5_ROOT. "
                        "SPOROS_ENABLE_IO=OFF builds the kernels alone.")
  endif()
  find_package(Threads REQUIRED)
  find_package(nlohmann_json 3.9 REQUIRED)
  if(SPOROS_ENABLE_NCCL)
    find_package(NCCL REQUIRED)
  endif()
  if(SPOROS_ENABLE_RCCL)
    find_package(rccl REQUIRED)
  endif()
endif()

if(SPOROS_ENABLE_EXAMPLES)
  find_package(CLI11 2.1 REQUIRED)
  find_package(tomlplusplus 3 REQUIRED)
endif()
if(SPOROS_ENABLE_TESTS)
  find_package(Catch2 3 REQUIRED)
endif()
