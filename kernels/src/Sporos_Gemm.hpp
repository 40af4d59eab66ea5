// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_HPP
#define SPOROS_GEMM_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <type_traits>

#include "Sporos_Error.hpp"
#include "Sporos_StorageTypes.hpp"
#include "Sporos_ViewChecks.hpp"
#include "Sporos_Workspace.hpp"
#include "impl/Sporos_Gemm_Arguments.hpp"

namespace Sporos {

namespace Impl {

/// Defined for (T, Output) = (double, double), (float, float), (bfloat16, bfloat16) and (bfloat16, float)
template <class ExecutionSpace, class T, class Output>
void gemm(ExecutionSpace const& space, GemmArguments<T, Output> const& arguments);

template <class ExecutionSpace, class T>
void column_sums(ExecutionSpace const& space, T const* x, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                 ComputeType<T>* sums, Workspace<ExecutionSpace>& workspace);

inline char const* name_of(Transpose transpose) { return transpose == Transpose::yes ? " transposed" : ""; }

/// From one row to the next; a View of one row may have any stride.
template <class View>
std::int64_t row_stride(View const& view) {
  return std::int64_t(view.stride(0));
}

template <class ExecutionSpace, class AView, class BView, class DView>
auto gemm_arguments(Transpose transpose_a, Transpose transpose_b, AView const& a, BView const& b, DView const& d) {
  static_assert(AView::rank() == 2 && BView::rank() == 2 && DView::rank() == 2, "A, B and D are matrices");
  static_assert(is_accessible<ExecutionSpace, AView> && is_accessible<ExecutionSpace, BView> &&
                    is_accessible<ExecutionSpace, DView>,
                "The execution space cannot reach the memory of A, B or D");
  using T = typename AView::non_const_value_type;
  using Output = typename DView::value_type;
  static_assert(std::is_same_v<T, typename BView::non_const_value_type>, "A and B are of one type");
  static_assert(!std::is_const_v<Output>, "D is written");

  require_unit_stride("A", a);
  require_unit_stride("B", b);
  require_unit_stride("D", d);
  bool const a_turned = transpose_a == Transpose::yes, b_turned = transpose_b == Transpose::yes;
  GemmArguments<T, Output> g{};
  g.rows = std::int64_t(a.extent(a_turned ? 1 : 0));
  g.depth = std::int64_t(a.extent(a_turned ? 0 : 1));
  g.columns = std::int64_t(b.extent(b_turned ? 0 : 1));
  SPOROS_THROW_IF(std::int64_t(b.extent(b_turned ? 1 : 0)) != g.depth || std::int64_t(d.extent(0)) != g.rows ||
                      std::int64_t(d.extent(1)) != g.columns,
                  "A is ", extents(a), name_of(transpose_a), ", B is ", extents(b), name_of(transpose_b), ", D is ",
                  extents(d));
  g.a = a.data();
  g.b = b.data();
  g.d = d.data();
  g.a_stride = row_stride(a);
  g.b_stride = row_stride(b);
  g.d_stride = row_stride(d);
  g.transpose_a = transpose_a;
  g.transpose_b = transpose_b;
  return g;
}

template <class ExecutionSpace, class AView, class BView, class BiasView, class DView>
auto gemm_bias_arguments(AView const& a, BView const& b, BiasView const& bias, DView const& d) {
  static_assert(BiasView::rank() == 1, "The bias is a row");
  static_assert(std::is_same_v<typename AView::non_const_value_type, typename BiasView::non_const_value_type>,
                "A, B and the bias are of one type");
  static_assert(is_accessible<ExecutionSpace, BiasView>, "The execution space cannot reach the memory of the bias");
  auto g = gemm_arguments<ExecutionSpace>(Transpose::no, Transpose::no, a, b, d);
  require_unit_stride("the bias", bias);
  SPOROS_THROW_IF(std::int64_t(bias.extent(0)) != g.columns, "the bias is ", extents(bias), ", D is ", extents(d));
  g.bias = bias.data();
  return g;
}

}  // namespace Impl

/// The product of two matrices:
///
///     D = alpha · op(A) · op(B) + beta · D,   op(X) = X or Xᵀ
///
/// \param space where the kernel runs; the call returns before it has finished
/// \param transpose_a, transpose_b whether op transposes
/// \param a [in] (rows, depth), or (depth, rows) if transposed
/// \param b [in] (depth, columns), or (columns, depth) if transposed
/// \param beta with 0, D is not read: what it held may be NaN
/// \param d [in, out] (rows, columns); shares no memory with A or B
/// \throws InvalidArgument when the extents do not fit together or a last dimension has a stride
///
/// All have unit stride in the last dimension and any stride between rows. A and B are double, float or bfloat16, D is of the
/// same type; bfloat16 also gives a D of float. Sums are in double for double, else in float, their order does not depend on
/// the number of threads. Blocks and packing follow Goto and van de Geijn, "Anatomy of high-performance matrix
/// multiplication", ACM TOMS 34(3), 2008.
template <class ExecutionSpace, class AView, class BView, class DView>
void gemm(ExecutionSpace const& space, Transpose transpose_a, Transpose transpose_b, double alpha, AView const& a,
          BView const& b, double beta, DView const& d) {
  Kokkos::Profiling::ScopedRegion region("Sporos::gemm");
  auto g = Impl::gemm_arguments<ExecutionSpace>(transpose_a, transpose_b, a, b, d);
  g.alpha = alpha;
  g.beta = beta;
  Impl::gemm(space, g);
}

/// D = A · B + bias, the bias added to every row: a linear layer
///
/// \param a [in] (rows, depth), \param b [in] (depth, columns), \param bias [in] (columns), of one type
/// \param d [out] (rows, columns)
/// Types, strides and exceptions as for gemm.
template <class ExecutionSpace, class AView, class BView, class BiasView, class DView>
void gemm_bias(ExecutionSpace const& space, AView const& a, BView const& b, BiasView const& bias, DView const& d) {
  Kokkos::Profiling::ScopedRegion region("Sporos::gemm_bias");
  Impl::gemm(space, Impl::gemm_bias_arguments<ExecutionSpace>(a, b, bias, d));
}

/// A linear layer and its activation, keeping what the backward pass needs:
///
///     Z = A · B + bias,   D = gelu(Z)
///
/// \param z [out] (rows, columns); D is computed from Z as it is stored, so gelu_backward(Z) is its exact derivative
/// \param d [out] (rows, columns), of the type of Z; other memory than Z
/// gelu is that of Sporos_Gelu.hpp. Types, strides and exceptions as for gemm.
template <class ExecutionSpace, class AView, class BView, class BiasView, class ZView, class DView>
void gemm_bias_gelu(ExecutionSpace const& space, AView const& a, BView const& b, BiasView const& bias, ZView const& z,
                    DView const& d) {
  static_assert(std::is_same_v<typename ZView::value_type, typename DView::value_type>, "Z and D are of one type");
  static_assert(Impl::is_accessible<ExecutionSpace, ZView>, "The execution space cannot reach the memory of Z");
  Kokkos::Profiling::ScopedRegion region("Sporos::gemm_bias_gelu");
  auto g = Impl::gemm_bias_arguments<ExecutionSpace>(a, b, bias, d);
  Impl::require_unit_stride("Z", z);
  Impl::require_same_extents("Z", z, "D", d);
  g.z = z.data();
  g.z_stride = Impl::row_stride(z);
  if (g.rows > 0 && g.columns > 0) SPOROS_THROW_IF(g.z == g.d, "Z and D, ", Impl::extents(d), ", are the same memory");
  Impl::gemm(space, g);
}

/// Adds the sum of each column, the gradient of a bias:
///
///     sums[c] += Σ_r x[r][c]
///
/// \param x [in] (rows, columns), unit stride in columns; double, float or bfloat16
/// \param sums [in, out] (columns), double for double, else float
/// \param workspace for partial sums
/// \throws InvalidArgument when the extents differ
///
/// Rows are added in blocks, blocks in order: the same bits for any number of threads.
template <class ExecutionSpace, class XView, class SumsView>
void column_sums(ExecutionSpace const& space, XView const& x, SumsView const& sums,
                 Workspace<ExecutionSpace>& workspace) {
  static_assert(XView::rank() == 2 && SumsView::rank() == 1, "x is (rows, columns), sums is (columns)");
  using T = typename XView::non_const_value_type;
  static_assert(std::is_same_v<typename SumsView::value_type, ComputeType<T>>, "sums are of ComputeType<T>");
  static_assert(Impl::is_accessible<ExecutionSpace, XView> && Impl::is_accessible<ExecutionSpace, SumsView>,
                "The execution space cannot reach the memory of x or sums");
  Kokkos::Profiling::ScopedRegion region("Sporos::column_sums");
  Impl::require_unit_stride("x", x);
  Impl::require_unit_stride("sums", sums);
  SPOROS_THROW_IF(x.extent(1) != sums.extent(0), "x is ", Impl::extents(x), ", sums is ", Impl::extents(sums));
  T const* const data = x.data();
  Impl::column_sums(space, data, std::int64_t(x.extent(0)), std::int64_t(x.extent(1)), Impl::row_stride(x), sums.data(),
                    workspace);
}

}  // namespace Sporos

#endif
