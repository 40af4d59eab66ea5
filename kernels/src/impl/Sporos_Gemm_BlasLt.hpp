// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GEMM_BLASLT_HPP
#define SPOROS_GEMM_BLASLT_HPP

#include <Kokkos_Core.hpp>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "Sporos_Error.hpp"
#include "Sporos_StorageTypes.hpp"
#include "impl/Sporos_BlasLt.hpp"
#include "impl/Sporos_Gemm_Arguments.hpp"

namespace Sporos::Impl {

inline void check_blaslt(BlasLt::Status status, char const* purpose) {
  if (status != BlasLt::success)
    throw std::runtime_error(
        concatenate("GEMM through cuBLASLt or hipBLASLt: status ", int(status), " when it was to ", purpose));
}

/// Bytes that addresses and strides of matrices must be a multiple of
inline constexpr std::uint32_t blaslt_alignment = 16;

/// What the library wants to be told about one kind of product. Matrices are column-major there: a row-major D is Dᵀ, the
/// product of op(B)ᵀ and op(A)ᵀ.
class BlasLtProduct {
 public:
  template <class T, class Output>
  explicit BlasLtProduct(GemmArguments<T, Output> const& g) {
    check_blaslt(BlasLt::create_operation(&m_operation, BlasLt::compute_float, BlasLt::float_type),
                 "describe a product");
    set(BlasLt::transpose_a, g.transpose_b == Transpose::yes ? BlasLt::transposed : BlasLt::as_it_is);
    set(BlasLt::transpose_b, g.transpose_a == Transpose::yes ? BlasLt::transposed : BlasLt::as_it_is);
    if (g.bias) {
      set(BlasLt::epilogue, BlasLt::epilogue_bias);
      set(BlasLt::bias_type, type_of<T>);
    }
    create(m_b, type_of<T>, g.transpose_b == Transpose::yes, g.columns, g.depth, g.b_stride);
    create(m_a, type_of<T>, g.transpose_a == Transpose::yes, g.depth, g.rows, g.a_stride);
    create(m_d, type_of<Output>, false, g.columns, g.rows, g.d_stride);
  }
  BlasLtProduct(BlasLtProduct const&) = delete;
  BlasLtProduct& operator=(BlasLtProduct const&) = delete;
  ~BlasLtProduct() {
    for (BlasLt::Layout layout : {m_b, m_a, m_d})
      if (layout) BlasLt::destroy_layout(layout);
    if (m_operation) BlasLt::destroy_operation(m_operation);
  }

  /// The algorithm that the library expects to be the fastest, or false if it has none
  bool choose_algorithm(BlasLt::Handle handle, std::size_t workspace_bytes) {
    BlasLt::Preference preference = nullptr;
    check_blaslt(BlasLt::create_preference(&preference), "choose an algorithm");
    BlasLt::set_preference(preference, BlasLt::workspace_bytes, &workspace_bytes, sizeof workspace_bytes);
    BlasLt::promise_alignment(preference, blaslt_alignment);
    BlasLt::Heuristic result{};
    int found = 0;
    BlasLt::Status const status =
        BlasLt::heuristic(handle, m_operation, m_b, m_a, m_d, m_d, preference, 1, &result, &found);
    BlasLt::destroy_preference(preference);
    m_algorithm = result.algo;
    return status == BlasLt::success && found > 0;
  }

  template <class T, class Output>
  void run(BlasLt::Handle handle, BlasLt::Stream stream, GemmArguments<T, Output> const& g, void* workspace,
           std::size_t workspace_bytes) {
    if (g.bias) set(BlasLt::bias_pointer, g.bias);
    float const alpha = float(g.alpha), beta = float(g.beta);
    check_blaslt(BlasLt::matmul(handle, m_operation, &alpha, g.b, m_b, g.a, m_a, &beta, g.d, m_d, g.d, m_d,
                                &m_algorithm, workspace, workspace_bytes, stream),
                 "multiply");
  }

 private:
  template <class T>
  static constexpr BlasLt::DataType type_of = std::is_same_v<T, bfloat16> ? BlasLt::bfloat16_type : BlasLt::float_type;

  template <class Value>
  void set(BlasLt::OperationAttribute attribute, Value value) {
    check_blaslt(BlasLt::set_operation(m_operation, attribute, &value, sizeof value), "describe a product");
  }

  static void create(BlasLt::Layout& layout, BlasLt::DataType type, bool transposed, std::int64_t rows,
                     std::int64_t columns, std::int64_t stride) {
    check_blaslt(BlasLt::create_layout(&layout, type, std::uint64_t(transposed ? columns : rows),
                                       std::uint64_t(transposed ? rows : columns), stride),
                 "describe a matrix");
  }

  BlasLt::Operation m_operation = nullptr;
  BlasLt::Layout m_b = nullptr, m_a = nullptr, m_d = nullptr;
  BlasLt::Algorithm m_algorithm{};
};

/// The library's handle, workspace and the products met so far, of one stream. Asking for an algorithm takes longer than a
/// small product, so it is done once for each kind.
class BlasLtStream {
 public:
  explicit BlasLtStream(BlasLt::Space const& space)
      : m_workspace(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "Sporos::gemm::workspace"),
                    workspace_bytes + workspace_alignment) {
    check_blaslt(BlasLt::create(&m_handle), "start");
  }
  BlasLtStream(BlasLtStream const&) = delete;
  BlasLtStream& operator=(BlasLtStream const&) = delete;
  ~BlasLtStream() {
    m_products.clear();
    BlasLt::destroy(m_handle);
  }

  /// False if the library has no algorithm for this product
  template <class T, class Output>
  bool run(BlasLt::Space const& space, GemmArguments<T, Output> const& g) {
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
      auto product = std::make_unique<BlasLtProduct>(g);
      if (product->choose_algorithm(m_handle, workspace_bytes)) found->second = std::move(product);
    }
    if (!found->second) return false;
    found->second->run(m_handle, BlasLt::stream_of(space), g, aligned_workspace(), workspace_bytes);
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

  BlasLt::Handle m_handle = nullptr;
  Kokkos::View<std::byte*, BlasLt::Space::memory_space> m_workspace;
  std::map<Key, std::unique_ptr<BlasLtProduct>> m_products;  // none: no algorithm
};

/// False if the library does not take this product
template <class T, class Output>
bool gemm_blaslt(BlasLt::Space const& space, GemmArguments<T, Output> const& g) {
  auto const aligned = [](auto const* data, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) % blaslt_alignment == 0 &&
           stride * std::int64_t(sizeof *data) % blaslt_alignment == 0;
  };
  if (g.depth == 0 || !aligned(g.a, g.a_stride) || !aligned(g.b, g.b_stride) || !aligned(g.d, g.d_stride) ||
      !aligned(g.bias, 0))
    return false;

  static std::mutex mutex;
  static std::map<BlasLt::Stream, std::unique_ptr<BlasLtStream>> streams;
  std::lock_guard const lock(mutex);
  if (streams.empty()) Kokkos::push_finalize_hook([] { streams.clear(); });
  auto& stream = streams[BlasLt::stream_of(space)];
  if (!stream) stream = std::make_unique<BlasLtStream>(space);
  return stream->run(space, g);
}

}  // namespace Sporos::Impl

#endif
