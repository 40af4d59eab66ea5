// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>

#if defined(KOKKOS_ENABLE_HIP)
#include "impl/Sporos_FlashAttention_DeviceTiles_Impl.hpp"
#include "tile/Sporos_Arch_Mfma.hpp"

namespace Sporos::Impl {
SPOROS_INSTANTIATE_DEVICE_TILES(Arch::Gfx90a, bfloat16)
SPOROS_INSTANTIATE_DEVICE_TILES(Arch::Gfx942, bfloat16)
}  // namespace Sporos::Impl
#endif
