// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Gelu.hpp"

#include "impl/Sporos_Gelu_Host.hpp"
#include "impl/Sporos_Gelu_Scalar.hpp"
#include "impl/Sporos_HostLevel.hpp"
#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos {

SPOROS_DECLARE_HOST_KERNELS(Impl::GeluHostKernels, gelu_host_kernels)

namespace Impl {

/// A piece of one row at a time
template <class T>
struct GeluHost {
  static constexpr std::int64_t piece = 8192;  // long enough to hide the call, short enough to share out

  GeluArguments<T> m_g;
  GeluHostKernel<T> m_kernel;

  std::int64_t pieces_per_row() const { return (m_g.columns + piece - 1) / piece; }

  void operator()(std::int64_t item) const {
    std::int64_t const row = item / pieces_per_row(), first = item % pieces_per_row() * piece;
    std::int64_t const count = m_g.columns - first < piece ? m_g.columns - first : piece;
    T const* const x = m_g.x + row * m_g.x_stride + first;
    T* const result = m_g.result + row * m_g.result_stride + first;
    if (m_g.dy)
      m_kernel.backward(m_g.dy + row * m_g.dy_stride + first, x, result, count);
    else
      m_kernel.forward(x, result, count);
  }
};

template <class T>
struct GeluDevice {
  GeluArguments<T> m_g;

  KOKKOS_FUNCTION void operator()(std::int64_t element) const {
    using C = ComputeType<T>;
    std::int64_t const row = element / m_g.columns, column = element % m_g.columns;
    C const x = C(m_g.x[row * m_g.x_stride + column]);
    C const value = m_g.dy ? C(m_g.dy[row * m_g.dy_stride + column]) * gelu_derivative_scalar(x) : gelu_scalar(x);
    m_g.result[row * m_g.result_stride + column] = T(value);
  }
};

template <class ExecutionSpace, class T>
void gelu(ExecutionSpace const& space, GeluArguments<T> const& arguments) {
  GeluArguments<T> g = arguments;
  if (g.rows == 0 || g.columns == 0) return;
  char const* const label = g.dy ? "Sporos::gelu_backward" : "Sporos::gelu";
  if constexpr (is_host_space<ExecutionSpace>) {
    bool const gapless = g.x_stride == g.columns && g.result_stride == g.columns && (!g.dy || g.dy_stride == g.columns);
    if (gapless) {
      g.columns *= g.rows;
      g.rows = 1;
    }
    GeluHost<T> const kernel{g, gelu_host_kernels(best_host_level())};
    using Policy =
        Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for(label, Policy(space, 0, g.rows * kernel.pieces_per_row()), kernel);
  } else {
    using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for(label, Policy(space, 0, g.rows * g.columns), GeluDevice<T>{g});
  }
}

#define SPOROS_INSTANTIATE_GELU(ExecutionSpace)                                  \
  template void gelu(ExecutionSpace const& space, GeluArguments<double> const&); \
  template void gelu(ExecutionSpace const& space, GeluArguments<float> const&);  \
  template void gelu(ExecutionSpace const& space, GeluArguments<bfloat16> const&);
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE_GELU)

}  // namespace Impl
}  // namespace Sporos
