// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_DEVICE_HPP
#define SPOROS_FLASHATTENTION_DEVICE_HPP

#include "impl/Sporos_FlashAttention_Problem.hpp"

// Flash attention on a GPU. Instantiated for Kokkos::DefaultExecutionSpace where that is one, and T = double, float,
// bfloat16, float16; head dimensions up to 256.
namespace Sporos::Impl {

/// O and LSE
template <class ExecutionSpace, class T>
void flash_attention_forward_device(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments);

/// How the backward pass divides its work, which decides what it needs of a workspace
struct FlashAttentionBackwardPlan {
  int slots;
  bool shared_sums;
  int query_block;
  int padded_head_dim;
};

template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan flash_attention_backward_plan_device(ExecutionSpace const& space,
                                                                FlashAttentionArguments<T> const& arguments);

/// dQ, dK and dV, with all passes that they take; `arguments` as planned, what its workspace holds does not matter.
template <class ExecutionSpace, class T>
void flash_attention_backward_device(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> const& arguments);

}  // namespace Sporos::Impl

#endif
