// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_HOST_HPP
#define SPOROS_FLASHATTENTION_HOST_HPP

#include <cstddef>

#include "impl/Sporos_FlashAttention_Problem.hpp"

namespace Sporos::Impl {

// What one instruction-set level provides: plain functions on plain data, one call for each work item. `scratch` is aligned
// to 64 bytes and belongs to the call alone.

template <class T>
struct FlashAttentionForwardHostKernel {
  int (*tiles)(FlashAttentionArguments<T> const&);  // of queries in one head
  std::size_t (*scratch_bytes)(FlashAttentionArguments<T> const&);
  void (*tile)(FlashAttentionArguments<T> const&, int batch, int head, int tile, int split, void* scratch);
};

struct FlashAttentionForwardHostKernels : FlashAttentionForwardHostKernel<double>,
                                          FlashAttentionForwardHostKernel<float>,
                                          FlashAttentionForwardHostKernel<bfloat16>,
                                          FlashAttentionForwardHostKernel<float16> {};

template <class T>
struct FlashAttentionBackwardHostKernel {
  FlashAttentionBackwardTiling (*tiling)(FlashAttentionArguments<T> const&);
  std::size_t (*scratch_bytes)(FlashAttentionArguments<T> const&);
  /// Before: LSE, δ and the empty sums of dQ, for a block of queries
  void (*prepare)(FlashAttentionBackwardArguments<T> const&, int batch, int head, int block);
  void (*slot)(FlashAttentionBackwardArguments<T> const&, int batch, int kv_head, int slot, void* scratch);
  /// After: dQ of a block of queries from the sums of all slots, in their order
  void (*finish)(FlashAttentionBackwardArguments<T> const&, int batch, int head, int block);
  /// After `prepare`: the gradient of the bias, one tile of one matrix of it
  int (*bias_tiles)(FlashAttentionArguments<T> const&);
  std::size_t (*bias_scratch_bytes)(FlashAttentionArguments<T> const&);
  void (*bias_tile)(FlashAttentionBackwardArguments<T> const&, int bias_batch, int bias_head, int tile, void* scratch);
};

struct FlashAttentionBackwardHostKernels : FlashAttentionBackwardHostKernel<double>,
                                           FlashAttentionBackwardHostKernel<float>,
                                           FlashAttentionBackwardHostKernel<bfloat16>,
                                           FlashAttentionBackwardHostKernel<float16> {};

}  // namespace Sporos::Impl

#endif
