// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Gemm.hpp"

#include "impl/Sporos_Gemm_Blas.hpp"
#include "impl/Sporos_Gemm_Device.hpp"
#include "impl/Sporos_Gemm_Host.hpp"
#include "impl/Sporos_HostLevel.hpp"
#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos {

SPOROS_DECLARE_HOST_KERNELS(Impl::GemmHostKernels, gemm_host_kernels)

namespace Impl {

template <class ExecutionSpace, class T, class Output>
struct GemmHost {
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>>;
  struct Pack {};

  GemmHostKernel<T, Output> m_kernel;
  GemmArguments<T, Output> m_arguments;
  GemmHostTiling m_tiling;
  Kokkos::View<std::byte*, ExecutionSpace> m_packed;

  void operator()(Pack, std::int64_t item) const { m_kernel.pack(m_arguments, item, m_packed.data()); }

  /// One team of one thread for each tile of D: tiles are independent and share no scratch. Teams take the tiles in turns,
  /// for a league is counted in int.
  void operator()(typename Policy::member_type const& member) const {
    void* const scratch = member.team_scratch(1).get_shmem_aligned(m_tiling.scratch_bytes, 64);
    std::int64_t const tiles = m_tiling.tiles_down * m_tiling.tiles_across;
    for (std::int64_t tile = member.league_rank(); tile < tiles; tile += member.league_size())
      m_kernel.tile(m_arguments, m_tiling, tile, m_packed.data(), scratch);
  }

  void run(ExecutionSpace const& space) const {
    using PackPolicy =
        Kokkos::RangePolicy<ExecutionSpace, Pack, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for("Sporos::gemm::pack", PackPolicy(space, 0, m_tiling.packs), *this);

    std::int64_t const tiles = m_tiling.tiles_down * m_tiling.tiles_across;
    Policy policy(space, int(tiles < 1 << 30 ? tiles : 1 << 30), 1);
    // Level 1: hosts have 32 KiB at level 0
    policy.set_scratch_size(1, Kokkos::PerTeam(int(m_tiling.scratch_bytes) + 64));
    Kokkos::parallel_for("Sporos::gemm", policy, *this);
  }
};

template <class ExecutionSpace, class T, class Output>
void gemm_host(ExecutionSpace const& space, GemmArguments<T, Output> const& arguments) {
  GemmHostKernel<T, Output> const kernel = gemm_host_kernels(best_host_level());
  GemmHostTiling const tiling = kernel.tiling(arguments, space.concurrency());
  Kokkos::View<std::byte*, ExecutionSpace> const packed(
      Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "Sporos::gemm::packed"), tiling.packed_bytes);
  GemmHost<ExecutionSpace, T, Output>{kernel, arguments, tiling, packed}.run(space);
}

template <class ExecutionSpace, class T, class Output>
void gemm(ExecutionSpace const& space, GemmArguments<T, Output> const& arguments) {
  if (arguments.rows == 0 || arguments.columns == 0) return;
  if constexpr (is_host_space<ExecutionSpace>) {
    gemm_host(space, arguments);
  } else {
    if (!gemm_blas(space, arguments)) gemm_device(space, arguments);
  }
}

/// Sums of column_sums_block rows each, one row of partial sums for each block
inline constexpr std::int64_t column_sums_block = 128;

template <class T>
struct ColumnSumsHost {
  ColumnSumsHostKernel<T> m_kernel;
  T const* m_x;
  std::int64_t m_rows, m_columns, m_stride;
  ComputeType<T>* m_partial;

  void operator()(std::int64_t block) const {
    std::int64_t const first = block * column_sums_block;
    std::int64_t const count = m_rows - first < column_sums_block ? m_rows - first : column_sums_block;
    m_kernel.sum(m_x + first * m_stride, count, m_columns, m_stride, m_partial + block * m_columns);
  }
};

template <class T>
struct ColumnSumsDevice {
  T const* m_x;
  std::int64_t m_rows, m_columns, m_stride;
  ComputeType<T>* m_partial;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    std::int64_t const first = item / m_columns * column_sums_block, column = item % m_columns;
    std::int64_t const end = m_rows - first < column_sums_block ? m_rows : first + column_sums_block;
    ComputeType<T> sum = 0;
    for (std::int64_t row = first; row < end; ++row) sum += ComputeType<T>(m_x[row * m_stride + column]);
    m_partial[item] = sum;
  }
};

template <class C>
struct AddPartialSums {
  C const* m_partial;
  std::int64_t m_blocks, m_columns;
  C* m_sums;

  KOKKOS_FUNCTION void operator()(std::int64_t column) const {
    C sum = 0;
    for (std::int64_t block = 0; block < m_blocks; ++block) sum += m_partial[block * m_columns + column];
    m_sums[column] += sum;
  }
};

template <class ExecutionSpace, class T>
void column_sums(ExecutionSpace const& space, T const* x, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                 ComputeType<T>* sums, Workspace<ExecutionSpace>& workspace) {
  using C = ComputeType<T>;
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;
  if (rows == 0 || columns == 0) return;
  std::int64_t const blocks = (rows + column_sums_block - 1) / column_sums_block;
  C* const partial = workspace.template take<C>(std::size_t(blocks * columns)).data();
  if constexpr (is_host_space<ExecutionSpace>) {
    ColumnSumsHostKernel<T> const kernel = gemm_host_kernels(best_host_level());
    Kokkos::parallel_for("Sporos::column_sums", Policy(space, 0, blocks),
                         ColumnSumsHost<T>{kernel, x, rows, columns, stride, partial});
  } else {
    Kokkos::parallel_for("Sporos::column_sums", Policy(space, 0, blocks * columns),
                         ColumnSumsDevice<T>{x, rows, columns, stride, partial});
  }
  Kokkos::parallel_for("Sporos::column_sums::add", Policy(space, 0, columns),
                       AddPartialSums<C>{partial, blocks, columns, sums});
}

#define SPOROS_INSTANTIATE_COLUMN_SUMS(ExecutionSpace, T)                                              \
  template void column_sums(ExecutionSpace const&, T const*, std::int64_t, std::int64_t, std::int64_t, \
                            ComputeType<T>*, Workspace<ExecutionSpace>&);
#define SPOROS_INSTANTIATE_GEMM(ExecutionSpace)                                        \
  template void gemm(ExecutionSpace const&, GemmArguments<double, double> const&);     \
  template void gemm(ExecutionSpace const&, GemmArguments<float, float> const&);       \
  template void gemm(ExecutionSpace const&, GemmArguments<bfloat16, bfloat16> const&); \
  template void gemm(ExecutionSpace const&, GemmArguments<bfloat16, float> const&);    \
  SPOROS_INSTANTIATE_COLUMN_SUMS(ExecutionSpace, double)                               \
  SPOROS_INSTANTIATE_COLUMN_SUMS(ExecutionSpace, float)                                \
  SPOROS_INSTANTIATE_COLUMN_SUMS(ExecutionSpace, bfloat16)
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE_GEMM)

}  // namespace Impl
}  // namespace Sporos
