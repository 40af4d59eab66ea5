// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_NORM_LAUNCH_HPP
#define SPOROS_NORM_LAUNCH_HPP

#include <Kokkos_Core.hpp>
#include <cstdint>

#include "Sporos_ViewChecks.hpp"
#include "Sporos_Workspace.hpp"
#include "impl/Sporos_Norm_Impl.hpp"

// What LayerNorm and RMSNorm share on the way from Views to kernels
namespace Sporos::Impl {

template <class ExecutionSpace, class T, Norm norm>
void norm_forward(ExecutionSpace const& space, std::int64_t rows, NormForward<T, norm> const& arguments);

/// \param dgamma, dbeta  gradients to add to; dbeta is null for RMSNorm
template <class ExecutionSpace, class T, Norm norm>
void norm_backward(ExecutionSpace const& space, NormBackward<T, norm> arguments, ComputeType<T>* dgamma,
                   ComputeType<T>* dbeta, Workspace<ExecutionSpace>& workspace);

}  // namespace Sporos::Impl

#endif
