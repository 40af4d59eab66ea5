// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_HOST_HPP
#define SPOROS_GEMM_HOST_HPP

#include <cstddef>
#include <cstdint>

#include "Sporos_StorageTypes.hpp"
#include "impl/Sporos_Gemm_Arguments.hpp"

namespace Sporos::Impl {

/// How the work is cut: first `packs` items that lay B out, then tiles of rows x columns of D, tile i being
/// (i / tiles_across, i % tiles_across).
struct GemmHostTiling {
  int rows, columns;
  std::int64_t tiles_down, tiles_across;
  std::int64_t packs;
  std::size_t packed_bytes;   ///< of all of B, aligned to 64 bytes
  std::size_t scratch_bytes;  ///< of one tile, aligned to 64 bytes, for its call alone
};

/// What one instruction-set level provides: plain functions on plain data, one call for each item of work
template <class T, class Output>
struct GemmHostKernel {
  GemmHostTiling (*tiling)(GemmArguments<T, Output> const&, int threads);
  void (*pack)(GemmArguments<T, Output> const&, std::int64_t item, void* packed);
  void (*tile)(GemmArguments<T, Output> const&, GemmHostTiling const&, std::int64_t item, void const* packed,
               void* scratch);
};

/// sums[c] = Σ of x[r][c] over `rows` rows
template <class T>
struct ColumnSumsHostKernel {
  void (*sum)(T const* x, std::int64_t rows, std::int64_t columns, std::int64_t stride, ComputeType<T>* sums);
};

struct GemmHostKernels : GemmHostKernel<double, double>,
                         GemmHostKernel<float, float>,
                         GemmHostKernel<bfloat16, bfloat16>,
                         GemmHostKernel<bfloat16, float>,
                         ColumnSumsHostKernel<double>,
                         ColumnSumsHostKernel<float>,
                         ColumnSumsHostKernel<bfloat16> {};

}  // namespace Sporos::Impl

#endif
