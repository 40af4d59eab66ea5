// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_Gemm_Blas.hpp"

#include <Kokkos_Core.hpp>
#include <type_traits>

#include "Sporos_StorageTypes.hpp"
#include "impl/Sporos_Gelu_Scalar.hpp"

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)

#ifdef SPOROS_HAVE_KOKKOSKERNELS
#include <KokkosBlas3_gemm.hpp>
#endif
#if defined(SPOROS_ENABLE_CUBLASLT) || defined(SPOROS_ENABLE_HIPBLASLT)
#define SPOROS_HAVE_BLASLT
#include "impl/Sporos_Gemm_BlasLt.hpp"
#endif

namespace Sporos::Impl {

/// What a library leaves to be done: D += bias; or Z += bias, D = gelu(Z)
template <class T, class Output>
struct GemmEpilogue {
  GemmArguments<T, Output> m_g;
  bool m_add_bias;

  KOKKOS_FUNCTION void operator()(std::int64_t element) const {
    using C = ComputeType<Output>;
    std::int64_t const row = element / m_g.columns, column = element % m_g.columns;
    Output& d = m_g.d[row * m_g.d_stride + column];
    Output& x = m_g.z ? m_g.z[row * m_g.z_stride + column] : d;
    if (m_add_bias) x = Output(C(x) + C(m_g.bias[column]));
    if (m_g.z) d = Output(gelu_scalar(C(x)));
  }
};

#ifdef SPOROS_HAVE_KOKKOSKERNELS
/// Kokkos Kernels takes a stride between columns without copying where a View is LayoutLeft: a row-major D is Dᵀ there, the
/// product of op(B)ᵀ and op(A)ᵀ.
template <class ExecutionSpace, class T>
void gemm_kokkosblas(ExecutionSpace const& space, GemmArguments<T, T> const& g) {
  auto const turned = [](auto* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    using View = Kokkos::View<std::remove_pointer_t<decltype(data)>**, Kokkos::LayoutLeft, ExecutionSpace,
                              Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    return Kokkos::subview(View(data, std::size_t(stride), std::size_t(rows)),
                           Kokkos::pair<std::int64_t, std::int64_t>(0, columns), Kokkos::ALL);
  };
  bool const a_turned = g.transpose_a == Transpose::yes, b_turned = g.transpose_b == Transpose::yes;
  auto const a = turned(g.a, a_turned ? g.depth : g.rows, a_turned ? g.rows : g.depth, g.a_stride);
  auto const b = turned(g.b, b_turned ? g.columns : g.depth, b_turned ? g.depth : g.columns, g.b_stride);
  KokkosBlas::gemm(space, b_turned ? "T" : "N", a_turned ? "T" : "N", T(g.alpha), b, a, T(g.beta),
                   turned(g.d, g.rows, g.columns, g.d_stride));
}
#endif

template <class ExecutionSpace, class T, class Output>
bool gemm_blas(ExecutionSpace const& space, GemmArguments<T, Output> const& arguments) {
  [[maybe_unused]] GemmArguments<T, Output> product = arguments;  // into Z, if there is one
  if (arguments.z) {
    product.d = arguments.z;
    product.d_stride = arguments.z_stride;
    product.z = nullptr;
  }
  bool done = false, add_bias = arguments.bias != nullptr;
#ifdef SPOROS_HAVE_BLASLT
  if constexpr (!std::is_same_v<T, double>) {
    done = gemm_blaslt(space, product);
    if (done) add_bias = false;
  }
#endif
#ifdef SPOROS_HAVE_KOKKOSKERNELS
  if constexpr (!std::is_same_v<T, bfloat16>)
    if (!done && arguments.depth > 0) {
      gemm_kokkosblas(space, product);
      done = true;
    }
#endif
  if (done && (add_bias || arguments.z))
    Kokkos::parallel_for("Sporos::gemm::epilogue",
                         Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(
                             space, 0, arguments.rows * arguments.columns),
                         GemmEpilogue<T, Output>{arguments, add_bias});
  return done;
}

#define SPOROS_INSTANTIATE_GEMM_BLAS(T, Output) \
  template bool gemm_blas(Kokkos::DefaultExecutionSpace const&, GemmArguments<T, Output> const&);
SPOROS_INSTANTIATE_GEMM_BLAS(double, double)
SPOROS_INSTANTIATE_GEMM_BLAS(float, float)
SPOROS_INSTANTIATE_GEMM_BLAS(bfloat16, bfloat16)
SPOROS_INSTANTIATE_GEMM_BLAS(bfloat16, float)

}  // namespace Sporos::Impl

#endif
