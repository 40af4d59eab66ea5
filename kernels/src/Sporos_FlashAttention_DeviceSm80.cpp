// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>

#if defined(KOKKOS_ENABLE_CUDA)
#include "impl/Sporos_FlashAttention_DeviceTiles_Impl.hpp"
#include "tile/Sporos_Arch_Sm80.hpp"

namespace Sporos::Impl {
SPOROS_INSTANTIATE_DEVICE_TILES(Arch::Sm80, bfloat16)
SPOROS_INSTANTIATE_DEVICE_TILES(Arch::Sm80SmallScratch, bfloat16)
}  // namespace Sporos::Impl
#endif
