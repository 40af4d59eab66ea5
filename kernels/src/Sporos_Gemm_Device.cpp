// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_Gemm_Device.hpp"

#include "impl/Sporos_DeviceLaunch.hpp"
#include "impl/Sporos_Gemm_Tile.hpp"
#include "tile/Sporos_Arch_Simt.hpp"

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
namespace Sporos::Impl {

template <class T, class Output>
struct GemmWork {
  using Tile = GemmTile<Arch::Simt, T, Output>;
  using Architecture = Arch::Simt;
  using Scratch = typename Tile::Scratch;

  static constexpr int teams_at_once = 3;

  GemmArguments<T, Output> m_arguments;

  __device__ void operator()(Team<Arch::Simt>& team, Scratch& scratch, int item) const {
    // Neighbouring items share their columns of B.
    std::int64_t const tiles = Tile::tiles(m_arguments.rows, Tile::rows);
    Tile(team, scratch).compute(m_arguments, item % tiles, item / tiles);
  }
};

template <class ExecutionSpace, class T, class Output>
void gemm_device(ExecutionSpace const& space, GemmArguments<T, Output> const& arguments) {
  using Tile = GemmTile<Arch::Simt, T, Output>;
  launch_tiles("Sporos::gemm", space,
               Tile::tiles(arguments.rows, Tile::rows) * Tile::tiles(arguments.columns, Tile::columns),
               GemmWork<T, Output>{arguments});
}

#define SPOROS_INSTANTIATE(Space)                                                           \
  template void gemm_device<Space>(Space const&, GemmArguments<double, double> const&);     \
  template void gemm_device<Space>(Space const&, GemmArguments<float, float> const&);       \
  template void gemm_device<Space>(Space const&, GemmArguments<bfloat16, bfloat16> const&); \
  template void gemm_device<Space>(Space const&, GemmArguments<bfloat16, float> const&);
SPOROS_INSTANTIATE_FOR_DEVICES(SPOROS_INSTANTIATE)
#undef SPOROS_INSTANTIATE

}  // namespace Sporos::Impl
#endif
