// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TENSORMAPS_HPP
#define SPOROS_TENSORMAPS_HPP

#include "impl/Sporos_FlashAttention_Problem.hpp"
#include "tile/Sporos_Arch_Sm90.hpp"

#if defined(__CUDACC__)
#include <cuda.h>

namespace Sporos::Impl {

/// Tensors as the copy engine of Hopper knows them, numbered from 1; part of what a kernel is launched with.
template <int Most>
struct TensorMaps {
  TensorMap maps[Most];
  int count = 0;

  /// Numbers the tensor, of (batch, rows, heads, width), to be copied in boxes of box_rows rows and 64 columns of a head.
  /// \return false if its strides or its address do not suit the engine
  template <class T>
  bool add(HeadTensor<T const>& tensor, int batch, int rows, int heads, int width, int box_rows) {
    static_assert(std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>);
    constexpr auto type =
        std::is_same_v<T, bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    static_assert(sizeof(CUtensorMap) == sizeof(TensorMap) && alignof(CUtensorMap) <= alignof(TensorMap));
    cuuint64_t const sizes[] = {cuuint64_t(width), cuuint64_t(rows), cuuint64_t(heads), cuuint64_t(batch)};
    // A dimension of one element has a stride that nobody uses, and which may be anything.
    auto const bytes = [](std::int64_t stride, int size) { return cuuint64_t(size == 1 ? 16 : 2 * stride); };
    cuuint64_t const strides[] = {bytes(tensor.sequence_stride, rows), bytes(tensor.head_stride, heads),
                                  bytes(tensor.batch_stride, batch)};
    cuuint32_t const box[] = {64, cuuint32_t(box_rows), 1, 1};
    cuuint32_t const steps[] = {1, 1, 1, 1};
    for (cuuint64_t const stride : strides)
      if (stride == 0 || stride % 16 != 0 || stride >= cuuint64_t(1) << 40) return false;
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) return false;
    auto* const map = reinterpret_cast<CUtensorMap*>(maps + count);
    CUresult const result = cuTensorMapEncodeTiled(
        map, type, 4, const_cast<T*>(tensor.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return false;
    tensor.map = ++count;
    return true;
  }
};

}  // namespace Sporos::Impl
#endif

#endif
