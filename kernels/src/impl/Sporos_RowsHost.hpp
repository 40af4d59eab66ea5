// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ROWSHOST_HPP
#define SPOROS_ROWSHOST_HPP

#include <cstdint>

#include "impl/Sporos_AdamW_Impl.hpp"
#include "impl/Sporos_CrossEntropy_Impl.hpp"
#include "impl/Sporos_Embedding_Impl.hpp"
#include "impl/Sporos_Fp8_Impl.hpp"
#include "impl/Sporos_Norm_Impl.hpp"

namespace Sporos::Impl {

/// Runs the items from `begin` to before `end` on the calling thread.
template <class Arguments>
struct HostItemsFunction {
  void (*run)(Arguments const& arguments, std::int64_t begin, std::int64_t end);
};

template <class... Arguments>
struct HostItemsTable : HostItemsFunction<Arguments>... {};

/// What one instruction-set level provides: every kernel on rows for every type
using RowsHostKernels = HostItemsTable<
    NormForward<double, Norm::layer>, NormForward<float, Norm::layer>, NormForward<bfloat16, Norm::layer>,
    NormForward<double, Norm::rms>, NormForward<float, Norm::rms>, NormForward<bfloat16, Norm::rms>,
    NormBackward<double, Norm::layer>, NormBackward<float, Norm::layer>, NormBackward<bfloat16, Norm::layer>,
    NormBackward<double, Norm::rms>, NormBackward<float, Norm::rms>, NormBackward<bfloat16, Norm::rms>,
    NormFinish<double>, NormFinish<float>, CrossEntropyForward<double>, CrossEntropyForward<float>,
    CrossEntropyForward<bfloat16>, CrossEntropyBackward<double, double>, CrossEntropyBackward<float, float>,
    CrossEntropyBackward<float, bfloat16>, CrossEntropyBackward<bfloat16, bfloat16>, EmbeddingForward<double>,
    EmbeddingForward<float>, EmbeddingForward<bfloat16>, EmbeddingTokenGradient<double>, EmbeddingTokenGradient<float>,
    EmbeddingTokenGradient<bfloat16>, EmbeddingPositionGradient<double>, EmbeddingPositionGradient<float>,
    EmbeddingPositionGradient<bfloat16>, AdamWStep<double>, AdamWStep<float>, AdamWStep<bfloat16>,
    PartialSums<double, Reduction::sum>, PartialSums<float, Reduction::sum>,
    PartialSums<double, Reduction::sum_of_squares>, PartialSums<float, Reduction::sum_of_squares>, FinalSum,
    Fp8Quantize<float, float8_e4m3>, Fp8Quantize<float, float8_e5m2>, Fp8Quantize<float, float8_e4m3fnuz>,
    Fp8Quantize<float, float8_e5m2fnuz>, Fp8Quantize<bfloat16, float8_e4m3>, Fp8Quantize<bfloat16, float8_e5m2>,
    Fp8Quantize<bfloat16, float8_e4m3fnuz>, Fp8Quantize<bfloat16, float8_e5m2fnuz>, Fp8Dequantize<float, float8_e4m3>,
    Fp8Dequantize<float, float8_e5m2>, Fp8Dequantize<float, float8_e4m3fnuz>, Fp8Dequantize<float, float8_e5m2fnuz>,
    Fp8Dequantize<bfloat16, float8_e4m3>, Fp8Dequantize<bfloat16, float8_e5m2>,
    Fp8Dequantize<bfloat16, float8_e4m3fnuz>, Fp8Dequantize<bfloat16, float8_e5m2fnuz>, Fp8UpdateScale>;

}  // namespace Sporos::Impl

#endif
