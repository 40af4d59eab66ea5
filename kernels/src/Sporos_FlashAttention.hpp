// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_HPP
#define SPOROS_FLASHATTENTION_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "Sporos_Error.hpp"
#include "Sporos_Random.hpp"
#include "Sporos_StorageTypes.hpp"
#include "Sporos_ViewChecks.hpp"
#include "Sporos_Workspace.hpp"
#include "impl/Sporos_FlashAttention_Problem.hpp"

namespace Sporos {

/// Which keys a query sees, of seq_q queries and seq_k keys
enum class CausalMask {
  none,         ///< all
  top_left,     ///< query i sees keys j <= i
  bottom_right  ///< query i sees keys j <= i + seq_k - seq_q: the last query sees every key
};

struct FlashAttentionOptions {
  double scale = 0;  ///< of the scores, positive; 0 stands for 1/√head_dim
  CausalMask causal = CausalMask::none;
  /// of the probabilities; index ((batch · heads + head) · seq_q + i) · seq_k + j, plus first_element
  Dropout dropout = {};
};

namespace Impl {

// Defined for T = double, float and bfloat16
template <class ExecutionSpace, class T>
void flash_attention_forward(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments);

template <class ExecutionSpace, class T>
std::size_t flash_attention_backward_workspace_bytes(ExecutionSpace const& space,
                                                     FlashAttentionArguments<T> const& arguments);

/// The members that the workspace holds are filled in here.
template <class ExecutionSpace, class T>
void flash_attention_backward(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> arguments,
                              Workspace<ExecutionSpace>& workspace);

template <class T, class View>
HeadTensor<T> head_tensor(char const* name, View const& view) {
  static_assert(View::rank() == 4, "q, k, v, o and their gradients are (batch, sequence, heads, head_dim)");
  require_unit_stride(name, view);
  return {view.data(), std::int64_t(view.stride(0)), std::int64_t(view.stride(1)), std::int64_t(view.stride(2))};
}

template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView>
auto flash_attention_arguments(QView const& q, KView const& k, VView const& v, FlashAttentionOptions const& options,
                               OView const& o, LseView const& lse) {
  using T = typename QView::non_const_value_type;
  using C = ComputeType<T>;
  static_assert(std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, bfloat16>,
                "Flash attention computes with double, float or bfloat16");
  static_assert(std::is_same_v<T, typename KView::non_const_value_type> &&
                    std::is_same_v<T, typename VView::non_const_value_type> &&
                    std::is_same_v<T, typename OView::non_const_value_type>,
                "q, k, v and o are of one type");
  static_assert(std::is_same_v<C, typename LseView::non_const_value_type> && LseView::rank() == 3,
                "lse is (batch, heads, seq_q) of double for double, else float");
  static_assert(is_accessible<ExecutionSpace, QView> && is_accessible<ExecutionSpace, KView> &&
                    is_accessible<ExecutionSpace, VView> && is_accessible<ExecutionSpace, OView> &&
                    is_accessible<ExecutionSpace, LseView>,
                "The execution space cannot reach the memory of a View");

  auto const q_heads = head_tensor<T const>("q", q);
  auto const k_heads = head_tensor<T const>("k", k);
  auto const v_heads = head_tensor<T const>("v", v);
  require_same_extents("q", q, "o", o);
  require_same_extents("k", k, "v", v);
  require_unit_stride("o", o);
  require_unit_stride("lse", lse);
  SPOROS_THROW_IF(q.extent(0) != k.extent(0) || q.extent(3) != k.extent(3), "q is ", extents(q), ", k is ", extents(k),
                  "; batch and head_dim must be the same");
  SPOROS_THROW_IF(lse.extent(0) != q.extent(0) || lse.extent(1) != q.extent(2) || lse.extent(2) != q.extent(1), "q is ",
                  extents(q), ", lse is ", extents(lse), "; it must be (batch, heads, seq_q)");
  std::size_t const heads = q.extent(2), kv_heads = k.extent(2), head_dim = q.extent(3);
  SPOROS_THROW_IF(kv_heads == 0 ? heads != 0 : heads % kv_heads != 0, "q has ", heads, " heads, k has ", kv_heads,
                  "; the former must be a multiple of the latter");
  SPOROS_THROW_IF(head_dim == 0 || head_dim % 8 != 0 || head_dim > 256, "head_dim is ", head_dim,
                  "; it must be a multiple of 8 up to 256");
  constexpr std::size_t longest = std::size_t(1) << 30;
  SPOROS_THROW_IF(q.extent(1) > longest || k.extent(1) > longest, "seq_q is ", q.extent(1), ", seq_k is ", k.extent(1),
                  "; each may be up to ", longest);
  SPOROS_THROW_IF(!(options.scale >= 0) || std::isinf(options.scale), "scale is ", options.scale,
                  "; it must be positive, or 0 for 1/sqrt(head_dim)");
  double const dropped = options.dropout.probability;
  SPOROS_THROW_IF(!(dropped >= 0 && dropped < 1), "the dropout probability is ", dropped, "; it must be in [0, 1)");

  FlashAttentionArguments<T> a{};
  a.q = q_heads;
  a.k = k_heads;
  a.v = v_heads;
  a.batch = int(q.extent(0));
  a.heads = int(heads);
  a.kv_heads = int(kv_heads);
  a.queries = int(q.extent(1));
  a.keys = int(k.extent(1));
  a.head_dim = int(head_dim);
  a.causal = options.causal != CausalMask::none;
  a.diagonal = options.causal == CausalMask::bottom_right ? a.keys - a.queries : 0;
  a.scale = C(options.scale > 0 ? options.scale : 1 / std::sqrt(double(head_dim)));
  a.dropout = options.dropout;
  return a;
}

}  // namespace Impl

/// Attention in one pass over the keys; scores and probabilities are never stored:
///
///     O = (Z ∘ P) V,   P = softmax(scale · Q Kᵀ),   LSE = log Σ exp(scale · Q Kᵀ)
///
/// for each head, with the softmax over the keys that a query sees, and Z the dropout mask divided by 1 − p. A query that
/// sees no key gets O = 0 and LSE = −∞. FlashAttention-2 (Dao, arXiv:2307.08691).
///
/// \param space      where the kernel runs; the call returns before it has finished
/// \param q    [in]  (batch, seq_q, heads, head_dim); here and below any strides, 1 in the last dimension
/// \param k    [in]  (batch, seq_k, kv_heads, head_dim); heads is a multiple of kv_heads, and heads / kv_heads neighbouring
///                   heads of q share one of k and v
/// \param v    [in]  as k
/// \param o    [out] as q
/// \param lse  [out] (batch, heads, seq_q), natural logarithm; what the backward pass needs
/// \throws InvalidArgument when extents, strides, head_dim (multiples of 8 up to 256), scale or probability do not fit
///
/// Arithmetic and lse are double for double, float for float and bfloat16; P enters the product as T. head_dim of 64 and 128
/// are the fast ones, others are padded to 64, 128 or 256.
template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView>
void flash_attention_forward(ExecutionSpace const& space, QView const& q, KView const& k, VView const& v,
                             FlashAttentionOptions const& options, OView const& o, LseView const& lse) {
  auto arguments = Impl::flash_attention_arguments<ExecutionSpace>(q, k, v, options, o, lse);
  arguments.o = Impl::head_tensor<typename OView::value_type>("o", o);
  arguments.lse = {lse.data(), std::int64_t(lse.stride(0)), std::int64_t(lse.stride(1))};
  Kokkos::Profiling::ScopedRegion region("Sporos::flash_attention_forward");
  Impl::flash_attention_forward(space, arguments);
}

/// Bytes of workspace that flash_attention_backward() takes for these q and k: a dQ in the precision of the accumulators for
/// each of the shares that a head is divided into, and two numbers for each row.
template <class ExecutionSpace, class QView, class KView>
std::size_t flash_attention_backward_workspace_bytes(ExecutionSpace const& space, QView const& q, KView const& k) {
  static_assert(QView::rank() == 4 && KView::rank() == 4, "q and k are (batch, sequence, heads, head_dim)");
  Impl::FlashAttentionArguments<typename QView::non_const_value_type> a{};
  a.batch = int(q.extent(0));
  a.heads = int(q.extent(2));
  a.kv_heads = int(k.extent(2));
  a.queries = int(q.extent(1));
  a.keys = int(k.extent(1));
  a.head_dim = int(q.extent(3));
  return Impl::flash_attention_backward_workspace_bytes(space, a);
}

/// The gradients of flash_attention_forward(), from its inputs and outputs and the gradient of O:
///
///     δ = Σ dO ∘ O of a row,   dV = (Z ∘ P)ᵀ dO,   dS = P ∘ (Z ∘ (dO Vᵀ) − δ),   dQ = scale · dS K,   dK = scale · dSᵀ Q
///
/// with P computed again from lse, so that nothing of size seq_q · seq_k is stored. dK and dV are the sums over the heads of
/// q that share a head of k and v. A query that saw no key has the gradient 0.
///
/// \param space             where the kernels run; the call returns before they have finished
/// \param q, k, v, o, lse [in] as in the forward pass, and the same options
/// \param d_o         [in]  as o
/// \param dq, dk, dv  [out] as q, k, v; overwritten
/// \param workspace         grows to flash_attention_backward_workspace_bytes()
/// \throws InvalidArgument  as flash_attention_forward()
///
/// Without atomic operations: for one execution space of one concurrency the result is the same bit for bit in every run.
template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView, class DoView,
          class DqView, class DkView, class DvView>
void flash_attention_backward(ExecutionSpace const& space, QView const& q, KView const& k, VView const& v,
                              OView const& o, LseView const& lse, DoView const& d_o,
                              FlashAttentionOptions const& options, DqView const& dq, DkView const& dk,
                              DvView const& dv, Workspace<ExecutionSpace>& workspace) {
  using T = typename QView::non_const_value_type;
  using C = ComputeType<T>;
  static_assert(std::is_same_v<T, typename DoView::non_const_value_type> &&
                    std::is_same_v<T, typename DqView::value_type> && std::is_same_v<T, typename DkView::value_type> &&
                    std::is_same_v<T, typename DvView::value_type>,
                "gradients are of the type of q");
  static_assert(Impl::is_accessible<ExecutionSpace, DoView> && Impl::is_accessible<ExecutionSpace, DqView> &&
                    Impl::is_accessible<ExecutionSpace, DkView> && Impl::is_accessible<ExecutionSpace, DvView>,
                "The execution space cannot reach the memory of a View");
  Impl::FlashAttentionBackwardArguments<T> arguments{};
  arguments.forward = Impl::flash_attention_arguments<ExecutionSpace>(q, k, v, options, o, lse);
  Impl::require_same_extents("q", q, "d_o", d_o);
  Impl::require_same_extents("q", q, "dq", dq);
  Impl::require_same_extents("k", k, "dk", dk);
  Impl::require_same_extents("k", k, "dv", dv);

  // The backward pass reads o and lse through members that the forward pass writes through.
  auto const o_heads = Impl::head_tensor<T const>("o", o);
  arguments.forward.o = {const_cast<T*>(o_heads.data), o_heads.batch_stride, o_heads.sequence_stride,
                         o_heads.head_stride};
  arguments.forward.lse = {const_cast<C*>(lse.data()), std::int64_t(lse.stride(0)), std::int64_t(lse.stride(1))};
  arguments.d_o = Impl::head_tensor<T const>("d_o", d_o);
  arguments.dq = Impl::head_tensor<T>("dq", dq);
  arguments.dk = Impl::head_tensor<T>("dk", dk);
  arguments.dv = Impl::head_tensor<T>("dv", dv);
  Kokkos::Profiling::ScopedRegion region("Sporos::flash_attention_backward");
  Impl::flash_attention_backward(space, arguments, workspace);
}

}  // namespace Sporos

#endif
