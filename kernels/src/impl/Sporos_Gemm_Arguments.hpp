// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_ARGUMENTS_HPP
#define SPOROS_GEMM_ARGUMENTS_HPP

#include <cstdint>

namespace Sporos {

/// Whether a matrix takes part as it lies in memory or transposed
enum class Transpose { no, yes };

namespace Impl {

/// One product, with what is fused to it. Plain data: it crosses the border to host levels and to devices.
///
///     x = alpha · op(A) · op(B) + beta · D + bias        (D is not read when beta = 0)
///     without z:  D = x         with z:  Z = x rounded to Output, D = gelu(Z)
template <class T, class Output>
struct GemmArguments {
  T const* a;
  T const* b;
  Output* d;
  Output* z = nullptr;
  T const* bias = nullptr;  // one for each column, or none

  std::int64_t rows, columns;  // of D
  std::int64_t depth;          // columns of op(A), rows of op(B)

  // From one row to the next, of each matrix as it lies: A is (rows, depth), or (depth, rows) if transposed; so is B.
  std::int64_t a_stride, b_stride, d_stride;
  std::int64_t z_stride = 0;

  Transpose transpose_a = Transpose::no;
  Transpose transpose_b = Transpose::no;

  double alpha = 1;
  double beta = 0;
};

}  // namespace Impl
}  // namespace Sporos

#endif
