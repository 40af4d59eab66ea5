// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_HOPPER_HPP
#define SPOROS_FLASHATTENTION_HOPPER_HPP

#include <type_traits>

#include "impl/Sporos_FlashAttention_Device.hpp"

// Flash attention on NVIDIA Hopper (compute capability 9.0), for plain scores of 16-bit numbers. Instantiated for
// Kokkos::Cuda where that is the default execution space, and T = bfloat16, float16.
namespace Sporos::Impl {

#if defined(KOKKOS_ENABLE_CUDA)
template <class T>
inline constexpr bool has_hopper_kernels = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;
#else
template <class T>
inline constexpr bool has_hopper_kernels = false;
#endif

/// Whether the device, its scratch and the problem are such that these kernels run
template <class ExecutionSpace, class T>
bool hopper_takes_forward(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments);

template <class ExecutionSpace, class T>
void flash_attention_forward_hopper(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments);

/// The same of the backward pass: heads of up to 128
template <class ExecutionSpace, class T>
bool hopper_takes_backward(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments);

template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan flash_attention_backward_plan_hopper(ExecutionSpace const& space,
                                                                FlashAttentionArguments<T> const& arguments);

template <class ExecutionSpace, class T>
void flash_attention_backward_hopper(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> const& arguments);

}  // namespace Sporos::Impl

#endif
