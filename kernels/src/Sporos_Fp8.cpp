// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Fp8.hpp"

#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos::Impl {

template <class ExecutionSpace, class T, class Fp8>
void fp8_quantize(ExecutionSpace const& space, std::int64_t rows, Fp8Quantize<T, Fp8> const& arguments) {
  run_items(space, "Sporos::fp8_quantize", rows, arguments);
}

template <class ExecutionSpace, class T, class Fp8>
void fp8_dequantize(ExecutionSpace const& space, std::int64_t rows, Fp8Dequantize<T, Fp8> const& arguments) {
  run_items(space, "Sporos::fp8_dequantize", rows, arguments);
}

template <class ExecutionSpace>
void fp8_update_scale(ExecutionSpace const& space, Fp8UpdateScale const& arguments) {
  run_items(space, "Sporos::fp8_update_scale", 1, arguments);
}

#define SPOROS_INSTANTIATE_FP8(ExecutionSpace, T, Fp8)                                                                 \
  template void fp8_quantize<ExecutionSpace, T, Fp8>(ExecutionSpace const&, std::int64_t, Fp8Quantize<T, Fp8> const&); \
  template void fp8_dequantize<ExecutionSpace, T, Fp8>(ExecutionSpace const&, std::int64_t,                            \
                                                       Fp8Dequantize<T, Fp8> const&);
#define SPOROS_INSTANTIATE_FORMATS(ExecutionSpace, T)        \
  SPOROS_INSTANTIATE_FP8(ExecutionSpace, T, float8_e4m3)     \
  SPOROS_INSTANTIATE_FP8(ExecutionSpace, T, float8_e5m2)     \
  SPOROS_INSTANTIATE_FP8(ExecutionSpace, T, float8_e4m3fnuz) \
  SPOROS_INSTANTIATE_FP8(ExecutionSpace, T, float8_e5m2fnuz)
#define SPOROS_INSTANTIATE(ExecutionSpace)             \
  SPOROS_INSTANTIATE_FORMATS(ExecutionSpace, float)    \
  SPOROS_INSTANTIATE_FORMATS(ExecutionSpace, bfloat16) \
  template void fp8_update_scale<ExecutionSpace>(ExecutionSpace const&, Fp8UpdateScale const&);
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE)

}  // namespace Sporos::Impl
