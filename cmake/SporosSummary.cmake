# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# What was found and chosen, in one place at the end of the configure step.
list(JOIN Kokkos_DEVICES " " devices)
if(SPOROS_WITH_KOKKOSKERNELS)
  set(kokkoskernels "${KokkosKernels_DIR}")
else()
  set(kokkoskernels "no (fp32 and fp64 GEMM by the portable kernel)")
endif()
if(SPOROS_ENABLE_IO)
  set(mpi "${MPI_CXX_VERSION} (${MPI_CXX_COMPILER})")
  set(hdf5 "${HDF5_VERSION}, parallel")
else()
  set(mpi "no")
  set(hdf5 "no")
endif()
set(parts core kernels)
foreach(part io examples tests benchmarks)
  string(TOUPPER ${part} option)
  if(SPOROS_ENABLE_${option})
    list(APPEND parts ${part})
  endif()
endforeach()
list(JOIN parts " " parts)
set(vendor)
foreach(library CUBLASLT HIPBLASLT NCCL RCCL)
  if(SPOROS_ENABLE_${library})
    list(APPEND vendor ${library})
  endif()
endforeach()
list(JOIN vendor " " vendor)
if(NOT vendor)
  set(vendor "none")
endif()
message(STATUS "Sporos ${PROJECT_VERSION}
   back end          ${SPOROS_BACKEND} (Kokkos ${Kokkos_VERSION}: ${devices})
   Kokkos Kernels    ${kokkoskernels}
   vendor libraries  ${vendor}
   MPI               ${mpi}
   HDF5              ${hdf5}
   parts             ${parts}
   compiler          ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}
   install to        ${CMAKE_INSTALL_PREFIX}")
