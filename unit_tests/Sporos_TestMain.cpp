// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifdef SPOROS_TEST_WITH_MPI
#include <mpi.h>
#endif

#include <Kokkos_Core.hpp>
#include <catch2/catch_session.hpp>
#include <cstdio>
#include <iostream>

// Catch2's own main knows neither Kokkos, whose Views need a running back end, nor MPI.
int main(int argc, char** argv) {
#ifdef SPOROS_TEST_WITH_MPI
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
#endif
  int result = 0;
  {
    Kokkos::ScopeGuard const kokkos(argc, argv);
    result = Catch::Session().run(argc, argv);
  }
#ifdef SPOROS_TEST_WITH_MPI
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  // The other ranks may be waiting for this one in a collective call that it will never enter.
  if (result != 0 && ranks > 1) {
    std::cout << std::flush;
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, result);
  }
  MPI_Finalize();
#endif
  return result;
}
