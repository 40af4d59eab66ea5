// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_GradientReducer.hpp"

#include <cstdlib>
#include <string_view>

namespace Sporos {

bool mpi_takes_device_memory() {
  if (char const* const choice = std::getenv("SPOROS_GPU_AWARE_MPI")) {
    std::string_view const value = choice;
    SPOROS_THROW_INPUT_ERROR_IF(value != "0" && value != "1", "SPOROS_GPU_AWARE_MPI is \"", value,
                                "\"; it must be 0 or 1");
    return value == "1";
  }
  // Cray MPICH and MPICH are GPU-aware when these are set. Open MPI has no variable that says so; who built it with CUDA or
  // ROCm sets ours.
  for (char const* const name : {"MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU"}) {
    char const* const value = std::getenv(name);
    if (value && std::string_view(value) == "1") return true;
  }
  return false;
}

}  // namespace Sporos
