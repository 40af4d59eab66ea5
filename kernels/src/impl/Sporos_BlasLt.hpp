// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_BLASLT_HPP
#define SPOROS_BLASLT_HPP

#include <Kokkos_Core.hpp>
#include <cstdint>

// cuBLASLt and hipBLASLt are one interface under two spellings. These are our names for either.
#if defined(SPOROS_ENABLE_CUBLASLT)

#include <cublasLt.h>

namespace Sporos::Impl::BlasLt {

using Space = Kokkos::Cuda;
using Stream = cudaStream_t;
using Status = cublasStatus_t;
using DataType = cudaDataType_t;
using Handle = cublasLtHandle_t;
using Operation = cublasLtMatmulDesc_t;
using OperationAttribute = cublasLtMatmulDescAttributes_t;
using Layout = cublasLtMatrixLayout_t;
using Preference = cublasLtMatmulPreference_t;
using Heuristic = cublasLtMatmulHeuristicResult_t;
using Algorithm = cublasLtMatmulAlgo_t;
inline constexpr auto success = CUBLAS_STATUS_SUCCESS;
inline constexpr auto compute_float = CUBLAS_COMPUTE_32F;
inline constexpr auto as_it_is = CUBLAS_OP_N;
inline constexpr auto transposed = CUBLAS_OP_T;
inline constexpr auto float_type = CUDA_R_32F;
inline constexpr auto bfloat16_type = CUDA_R_16BF;
inline constexpr auto transpose_a = CUBLASLT_MATMUL_DESC_TRANSA;
inline constexpr auto transpose_b = CUBLASLT_MATMUL_DESC_TRANSB;
inline constexpr auto epilogue = CUBLASLT_MATMUL_DESC_EPILOGUE;
inline constexpr auto epilogue_bias = CUBLASLT_EPILOGUE_BIAS;
inline constexpr auto bias_type = CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE;
inline constexpr auto bias_pointer = CUBLASLT_MATMUL_DESC_BIAS_POINTER;
inline constexpr auto workspace_bytes = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
inline constexpr auto create = cublasLtCreate;
inline constexpr auto destroy = cublasLtDestroy;
inline constexpr auto create_operation = cublasLtMatmulDescCreate;
inline constexpr auto destroy_operation = cublasLtMatmulDescDestroy;
inline constexpr auto set_operation = cublasLtMatmulDescSetAttribute;
inline constexpr auto create_layout = cublasLtMatrixLayoutCreate;
inline constexpr auto destroy_layout = cublasLtMatrixLayoutDestroy;
inline constexpr auto create_preference = cublasLtMatmulPreferenceCreate;
inline constexpr auto destroy_preference = cublasLtMatmulPreferenceDestroy;
inline constexpr auto set_preference = cublasLtMatmulPreferenceSetAttribute;
inline constexpr auto heuristic = cublasLtMatmulAlgoGetHeuristic;
inline constexpr auto matmul = cublasLtMatmul;
inline Stream stream_of(Space const& space) { return space.cuda_stream(); }
/// Without it the library would assume 256 bytes.
inline void promise_alignment(Preference preference, std::uint32_t bytes) {
  for (auto const matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set_preference(preference, matrix, &bytes, sizeof bytes);
}

}  // namespace Sporos::Impl::BlasLt

#elif defined(SPOROS_ENABLE_HIPBLASLT)

#include <hipblaslt/hipblaslt.h>

namespace Sporos::Impl::BlasLt {

using Space = Kokkos::HIP;
using Stream = hipStream_t;
using Status = hipblasStatus_t;
using DataType = hipDataType;
using Handle = hipblasLtHandle_t;
using Operation = hipblasLtMatmulDesc_t;
using OperationAttribute = hipblasLtMatmulDescAttributes_t;
using Layout = hipblasLtMatrixLayout_t;
using Preference = hipblasLtMatmulPreference_t;
using Heuristic = hipblasLtMatmulHeuristicResult_t;
using Algorithm = hipblasLtMatmulAlgo_t;
inline constexpr auto success = HIPBLAS_STATUS_SUCCESS;
inline constexpr auto compute_float = HIPBLAS_COMPUTE_32F;
inline constexpr auto as_it_is = HIPBLAS_OP_N;
inline constexpr auto transposed = HIPBLAS_OP_T;
inline constexpr auto float_type = HIP_R_32F;
inline constexpr auto bfloat16_type = HIP_R_16BF;
inline constexpr auto transpose_a = HIPBLASLT_MATMUL_DESC_TRANSA;
inline constexpr auto transpose_b = HIPBLASLT_MATMUL_DESC_TRANSB;
inline constexpr auto epilogue = HIPBLASLT_MATMUL_DESC_EPILOGUE;
inline constexpr auto epilogue_bias = HIPBLASLT_EPILOGUE_BIAS;
inline constexpr auto bias_type = HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE;
inline constexpr auto bias_pointer = HIPBLASLT_MATMUL_DESC_BIAS_POINTER;
inline constexpr auto workspace_bytes = HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
inline constexpr auto create = hipblasLtCreate;
inline constexpr auto destroy = hipblasLtDestroy;
inline constexpr auto create_operation = hipblasLtMatmulDescCreate;
inline constexpr auto destroy_operation = hipblasLtMatmulDescDestroy;
inline constexpr auto set_operation = hipblasLtMatmulDescSetAttribute;
inline constexpr auto create_layout = hipblasLtMatrixLayoutCreate;
inline constexpr auto destroy_layout = hipblasLtMatrixLayoutDestroy;
inline constexpr auto create_preference = hipblasLtMatmulPreferenceCreate;
inline constexpr auto destroy_preference = hipblasLtMatmulPreferenceDestroy;
inline constexpr auto set_preference = hipblasLtMatmulPreferenceSetAttribute;
inline constexpr auto heuristic = hipblasLtMatmulAlgoGetHeuristic;
inline constexpr auto matmul = hipblasLtMatmul;
inline Stream stream_of(Space const& space) { return space.hip_stream(); }
/// This library asks the pointers themselves.
inline void promise_alignment(Preference, std::uint32_t) {}

}  // namespace Sporos::Impl::BlasLt

#endif

#endif
