// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_CUBLASLT_HPP
#define SPOROS_GEMM_CUBLASLT_HPP

#include <cublasLt.h>

#include <Kokkos_Core.hpp>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "Sporos_Error.hpp"
#include "Sporos_StorageTypes.hpp"
#include "impl/Sporos_Gemm_Arguments.hpp"

namespace Sporos::Impl {

inline void check_cublaslt(cublasStatus_t status, char const* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(concatenate(call, " failed: ", cublasLtGetStatusString(status)));
}

/// Bytes that addresses and strides of matrices must be a multiple of
inline constexpr std::uint32_t cublaslt_alignment = 16;

/// What the library wants to be told about one kind of product. Matrices are column-major there: a row-major D is Dᵀ, the
/// product of op(B)ᵀ and op(A)ᵀ.
class CublasLtProduct {
 public:
  template <class T, class Output>
  explicit CublasLtProduct(GemmArguments<T, Output> const& g) {
    check_cublaslt(cublasLtMatmulDescCreate(&m_operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (g.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of<T>);
    }
    create(m_b, type_of<T>, g.transpose_b == Transpose::yes, g.columns, g.depth, g.b_stride);
    create(m_a, type_of<T>, g.transpose_a == Transpose::yes, g.depth, g.rows, g.a_stride);
    create(m_d, type_of<Output>, false, g.columns, g.rows, g.d_stride);
  }
  CublasLtProduct(CublasLtProduct const&) = delete;
  CublasLtProduct& operator=(CublasLtProduct const&) = delete;
  ~CublasLtProduct() {
    for (cublasLtMatrixLayout_t layout : {m_b, m_a, m_d})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
    if (m_operation) cublasLtMatmulDescDestroy(m_operation);
  }

  /// The algorithm that the library expects to be the fastest, or false if it has none
  bool choose_algorithm(cublasLtHandle_t handle, std::size_t workspace_bytes) {
    cublasLtMatmulPreference_t preference = nullptr;
    check_cublaslt(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof workspace_bytes);
    std::uint32_t const alignment = cublaslt_alignment;  // the library would assume 256
    for (auto const matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      cublasLtMatmulPreferenceSetAttribute(preference, matrix, &alignment, sizeof alignment);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    cublasStatus_t const status =
        cublasLtMatmulAlgoGetHeuristic(handle, m_operation, m_b, m_a, m_d, m_d, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    m_algorithm = result.algo;
    return status == CUBLAS_STATUS_SUCCESS && found > 0;
  }

  template <class T, class Output>
  void run(cublasLtHandle_t handle, cudaStream_t stream, GemmArguments<T, Output> const& g, void* workspace,
           std::size_t workspace_bytes) {
    if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    float const alpha = float(g.alpha), beta = float(g.beta);
    check_cublaslt(cublasLtMatmul(handle, m_operation, &alpha, g.b, m_b, g.a, m_a, &beta, g.d, m_d, g.d, m_d,
                                  &m_algorithm, workspace, workspace_bytes, stream),
                   "cublasLtMatmul");
  }

 private:
  template <class T>
  static constexpr cudaDataType_t type_of = std::is_same_v<T, bfloat16> ? CUDA_R_16BF : CUDA_R_32F;

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check_cublaslt(cublasLtMatmulDescSetAttribute(m_operation, attribute, &value, sizeof value),
                   "cublasLtMatmulDescSetAttribute");
  }

  static void create(cublasLtMatrixLayout_t& layout, cudaDataType_t type, bool transposed, std::int64_t rows,
                     std::int64_t columns, std::int64_t stride) {
    check_cublaslt(cublasLtMatrixLayoutCreate(&layout, type, std::uint64_t(transposed ? columns : rows),
                                              std::uint64_t(transposed ? rows : columns), stride),
                   "cublasLtMatrixLayoutCreate");
  }

  cublasLtMatmulDesc_t m_operation = nullptr;
  cublasLtMatrixLayout_t m_b = nullptr, m_a = nullptr, m_d = nullptr;
  cublasLtMatmulAlgo_t m_algorithm{};
};

/// The library's handle, workspace and the products met so far, of one stream. Asking for an algorithm takes longer than a
/// small product, so it is done once for each kind.
class CublasLtStream {
 public:
  explicit CublasLtStream(Kokkos::Cuda const& space)
      : m_workspace(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "Sporos::gemm::workspace"),
                    workspace_bytes + workspace_alignment) {
    check_cublaslt(cublasLtCreate(&m_handle), "cublasLtCreate");
  }
  CublasLtStream(CublasLtStream const&) = delete;
  CublasLtStream& operator=(CublasLtStream const&) = delete;
  ~CublasLtStream() {
    m_products.clear();
    cublasLtDestroy(m_handle);
  }

  /// False if the library has no algorithm for this product
  template <class T, class Output>
  bool run(Kokkos::Cuda const& space, GemmArguments<T, Output> const& g) {
    Key const key{g.rows,
                  g.columns,
                  g.depth,
                  g.a_stride,
                  g.b_stride,
                  g.d_stride,
                  g.transpose_a == Transpose::yes,
                  g.transpose_b == Transpose::yes,
                  g.bias != nullptr,
                  std::is_same_v<T, bfloat16> + 2 * std::is_same_v<Output, bfloat16>};
    auto [found, is_new] = m_products.try_emplace(key);
    if (is_new) {
      auto product = std::make_unique<CublasLtProduct>(g);
      if (product->choose_algorithm(m_handle, workspace_bytes)) found->second = std::move(product);
    }
    if (!found->second) return false;
    found->second->run(m_handle, space.cuda_stream(), g, aligned_workspace(), workspace_bytes);
    return true;
  }

 private:
  static constexpr std::size_t workspace_bytes = std::size_t(32) << 20;  // NVIDIA's advice for Hopper
  static constexpr std::size_t workspace_alignment = 256;                // refused otherwise; Kokkos aligns to 128
  using Key = std::array<std::int64_t, 10>;

  void* aligned_workspace() const {
    auto const address = reinterpret_cast<std::uintptr_t>(m_workspace.data());
    return m_workspace.data() + (workspace_alignment - address % workspace_alignment) % workspace_alignment;
  }

  cublasLtHandle_t m_handle = nullptr;
  Kokkos::View<std::byte*, Kokkos::CudaSpace> m_workspace;
  std::map<Key, std::unique_ptr<CublasLtProduct>> m_products;  // none: no algorithm
};

/// False if the library does not take this product
template <class T, class Output>
bool gemm_cublaslt(Kokkos::Cuda const& space, GemmArguments<T, Output> const& g) {
  auto const aligned = [](auto const* data, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) % cublaslt_alignment == 0 &&
           stride * std::int64_t(sizeof *data) % cublaslt_alignment == 0;
  };
  if (g.depth == 0 || !aligned(g.a, g.a_stride) || !aligned(g.b, g.b_stride) || !aligned(g.d, g.d_stride) ||
      !aligned(g.bias, 0))
    return false;

  static std::mutex mutex;
  static std::map<cudaStream_t, std::unique_ptr<CublasLtStream>> streams;
  std::lock_guard const lock(mutex);
  if (streams.empty()) Kokkos::push_finalize_hook([] { streams.clear(); });
  auto& stream = streams[space.cuda_stream()];
  if (!stream) stream = std::make_unique<CublasLtStream>(space);
  return stream->run(space, g);
}

}  // namespace Sporos::Impl

#endif
