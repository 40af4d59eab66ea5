// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_RANKGROUPS_HPP
#define SPOROS_TESTING_RANKGROUPS_HPP

#include <mpi.h>

#include <optional>

#include "Sporos_Communicator.hpp"

namespace Sporos::Testing {

/// The first `ranks` of the world; nothing on the others. Collective in the world.
inline std::optional<Communicator> first_ranks(int ranks) {
  auto const world = Communicator::world();
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(world.handle(), world.rank() < ranks ? 0 : MPI_UNDEFINED, world.rank(), &part);
  if (part == MPI_COMM_NULL) return std::nullopt;
  auto result = Communicator(part).duplicate();
  MPI_Comm_free(&part);
  return result;
}

}  // namespace Sporos::Testing

#endif
