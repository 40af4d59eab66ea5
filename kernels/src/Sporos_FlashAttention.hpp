// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_HPP
#define SPOROS_FLASHATTENTION_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "Sporos_Error.hpp"
#include "Sporos_Random.hpp"
#include "Sporos_SequenceLengths.hpp"
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

/// Of the keys that the causal mask allows, a query at position p sees those from p - left to p + right. Its position is i with
/// CausalMask::top_left, else i + seq_k - seq_q.
struct AttentionWindow {
  static constexpr int unlimited = 1 << 30;
  int left = unlimited;
  int right = unlimited;
};

struct FlashAttentionOptions {
  double scale = 0;  ///< of the scores, positive; 0 stands for 1/√head_dim
  CausalMask causal = CausalMask::none;
  /// of the probabilities; index ((batch · heads + head) · seq_q + i) · seq_k + j, plus first_element; of sequences one after
  /// another, seq_q and seq_k are those of the longest
  Dropout dropout = {};
  /// Where q and k are parts of sequences, as on one of several ranks: seq_q and seq_k of the whole, for the index of dropout;
  /// 0: those of q and k. A part from query i and key j on has a first_element larger by i · dropout_seq_k + j.
  std::int64_t dropout_seq_q = 0, dropout_seq_k = 0;
  AttentionWindow window = {};
  double softcap = 0;  ///< scores s become softcap · tanh(s / softcap), before anything is added to them; 0 for none
  /// The backward pass gives the same bits in every run on one execution space of one concurrency. Without it, GPUs with
  /// kernels of their own (Hopper) add to dQ atomically, which is faster; everywhere else this changes nothing.
  bool repeatable = false;
};

/// What attention may be given beyond q, k and v. A View without elements, or no lengths, stand for "not given".
template <class ExecutionSpace, class T>
struct FlashAttentionExtras {
  using MemorySpace = typename ExecutionSpace::memory_space;
  using C = ComputeType<T>;

  /// (batch or 1, heads or 1, seq_q, seq_k), added to the scores; an extent of 1 is the same for all. Of sequences one after
  /// another, seq_q and seq_k are those of the longest. Unit stride along seq_k.
  Kokkos::View<T const****, Kokkos::LayoutStride, MemorySpace> bias = {};
  /// (batch or 1, heads): −slope · |i + seq_k − seq_q − j| is added to the scores (ALiBi, arXiv:2108.12409). Unit stride.
  Kokkos::View<C const**, Kokkos::LayoutStride, MemorySpace> alibi_slopes = {};
  /// (heads): the logit of one more key, whose value is 0: its probability goes nowhere (arXiv:2309.17453)
  Kokkos::View<C const*, MemorySpace> sink = {};
  /// With lengths, q, k, v, o are (all sequences, heads, head_dim) and lse is (heads, all queries).
  SequenceLengths<ExecutionSpace> lengths = {};
};

/// What the backward pass may be given, and asked for, beyond dO, dQ, dK and dV
template <class ExecutionSpace, class T>
struct FlashAttentionExtraGradients {
  using MemorySpace = typename ExecutionSpace::memory_space;
  using C = ComputeType<T>;

  /// [in] as lse, (batch, heads, seq_q): the gradient of LSE
  Kokkos::View<C const***, Kokkos::LayoutStride, MemorySpace> d_lse = {};
  /// [in] the same where sequences lie one after another, (heads, all queries)
  Kokkos::View<C const**, Kokkos::LayoutStride, MemorySpace> d_lse_of_sequences = {};
  /// [out] as bias; overwritten with the sum over what it is the same for
  Kokkos::View<T****, Kokkos::LayoutStride, MemorySpace> d_bias = {};
  /// [out] as sink; overwritten with the sum over the batch
  Kokkos::View<C*, MemorySpace> d_sink = {};
};

namespace Impl {

// Defined for T = double, float, bfloat16 and float16
template <class ExecutionSpace, class T>
void flash_attention_forward(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments);

/// In `splits` shares of the keys; 0: as many as keep the machine busy
template <class ExecutionSpace, class T>
void flash_attention_split_forward(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments,
                                   std::int64_t queries_of_batch, Workspace<ExecutionSpace>& workspace, int splits = 0);

template <class ExecutionSpace, class T>
void flash_attention_merge(ExecutionSpace const& space, FlashAttentionMerge<T> const& arguments);

template <class ExecutionSpace, class T>
std::size_t flash_attention_backward_workspace_bytes(ExecutionSpace const& space,
                                                     FlashAttentionArguments<T> const& arguments,
                                                     std::int64_t total_queries);

/// The members that the workspace holds are filled in here.
template <class ExecutionSpace, class T>
void flash_attention_backward(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> arguments,
                              std::int64_t total_queries, Workspace<ExecutionSpace>& workspace);

template <class T>
void set_mask(FlashAttentionArguments<T>& a, FlashAttentionOptions const& options) {
  a.bottom_right = options.causal != CausalMask::top_left;
  a.left = options.window.left;
  a.right = options.causal == CausalMask::none ? options.window.right : 0;
}

/// How the rows of heads are padded in the workspace: every sequence to whole blocks
template <class T>
void set_padding(FlashAttentionBackwardArguments<T>& a, std::int64_t total_queries, int query_block, int head_dim) {
  auto const padded = [=](std::int64_t rows) { return (rows + query_block - 1) / query_block * query_block; };
  a.query_block = query_block;
  a.padded_queries = int(padded(a.forward.queries));
  a.padded_head_dim = head_dim;
  a.padded_rows = a.forward.cumulative_queries ? padded(total_queries + std::int64_t(a.forward.batch) * query_block)
                                               : std::int64_t(a.forward.batch) * a.padded_queries;
}

template <class T, class View>
HeadTensor<T> head_tensor(char const* name, View const& view) {
  static_assert(View::rank() == 4 || View::rank() == 3,
                "q, k, v, o and their gradients are (batch, sequence, heads, head_dim) or (all sequences, heads, "
                "head_dim)");
  require_unit_stride(name, view);
  constexpr std::size_t r = View::rank() - 3;
  return {view.data(), r == 0 ? 0 : std::int64_t(view.stride(0)), std::int64_t(view.stride(r)),
          std::int64_t(view.stride(r + 1)), int(view.extent(r + 2))};
}

template <class C, class View>
RowTensor<C> row_tensor(View const& view) {
  constexpr std::size_t r = View::rank() - 2;
  static_assert(r <= 1, "lse is (batch, heads, seq_q) or (heads, all queries)");
  return {view.data(), r == 0 ? 0 : std::int64_t(view.stride(0)), std::int64_t(view.stride(r)),
          std::int64_t(view.stride(r + 1))};
}

/// A dimension of extent 1 has stride 0.
template <class T, class View>
ScoreTensor<T> score_tensor(char const* name, View const& view) {
  if (view.size() == 0) return {};
  require_unit_stride(name, view);
  auto const stride = [&](int r) { return view.extent(r) == 1 ? 0 : std::int64_t(view.stride(r)); };
  return {view.data(), stride(0), stride(1), std::int64_t(view.stride(2))};
}

template <class ExecutionSpace, class... Views>
constexpr void require_reachable(Views const&...) {
  static_assert((is_accessible<ExecutionSpace, Views> && ...), "The execution space cannot reach the memory of a View");
}

/// Rows of q that belong to a sequence, of one batch
template <class QView, class Extras>
std::int64_t queries_of_batch(QView const& q, Extras const& extras) {
  return extras.lengths.empty() ? std::int64_t(q.extent(QView::rank() - 3)) : extras.lengths.total_queries();
}

/// Everything but where the results go
template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView, class Extras>
auto flash_attention_arguments(QView const& q, KView const& k, VView const& v, FlashAttentionOptions const& options,
                               Extras const& extras, OView const& o, LseView const& lse) {
  using T = typename QView::non_const_value_type;
  using C = ComputeType<T>;
  constexpr std::size_t rank = QView::rank(), s = rank - 3, h = s + 1, d = s + 2;  // sequence, heads, width
  static_assert(std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, bfloat16> ||
                    std::is_same_v<T, float16>,
                "Flash attention computes with double, float, bfloat16 or float16");
  static_assert(std::is_same_v<T, typename KView::non_const_value_type> &&
                    std::is_same_v<T, typename VView::non_const_value_type>,
                "q, k and v are of one type");
  static_assert(std::is_same_v<T, typename OView::non_const_value_type> ||
                    std::is_same_v<C, typename OView::non_const_value_type>,
                "o is of the type of q, or of double for double, else float");
  static_assert(KView::rank() == rank && VView::rank() == rank && OView::rank() == rank,
                "q, k, v and o are all (batch, sequence, heads, head_dim) or all (all sequences, heads, head_dim)");
  static_assert(std::is_same_v<C, typename LseView::non_const_value_type> && LseView::rank() == rank - 1,
                "lse is (batch, heads, seq_q) or (heads, all queries) of double for double, else float");
  require_reachable<ExecutionSpace>(q, k, v, o, lse);

  auto const all = [&] {
    return concatenate("q is ", extents(q), ", k is ", extents(k), ", v is ", extents(v), ", o is ", extents(o),
                       ", lse is ", extents(lse));
  };
  if constexpr (rank == 4)
    SPOROS_THROW_IF(q.extent(0) != k.extent(0) || q.extent(0) != v.extent(0) || q.extent(0) != o.extent(0) ||
                        q.extent(0) != lse.extent(0),
                    all(), "; the batch must be the same");
  SPOROS_THROW_IF(q.extent(d) != k.extent(d), all(), "; q and k must have the same head_dim");
  SPOROS_THROW_IF(v.extent(s) != k.extent(s) || v.extent(h) != k.extent(h), all(), "; v must be as k but for head_dim");
  SPOROS_THROW_IF(o.extent(s) != q.extent(s) || o.extent(h) != q.extent(h) || o.extent(d) != v.extent(d), all(),
                  "; o must be as q, with the head_dim of v");
  SPOROS_THROW_IF(lse.extent(s) != q.extent(h) || lse.extent(s + 1) != q.extent(s), all(),
                  rank == 4 ? "; lse must be (batch, heads, seq_q)" : "; lse must be (heads, all queries)");
  std::size_t const heads = q.extent(h), kv_heads = k.extent(h);
  SPOROS_THROW_IF(kv_heads == 0 ? heads != 0 : heads % kv_heads != 0, all(), "; q has ", heads, " heads, k has ",
                  kv_heads, "; the former must be a multiple of the latter");
  for (std::size_t const head_dim : {q.extent(d), v.extent(d)})
    SPOROS_THROW_IF(head_dim == 0 || head_dim % 8 != 0 || head_dim > 256, all(), "; head_dim is ", head_dim,
                    "; it must be a multiple of 8 up to 256");
  constexpr std::size_t longest = std::size_t(1) << 30;
  SPOROS_THROW_IF(q.extent(s) > longest || k.extent(s) > longest, all(), "; a sequence may be up to ", longest);

  SPOROS_THROW_IF(!(options.scale >= 0) || std::isinf(options.scale), "scale is ", options.scale,
                  "; it must be positive, or 0 for 1/sqrt(head_dim)");
  SPOROS_THROW_IF(!(options.softcap >= 0) || std::isinf(options.softcap), "softcap is ", options.softcap,
                  "; it must be positive, or 0 for none");
  AttentionWindow const window = options.window;
  SPOROS_THROW_IF(
      window.left < 0 || window.right < 0 || window.left > window.unlimited || window.right > window.unlimited,
      "the window reaches ", window.left, " to the left and ", window.right, " to the right; both must be 0 to ",
      window.unlimited);
  require_dropout(options.dropout);

  FlashAttentionArguments<T> a{};
  a.q = head_tensor<T const>("q", q);
  a.k = head_tensor<T const>("k", k);
  a.v = head_tensor<T const>("v", v);
  require_unit_stride("o", o);
  a.heads = int(heads);
  a.kv_heads = int(kv_heads);
  auto const& lengths = extras.lengths;
  if constexpr (rank == 4) {
    SPOROS_THROW_IF(!lengths.empty(), all(), "; with lengths of sequences, all sequences must lie one after another");
    a.batch = int(q.extent(0));
    a.queries = int(q.extent(1));
    a.keys = int(k.extent(1));
  } else {
    SPOROS_THROW_IF(lengths.empty(), all(), "; (all sequences, heads, head_dim) needs the lengths of sequences");
    SPOROS_THROW_IF(
        std::size_t(lengths.total_queries()) > q.extent(0) || std::size_t(lengths.total_keys()) > k.extent(0), all(),
        "; the lengths end at query ", lengths.total_queries(), " and key ", lengths.total_keys());
    a.batch = lengths.batch();
    a.queries = lengths.longest_queries();
    a.keys = lengths.longest_keys();
    a.cumulative_queries = lengths.cumulative_queries();
    a.cumulative_keys = lengths.cumulative_keys();
  }
  a.head_dim = int(std::max(q.extent(d), v.extent(d)));
  set_mask(a, options);
  a.scale = C(options.scale > 0 ? options.scale : 1 / std::sqrt(double(q.extent(d))));
  a.softcap = C(options.softcap);
  a.dropout = options.dropout;
  a.repeatable = options.repeatable;
  auto const counts = [&](std::int64_t whole, int part) {
    return whole == 0 || (whole >= part && whole <= std::int64_t(longest));
  };
  SPOROS_THROW_IF(!counts(options.dropout_seq_q, a.queries) || !counts(options.dropout_seq_k, a.keys), all(),
                  "; dropout_seq_q is ", options.dropout_seq_q, " and dropout_seq_k ", options.dropout_seq_k,
                  "; they must be 0, or at least ", a.queries, " and ", a.keys, ", and up to ", longest);
  a.dropout_queries = int(options.dropout_seq_q);
  a.dropout_keys = int(options.dropout_seq_k);
  a.splits = 1;

  if (auto const& bias = extras.bias; bias.size() != 0) {
    bool const fits = (bias.extent(0) == 1 || bias.extent(0) == std::size_t(a.batch)) &&
                      (bias.extent(1) == 1 || bias.extent(1) == heads) && bias.extent(2) == std::size_t(a.queries) &&
                      bias.extent(3) == std::size_t(a.keys);
    SPOROS_THROW_IF(!fits, all(), ", bias is ", extents(bias), "; it must be (", a.batch, " or 1, ", heads, " or 1, ",
                    a.queries, ", ", a.keys, ")");
    a.bias = score_tensor<T const>("bias", bias);
  }
  if (auto const& slopes = extras.alibi_slopes; slopes.size() != 0) {
    bool const fits = (slopes.extent(0) == 1 || slopes.extent(0) == std::size_t(a.batch)) && slopes.extent(1) == heads;
    SPOROS_THROW_IF(!fits, all(), ", alibi_slopes is ", extents(slopes), "; it must be (", a.batch, " or 1, ", heads,
                    ")");
    require_unit_stride("alibi_slopes", slopes);
    a.alibi_slopes = {slopes.data(), slopes.extent(0) == 1 ? 0 : std::int64_t(slopes.stride(0))};
  }
  if (auto const& sink = extras.sink; sink.size() != 0) {
    require_vector("sink", sink, heads);
    a.sink = {sink.data(), 0};
  }
  return a;
}

template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView, class Extras>
auto flash_attention_forward_arguments(QView const& q, KView const& k, VView const& v,
                                       FlashAttentionOptions const& options, Extras const& extras, OView const& o,
                                       LseView const& lse) {
  using T = typename QView::non_const_value_type;
  using Output = typename OView::value_type;
  auto arguments = flash_attention_arguments<ExecutionSpace>(q, k, v, options, extras, o, lse);
  if constexpr (std::is_same_v<Output, T>)
    arguments.o = head_tensor<T>("o", o);
  else
    arguments.partial_o = head_tensor<Output>("o", o);
  arguments.lse = row_tensor<ComputeType<T>>(lse);
  return arguments;
}

}  // namespace Impl

/// Attention in one pass over the keys; scores and probabilities are never stored:
///
///     O = (Z ∘ P) V,   P = softmax(S),   LSE = log Σ exp(S),   S = scale · Q Kᵀ
///
/// for each head, with the softmax over the keys that a query sees, and Z the dropout mask divided by 1 − p. With a soft cap
/// S = softcap · tanh(scale · Q Kᵀ / softcap); ALiBi and bias are added to that; a sink is one more score in the sums of
/// softmax and LSE. A query that sees no key gets O = 0, and LSE = −∞ or the sink. FlashAttention-2 (Dao, arXiv:2307.08691).
///
/// \param space      where the kernel runs; the call returns before it has finished
/// \param q    [in]  (batch, seq_q, heads, head_dim); here and below any strides, 1 in the last dimension: slices of one
///                   tensor will do, and tensors with heads before the sequence, as heads_before_sequence() shows them
/// \param k    [in]  (batch, seq_k, kv_heads, head_dim); heads is a multiple of kv_heads, and heads / kv_heads neighbouring
///                   heads of q share one of k and v
/// \param v    [in]  as k, but with a head_dim of its own
/// \param extras     lengths of sequences that lie one after another, ALiBi, bias, sink; may be left out
/// \param o    [out] as q, with the head_dim of v; of the type of q or, for results that flash_attention_merge() shall
///                   combine, of lse
/// \param lse  [out] (batch, heads, seq_q), natural logarithm; what the backward pass needs
/// \throws InvalidArgument when extents, strides, lengths, head_dim (multiples of 8 up to 256), scale, window, softcap or
///                         probability do not fit
///
/// Arithmetic and lse are double for double, else float; P enters the product as T. head_dim of 64 and 128 are the fast ones,
/// others are padded to 64, 128 or 256.
template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView>
void flash_attention_forward(ExecutionSpace const& space, QView const& q, KView const& k, VView const& v,
                             FlashAttentionOptions const& options,
                             FlashAttentionExtras<ExecutionSpace, typename QView::non_const_value_type> const& extras,
                             OView const& o, LseView const& lse) {
  auto const arguments = Impl::flash_attention_forward_arguments<ExecutionSpace>(q, k, v, options, extras, o, lse);
  Kokkos::Profiling::ScopedRegion region("Sporos::flash_attention_forward");
  Impl::flash_attention_forward(space, arguments);
}

template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView>
void flash_attention_forward(ExecutionSpace const& space, QView const& q, KView const& k, VView const& v,
                             FlashAttentionOptions const& options, OView const& o, LseView const& lse) {
  flash_attention_forward(space, q, k, v, options,
                          FlashAttentionExtras<ExecutionSpace, typename QView::non_const_value_type>(), o, lse);
}

/// The same for few queries and many keys: where the queries alone would not keep the machine busy, the keys are divided into
/// shares, which are merged afterwards (Flash-Decoding). Query heads that share keys and values are computed together.
/// \param workspace  grows to what one partial result for each share takes
template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView>
void flash_attention_forward(ExecutionSpace const& space, QView const& q, KView const& k, VView const& v,
                             FlashAttentionOptions const& options,
                             FlashAttentionExtras<ExecutionSpace, typename QView::non_const_value_type> const& extras,
                             OView const& o, LseView const& lse, Workspace<ExecutionSpace>& workspace) {
  auto const arguments = Impl::flash_attention_forward_arguments<ExecutionSpace>(q, k, v, options, extras, o, lse);
  Kokkos::Profiling::ScopedRegion region("Sporos::flash_attention_forward");
  Impl::flash_attention_split_forward(space, arguments, Impl::queries_of_batch(q, extras), workspace);
}

/// Attention of the next tokens to all before them and to themselves: k and v of the new tokens are written into the caches at
/// position `cached`, and the queries attend to the first cached + seq_q entries. flash_attention_forward() with keys in
/// shares; with CausalMask::bottom_right the tokens see what they would see in a pass over the whole sequence.
///
/// \param q       [in]      (batch, seq_q, heads, head_dim)
/// \param k, v    [in]      (batch, seq_q, kv_heads, head_dim)
/// \param k_cache, v_cache  [in, out] (batch, room, kv_heads, head_dim), room at least cached + seq_q
/// \param cached            entries that the caches hold
/// \param o, lse  [out]     as flash_attention_forward()
/// \throws InvalidArgument  as flash_attention_forward(), and when the new tokens do not fit into the caches
template <class ExecutionSpace, class QView, class KView, class VView, class KCacheView, class VCacheView, class OView,
          class LseView>
void flash_attention_decode(ExecutionSpace const& space, QView const& q, KView const& k, VView const& v,
                            KCacheView const& k_cache, VCacheView const& v_cache, std::size_t cached,
                            FlashAttentionOptions const& options,
                            FlashAttentionExtras<ExecutionSpace, typename QView::non_const_value_type> const& extras,
                            OView const& o, LseView const& lse, Workspace<ExecutionSpace>& workspace) {
  static_assert(KCacheView::rank() == 4 && VCacheView::rank() == 4, "caches are (batch, room, kv_heads, head_dim)");
  auto const check = [&](char const* name, auto const& now, auto const& cache) {
    bool const fits = cache.extent(0) == now.extent(0) && cache.extent(2) == now.extent(2) &&
                      cache.extent(3) == now.extent(3) && cached + now.extent(1) <= cache.extent(1);
    SPOROS_THROW_IF(!fits, name, " is ", Impl::extents(now), ", its cache is ", Impl::extents(cache), " and holds ",
                    cached, "; they must fit together, and the new entries into the cache");
  };
  check("k", k, k_cache);
  check("v", v, v_cache);
  auto const part = [](auto const& cache, std::size_t from, std::size_t to) {
    return Kokkos::subview(cache, Kokkos::ALL, Kokkos::pair<std::size_t, std::size_t>(from, to), Kokkos::ALL,
                           Kokkos::ALL);
  };
  std::size_t const length = cached + k.extent(1);
  auto const arguments = Impl::flash_attention_forward_arguments<ExecutionSpace>(
      q, part(k_cache, 0, length), part(v_cache, 0, length), options, extras, o, lse);
  Kokkos::Profiling::ScopedRegion region("Sporos::flash_attention_decode");
  Kokkos::deep_copy(space, part(k_cache, cached, length), k);
  Kokkos::deep_copy(space, part(v_cache, cached, length), v);
  Impl::flash_attention_split_forward(space, arguments, Impl::queries_of_batch(q, extras), workspace);
}

/// Combines attention over parts of the keys into attention over all of them, as for keys that are spread over ranks:
///
///     LSE = log Σ exp(LSE_n),   O = Σ exp(LSE_n − LSE) O_n
///
/// \param partial_o   [in]  (parts, batch, seq_q, heads, head_dim) of double or float, from flash_attention_forward()
/// \param partial_lse [in]  (parts, batch, heads, seq_q)
/// \param o           [out] (batch, seq_q, heads, head_dim), of the same type or of one of storage; may be one of the parts
/// \param lse         [out] (batch, heads, seq_q); may be that of the same part
/// \throws InvalidArgument when extents or strides do not fit
template <class ExecutionSpace, class PartialOView, class PartialLseView, class OView, class LseView>
void flash_attention_merge(ExecutionSpace const& space, PartialOView const& partial_o,
                           PartialLseView const& partial_lse, OView const& o, LseView const& lse) {
  using C = typename LseView::value_type;
  using T = typename OView::value_type;
  static_assert(PartialOView::rank() == 5 && PartialLseView::rank() == 4 && OView::rank() == 4 && LseView::rank() == 3,
                "partial_o is (parts, batch, seq_q, heads, head_dim), partial_lse (parts, batch, heads, seq_q)");
  static_assert(std::is_same_v<C, ComputeType<T>> && std::is_same_v<C, typename PartialOView::non_const_value_type> &&
                    std::is_same_v<C, typename PartialLseView::non_const_value_type>,
                "partial results and lse are of double for double, else float");
  Impl::require_reachable<ExecutionSpace>(partial_o, partial_lse, o, lse);
  Impl::require_unit_stride("partial_o", partial_o);
  bool const fits = partial_lse.extent(0) == partial_o.extent(0) && partial_lse.extent(1) == partial_o.extent(1) &&
                    partial_lse.extent(2) == partial_o.extent(3) && partial_lse.extent(3) == partial_o.extent(2) &&
                    o.extent(0) == partial_o.extent(1) && o.extent(1) == partial_o.extent(2) &&
                    o.extent(2) == partial_o.extent(3) && o.extent(3) == partial_o.extent(4) &&
                    lse.extent(0) == o.extent(0) && lse.extent(1) == o.extent(2) && lse.extent(2) == o.extent(1);
  SPOROS_THROW_IF(!fits, "partial_o is ", Impl::extents(partial_o), ", partial_lse is ", Impl::extents(partial_lse),
                  ", o is ", Impl::extents(o), ", lse is ", Impl::extents(lse));
  Impl::FlashAttentionMerge<T> a{};
  a.parts = int(partial_o.extent(0));
  a.batch = int(o.extent(0));
  a.queries = int(o.extent(1));
  a.heads = int(o.extent(2));
  a.partial_o = {partial_o.data(), std::int64_t(partial_o.stride(1)), std::int64_t(partial_o.stride(2)),
                 std::int64_t(partial_o.stride(3)), int(partial_o.extent(4))};
  a.partial_o_stride = std::int64_t(partial_o.stride(0));
  a.partial_lse = {partial_lse.data(), std::int64_t(partial_lse.stride(1)), std::int64_t(partial_lse.stride(2)),
                   std::int64_t(partial_lse.stride(3))};
  a.partial_lse_stride = std::int64_t(partial_lse.stride(0));
  a.o = Impl::head_tensor<T>("o", o);
  a.lse = Impl::row_tensor<C>(lse);
  Kokkos::Profiling::ScopedRegion region("Sporos::flash_attention_merge");
  Impl::flash_attention_merge(space, a);
}

/// A View of a tensor (batch, heads, sequence, head_dim) as (batch, sequence, heads, head_dim)
template <class View>
auto heads_before_sequence(View const& x) {
  static_assert(View::rank() == 4);
  using Swapped = Kokkos::View<typename View::data_type, Kokkos::LayoutStride, typename View::device_type,
                               Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  return Swapped(x.data(), Kokkos::LayoutStride(x.extent(0), x.stride(0), x.extent(2), x.stride(2), x.extent(1),
                                                x.stride(1), x.extent(3), x.stride(3)));
}

/// Bytes of workspace that flash_attention_backward() takes for these q, k and v, options and extras: a dQ in the precision of
/// the accumulators for each of the shares that a head is divided into, and two numbers for each row. Data is not read. On a GPU
/// it may be another number where rows of results or gradients do not start at multiples of 16 bytes.
/// \throws InvalidArgument as flash_attention_forward()
template <class ExecutionSpace, class QView, class KView, class VView>
std::size_t flash_attention_backward_workspace_bytes(
    ExecutionSpace const& space, QView const& q, KView const& k, VView const& v, FlashAttentionOptions const& options,
    FlashAttentionExtras<ExecutionSpace, typename QView::non_const_value_type> const& extras = {}) {
  using T = typename QView::non_const_value_type;
  using C = ComputeType<T>;
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  using Memory = typename ExecutionSpace::memory_space;
  auto const arguments = [&] {
    if constexpr (QView::rank() == 4) {
      Kokkos::View<T****, Kokkos::LayoutRight, Memory, Unmanaged> const o(nullptr, q.extent(0), q.extent(1),
                                                                          q.extent(2), v.extent(3));
      Kokkos::View<C***, Kokkos::LayoutRight, Memory, Unmanaged> const lse(nullptr, q.extent(0), q.extent(2),
                                                                           q.extent(1));
      return Impl::flash_attention_arguments<ExecutionSpace>(q, k, v, options, extras, o, lse);
    } else {
      Kokkos::View<T***, Kokkos::LayoutRight, Memory, Unmanaged> const o(nullptr, q.extent(0), q.extent(1),
                                                                         v.extent(2));
      Kokkos::View<C**, Kokkos::LayoutRight, Memory, Unmanaged> const lse(nullptr, q.extent(1), q.extent(0));
      return Impl::flash_attention_arguments<ExecutionSpace>(q, k, v, options, extras, o, lse);
    }
  }();
  return Impl::flash_attention_backward_workspace_bytes(space, arguments, Impl::queries_of_batch(q, extras));
}

/// The gradients of flash_attention_forward(), from its inputs and outputs and the gradients of O and, if given, LSE:
///
///     δ = Σ dO ∘ O of a row − dLSE,   dV = (Z ∘ P)ᵀ dO,   dS = P ∘ (Z ∘ (dO Vᵀ) − δ),   dQ = scale · dS K,   dK = scale · dSᵀ Q
///
/// with P computed again from lse, so that nothing of size seq_q · seq_k is stored; dS times the derivative of the soft cap
/// where there is one. dK and dV are the sums over the heads of q that share a head of k and v; dBias = Σ dS over what the bias
/// is the same for; dSink = −Σ exp(sink − LSE) δ. A query that saw no key has the gradient 0.
///
/// \param space             where the kernels run; the call returns before they have finished
/// \param q, k, v, o, lse [in] as in the forward pass, and the same options and extras
/// \param d_o         [in]  as o
/// \param dq, dk, dv  [out] as q, k, v; overwritten
/// \param gradients         of LSE, bias and sink; may be left out
/// \param workspace         grows to flash_attention_backward_workspace_bytes()
/// \throws InvalidArgument  as flash_attention_forward()
///
/// The result is the same bit for bit in every run if options.repeatable says so.
template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView, class DoView,
          class DqView, class DkView, class DvView>
void flash_attention_backward(
    ExecutionSpace const& space, QView const& q, KView const& k, VView const& v, OView const& o, LseView const& lse,
    DoView const& d_o, FlashAttentionOptions const& options,
    FlashAttentionExtras<ExecutionSpace, typename QView::non_const_value_type> const& extras, DqView const& dq,
    DkView const& dk, DvView const& dv,
    FlashAttentionExtraGradients<ExecutionSpace, typename QView::non_const_value_type> const& gradients,
    Workspace<ExecutionSpace>& workspace) {
  using T = typename QView::non_const_value_type;
  using C = ComputeType<T>;
  constexpr std::size_t rank = QView::rank();
  static_assert(std::is_same_v<T, typename OView::non_const_value_type> &&
                    std::is_same_v<T, typename DoView::non_const_value_type> &&
                    std::is_same_v<T, typename DqView::value_type> && std::is_same_v<T, typename DkView::value_type> &&
                    std::is_same_v<T, typename DvView::value_type>,
                "o and the gradients are of the type of q");
  Impl::require_reachable<ExecutionSpace>(d_o, dq, dk, dv);
  Impl::FlashAttentionBackwardArguments<T> arguments{};
  arguments.forward = Impl::flash_attention_arguments<ExecutionSpace>(q, k, v, options, extras, o, lse);
  Impl::require_same_extents("o", o, "d_o", d_o);
  Impl::require_same_extents("q", q, "dq", dq);
  Impl::require_same_extents("k", k, "dk", dk);
  Impl::require_same_extents("v", v, "dv", dv);

  // The backward pass reads o and lse through members that the forward pass writes through.
  auto const o_heads = Impl::head_tensor<T const>("o", o);
  arguments.forward.o = {const_cast<T*>(o_heads.data), o_heads.batch_stride, o_heads.sequence_stride,
                         o_heads.head_stride, o_heads.width};
  auto const lse_rows = Impl::row_tensor<C const>(lse);
  arguments.forward.lse = {const_cast<C*>(lse_rows.data), lse_rows.batch_stride, lse_rows.head_stride,
                           lse_rows.sequence_stride};
  arguments.d_o = Impl::head_tensor<T const>("d_o", d_o);
  arguments.dq = Impl::head_tensor<T>("dq", dq);
  arguments.dk = Impl::head_tensor<T>("dk", dk);
  arguments.dv = Impl::head_tensor<T>("dv", dv);

  auto const& d_lse = [&]() -> auto const& {
    if constexpr (rank == 4)
      return gradients.d_lse;
    else
      return gradients.d_lse_of_sequences;
  }();
  if (d_lse.size() != 0) {
    Impl::require_same_extents("lse", lse, "d_lse", d_lse);
    arguments.d_lse = Impl::row_tensor<C const>(d_lse);
  }
  if (auto const& d_bias = gradients.d_bias; d_bias.size() != 0) {
    Impl::require_same_extents("bias", extras.bias, "d_bias", d_bias);
    arguments.d_bias = Impl::score_tensor<T>("d_bias", d_bias);
    arguments.bias_batch = int(d_bias.extent(0));
    arguments.bias_heads = int(d_bias.extent(1));
  }
  if (auto const& d_sink = gradients.d_sink; d_sink.size() != 0) {
    Impl::require_same_extents("sink", extras.sink, "d_sink", d_sink);
    arguments.d_sink = d_sink.data();
  }
  Kokkos::Profiling::ScopedRegion region("Sporos::flash_attention_backward");
  Impl::flash_attention_backward(space, arguments, Impl::queries_of_batch(q, extras), workspace);
}

template <class ExecutionSpace, class QView, class KView, class VView, class OView, class LseView, class DoView,
          class DqView, class DkView, class DvView>
void flash_attention_backward(ExecutionSpace const& space, QView const& q, KView const& k, VView const& v,
                              OView const& o, LseView const& lse, DoView const& d_o,
                              FlashAttentionOptions const& options, DqView const& dq, DkView const& dk,
                              DvView const& dv, Workspace<ExecutionSpace>& workspace) {
  using T = typename QView::non_const_value_type;
  flash_attention_backward(space, q, k, v, o, lse, d_o, options, FlashAttentionExtras<ExecutionSpace, T>(), dq, dk, dv,
                           FlashAttentionExtraGradients<ExecutionSpace, T>(), workspace);
}

}  // namespace Sporos

#endif
