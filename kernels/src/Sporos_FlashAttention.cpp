// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_FlashAttention.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "impl/Sporos_FlashAttention_Device.hpp"
#include "impl/Sporos_FlashAttention_Host.hpp"
#include "impl/Sporos_HostLevel.hpp"
#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_OnlineSoftmax.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos {

SPOROS_DECLARE_HOST_KERNELS(Impl::FlashAttentionForwardHostKernels, flash_attention_forward_kernels)
SPOROS_DECLARE_HOST_KERNELS(Impl::FlashAttentionBackwardHostKernels, flash_attention_backward_kernels)

namespace Impl {
namespace {

/// work(item, scratch) for items 0 ... items - 1, each by one thread with scratch of its own. Causal items differ in cost:
/// the next free thread takes the next item.
template <class ExecutionSpace, class Work>
struct HostItems {
  using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>>;

  Work m_work;
  std::size_t m_scratch_bytes;

  void operator()(typename Policy::member_type const& member) const {
    m_work(member.league_rank(), member.team_scratch(1).get_shmem_aligned(m_scratch_bytes, 64));
  }
};

template <class ExecutionSpace, class Work>
void for_each_item(char const* label, ExecutionSpace const& space, std::int64_t items, std::size_t scratch_bytes,
                   Work const& work) {
  using Items = HostItems<ExecutionSpace, Work>;
  if (items == 0) return;
  SPOROS_THROW_IF(items > std::numeric_limits<int>::max(), label, " would have ", items, " work items");
  typename Items::Policy policy(space, int(items), 1);
  // Level 1: a tile of K alone can exceed the 32 KiB that hosts have at level 0
  policy.set_scratch_size(1, Kokkos::PerTeam(int(scratch_bytes) + 64));
  Kokkos::parallel_for(label, policy, Items{work, scratch_bytes});
}

template <class ExecutionSpace, class T>
void forward_host(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  FlashAttentionForwardHostKernel<T> const kernel = flash_attention_forward_kernels(best_host_level());
  int const tiles = kernel.tiles(arguments);
  std::int64_t const shares = std::int64_t(arguments.batch) * arguments.heads * arguments.splits;
  for_each_item("Sporos::flash_attention::forward", space, shares * tiles, kernel.scratch_bytes(arguments),
                [=](int item, void* scratch) {
                  int const share = int(item % shares), head = share / arguments.splits;
                  int const tile = tiles - 1 - int(item / shares);  // the long causal ones first
                  kernel.tile(arguments, head / arguments.heads, head % arguments.heads, tile, share % arguments.splits,
                              scratch);
                });
}

/// As few slots as give every thread the same number of items, for each slot has a dQ of its own: together up to 32 MiB.
template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan plan_host(ExecutionSpace const& space, FlashAttentionArguments<T> const& a) {
  FlashAttentionBackwardHostKernel<T> const kernel = flash_attention_backward_kernels(best_host_level());
  auto const tiling = kernel.tiling(a);
  auto const blocks = [](int size, int block) { return size / block + (size % block != 0); };
  std::int64_t const threads = space.concurrency();
  std::int64_t const heads = std::max<std::int64_t>(1, std::int64_t(a.batch) * a.kv_heads);
  std::int64_t const rows = std::int64_t(a.batch) * blocks(a.queries, tiling.queries) * tiling.queries;
  std::int64_t const bytes = std::int64_t(sizeof(ComputeType<T>)) * rows * a.heads * tiling.head_dim;
  std::int64_t const held = (std::int64_t(32) << 20) / std::max<std::int64_t>(1, bytes);
  std::int64_t const even = heads >= 4 * threads ? 1 : threads / std::gcd(heads, threads);
  std::int64_t const slots = std::min({even, held, std::int64_t(blocks(a.keys, tiling.keys))});
  return {int(std::max<std::int64_t>(1, slots)), false, tiling.queries, tiling.head_dim};
}

template <class ExecutionSpace, class T>
void backward_host(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> const& arguments) {
  FlashAttentionBackwardHostKernel<T> const kernel = flash_attention_backward_kernels(best_host_level());
  FlashAttentionArguments<T> const& forward = arguments.forward;
  int const blocks = arguments.padded_queries / arguments.query_block;
  int const heads = forward.heads, kv_heads = forward.kv_heads, slots = arguments.slots;
  std::int64_t const all_heads = std::int64_t(forward.batch) * heads;

  for_each_item("Sporos::flash_attention::backward::prepare", space, all_heads * blocks, 0, [=](int item, void*) {
    kernel.prepare(arguments, item / blocks / heads, item / blocks % heads, item % blocks);
  });
  for_each_item("Sporos::flash_attention::backward", space, std::int64_t(forward.batch) * kv_heads * slots,
                kernel.scratch_bytes(forward), [=](int item, void* scratch) {
                  kernel.slot(arguments, item / slots / kv_heads, item / slots % kv_heads, item % slots, scratch);
                });
  for_each_item("Sporos::flash_attention::backward::finish", space, all_heads * blocks, 0, [=](int item, void*) {
    kernel.finish(arguments, item / blocks / heads, item / blocks % heads, item % blocks);
  });
  if (!arguments.d_bias.data) return;
  int const tiles = kernel.bias_tiles(forward), bias_heads = arguments.bias_heads;
  for_each_item("Sporos::flash_attention::backward::bias", space,
                std::int64_t(arguments.bias_batch) * bias_heads * tiles, kernel.bias_scratch_bytes(forward),
                [=](int item, void* scratch) {
                  int const head = item / tiles;
                  kernel.bias_tile(arguments, head / bias_heads, head % bias_heads, item % tiles, scratch);
                });
}

/// Rows of heads, so many to a team, with the elements of a row for its vector lanes
template <class ExecutionSpace>
struct RowsOfHeads {
  using Policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using Member = typename Policy::member_type;

  static constexpr bool on_host = is_host_space<ExecutionSpace>;
  static constexpr int rows_of_team = on_host ? 64 : 8;

  static Policy policy(ExecutionSpace const& space, std::int64_t rows) {
    std::int64_t const teams = (rows + rows_of_team - 1) / rows_of_team;
    SPOROS_THROW_IF(teams > std::numeric_limits<int>::max(), rows, " rows are too many for one launch");
    return Policy(space, int(teams), on_host ? 1 : rows_of_team, on_host ? 1 : 16);
  }

  template <class F>
  KOKKOS_FUNCTION static void for_each_row(Member const& member, std::int64_t rows, F const& f) {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, rows_of_team), [&](int i) {
      std::int64_t const row = std::int64_t(member.league_rank()) * rows_of_team + i;
      if (row < rows) f(row);
    });
  }
};

template <class ExecutionSpace, class T>
struct MergeParts {
  using C = ComputeType<T>;
  using Rows = RowsOfHeads<ExecutionSpace>;
  using Member = typename Rows::Member;

  FlashAttentionMerge<T> m_arguments;
  std::int64_t m_rows;

  KOKKOS_FUNCTION void operator()(Member const& member) const {
    Rows::for_each_row(member, m_rows, [&](std::int64_t row) { merge(member, row); });
  }

  KOKKOS_FUNCTION void merge(Member const& member, std::int64_t row) const {
    auto const& a = m_arguments;
    int const head = int(row % a.heads), query = int(row / a.heads % a.queries);
    int const batch = int(row / a.heads / a.queries);
    auto const at = [&](auto const& tensor) {
      return tensor.data + batch * tensor.batch_stride + query * tensor.sequence_stride + head * tensor.head_stride;
    };
    C const* const lse = at(a.partial_lse);
    C const* const o = at(a.partial_o);
    C const none = -Kokkos::Experimental::infinity<C>::value;
    C highest = none, sum = 0;
    for (int n = 0; n < a.parts; ++n) {
      C const x = lse[n * a.partial_lse_stride];
      highest = x > highest || x != x ? x : highest;  // a NaN stays
    }
    C const reference = highest == none ? C(0) : highest;
    for (int n = 0; n < a.parts; ++n) sum += Kokkos::exp(lse[n * a.partial_lse_stride] - reference);
    C const inverse = sum == C(0) ? C(0) : C(1) / sum;

    Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, a.partial_o.width), [&](int d) {
      C value = 0;
      for (int n = 0; n < a.parts; ++n) {
        C const weight = Kokkos::exp(lse[n * a.partial_lse_stride] - reference);
        if (weight != C(0)) value += weight * o[n * a.partial_o_stride + d];
      }
      if (a.wide_o.data)
        at(a.wide_o)[d] = inverse * value;
      else
        at(a.o)[d] = T(inverse * value);
    });
    member_sync(member);
    Kokkos::single(Kokkos::PerThread(member),
                   [&]() { *at(a.lse) = highest == none ? none : highest + Kokkos::log(sum); });
  }

  /// lse may be that of a part, which all lanes must have read before. Lanes of a thread run together or, on GPUs, wait for
  /// each other in the reduction.
  KOKKOS_FUNCTION static void member_sync(Member const& member) {
    int sum = 0;
    Kokkos::parallel_reduce(Kokkos::ThreadVectorRange(member, 1), [](int, int&) {}, sum);
  }
};

/// dSink = −Σ exp(sink − LSE) δ over the rows of a head, always in the same order
template <class ExecutionSpace, class T>
struct SinkGradient {
  using C = ComputeType<T>;
  using Policy = Kokkos::TeamPolicy<ExecutionSpace>;

  FlashAttentionBackwardArguments<T> m_arguments;

  KOKKOS_FUNCTION void operator()(typename Policy::member_type const& member) const {
    int const head = member.league_rank();
    C const sink_log2 = m_arguments.forward.sink.data[head] * log2_e<C>;
    C sum = 0;
    for (int batch = 0; batch < m_arguments.forward.batch; ++batch) {
      FlashAttentionHead<T> const problem(m_arguments.forward, batch, head);
      C const* const lse = problem.padded_rows(m_arguments, m_arguments.lse_log2).data;
      C const* const delta = problem.padded_rows(m_arguments, m_arguments.delta).data;
      C of_sequence = 0;
      Kokkos::parallel_reduce(
          Kokkos::TeamThreadRange(member, problem.queries()),
          [&](int i, C& part) { part -= Kokkos::exp2(sink_log2 - lse[i]) * delta[i]; }, of_sequence);
      sum += of_sequence;
    }
    Kokkos::single(Kokkos::PerTeam(member), [&]() { m_arguments.d_sink[head] = sum; });
  }
};

/// One query in every head: heads that share K and V become queries of one head, of which a tile holds many. Where heads
/// differ in more than their queries, they stay what they are.
template <class T>
FlashAttentionArguments<T> with_groups_as_queries(FlashAttentionArguments<T> a) {
  int const group = a.kv_heads == 0 ? 1 : a.heads / a.kv_heads;
  bool const alike = !a.alibi_slopes.data && !a.bias.data && !a.sink.data && !a.dropout.active();
  if (a.queries != 1 || group == 1 || a.cumulative_queries || !alike) return a;
  auto const turn = [&](auto& tensor) {
    tensor.sequence_stride = tensor.head_stride;
    tensor.head_stride *= group;
  };
  turn(a.q);
  turn(a.o);
  turn(a.partial_o);
  turn(a.lse);
  a.queries = group;
  a.heads = a.kv_heads;

  // What the one query sees, all of them see now.
  int const position = a.bottom_right ? a.keys - 1 : 0;
  int const first = std::max(0, position - std::min(a.left, position));
  int const end = a.right < a.keys - position ? position + a.right + 1 : a.keys;
  a.k.data += first * a.k.sequence_stride;
  a.v.data += first * a.v.sequence_stride;
  a.keys = std::max(0, end - first);
  a.left = a.right = a.unbounded;
  return a;
}

/// Shares of the keys: as many as give every thread or multiprocessor something to do, but none below so many keys that the
/// work is more than the merge.
template <class ExecutionSpace, class T>
int splits_of_keys(ExecutionSpace const& space, FlashAttentionArguments<T> const& a) {
  constexpr bool on_host = is_host_space<ExecutionSpace>;
  constexpr int queries_of_tile = 64, keys_of_share = 256;
  std::int64_t const tiles = std::max<std::int64_t>(
      1, std::int64_t(a.batch) * a.heads * ((a.queries + queries_of_tile - 1) / queries_of_tile));
  std::int64_t const workers = on_host ? space.concurrency() : space.concurrency() / 512;
  std::int64_t const shares = tiles >= workers ? 1 : (workers + tiles - 1) / tiles;
  return int(std::clamp<std::int64_t>(shares, 1, std::max(1, a.keys / keys_of_share)));
}

/// Numbers of partial results
template <class T>
struct PartialSizes {
  std::int64_t rows, o, lse;

  PartialSizes(FlashAttentionArguments<T> const& a, std::int64_t queries_of_batch)
      : rows((a.cumulative_queries ? 1 : a.batch) * std::int64_t(a.heads) * queries_of_batch),
        o(rows * a.v.width),
        lse(rows) {}
};

template <class ExecutionSpace, class T>
FlashAttentionBackwardPlan plan(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  if constexpr (is_host_space<ExecutionSpace>)
    return plan_host(space, arguments);
  else
    return flash_attention_backward_plan_device(space, arguments);
}

/// Numbers that the workspace holds, and where they lie in it: dQ, LSE log2 e, δ
template <class T>
struct WorkspaceSizes {
  std::size_t dq_sums, rows;

  explicit WorkspaceSizes(FlashAttentionBackwardArguments<T> const& a)
      : rows(std::size_t(a.forward.heads) * std::size_t(a.padded_rows)) {
    dq_sums = std::size_t(a.shared_sums ? 1 : a.slots) * rows * std::size_t(a.padded_head_dim);
  }
  std::size_t all() const { return dq_sums + 2 * rows; }
};

template <class ExecutionSpace, class T>
void set_plan(ExecutionSpace const& space, std::int64_t total_queries, FlashAttentionBackwardArguments<T>& arguments) {
  FlashAttentionBackwardPlan const plan = Impl::plan(space, arguments.forward);
  arguments.slots = plan.slots;
  arguments.shared_sums = plan.shared_sums;
  set_padding(arguments, total_queries, plan.query_block, plan.padded_head_dim);
}

}  // namespace

template <class ExecutionSpace, class T>
void flash_attention_forward(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  if constexpr (is_host_space<ExecutionSpace>)
    forward_host(space, arguments);
  else
    flash_attention_forward_device(space, arguments);
}

template <class ExecutionSpace, class T>
void flash_attention_merge(ExecutionSpace const& space, FlashAttentionMerge<T> const& arguments) {
  std::int64_t const rows = std::int64_t(arguments.batch) * arguments.heads * arguments.queries;
  if (rows == 0) return;
  Kokkos::parallel_for("Sporos::flash_attention::merge", RowsOfHeads<ExecutionSpace>::policy(space, rows),
                       MergeParts<ExecutionSpace, T>{arguments, rows});
}

template <class ExecutionSpace, class T>
void flash_attention_split_forward(ExecutionSpace const& space, FlashAttentionArguments<T> const& whole,
                                   std::int64_t queries_of_batch, Workspace<ExecutionSpace>& workspace, int splits) {
  using C = ComputeType<T>;
  FlashAttentionArguments<T> a = with_groups_as_queries(whole);
  if (a.queries != whole.queries) queries_of_batch = a.queries;
  a.splits = splits > 0 ? splits : splits_of_keys(space, a);
  if (a.splits == 1) return flash_attention_forward(space, a);

  // Contiguous (split, batch, queries, heads, width) and (split, batch, heads, queries); sequences one after another are one
  // batch.
  PartialSizes<T> const sizes(a, queries_of_batch);
  bool const one_batch = a.cumulative_queries != nullptr;
  std::int64_t const width = a.v.width, heads = a.heads;
  C* const o = workspace.template take<C>(std::size_t(a.splits * (sizes.o + sizes.lse))).data();
  C* const lse = o + a.splits * sizes.o;
  FlashAttentionMerge<T> merge{};
  merge.parts = a.splits;
  merge.batch = one_batch ? 1 : a.batch;
  merge.heads = a.heads;
  merge.queries = int(queries_of_batch);
  merge.o = a.o;
  merge.wide_o = a.partial_o;
  merge.lse = a.lse;
  a.partial_o = {o, one_batch ? 0 : queries_of_batch * heads * width, heads * width, width, int(width)};
  a.lse = {lse, one_batch ? 0 : heads * queries_of_batch, queries_of_batch, 1};
  a.partial_o_stride = merge.partial_o_stride = sizes.o;
  a.partial_lse_stride = merge.partial_lse_stride = sizes.lse;
  merge.partial_o = {o, a.partial_o.batch_stride, a.partial_o.sequence_stride, a.partial_o.head_stride, int(width)};
  merge.partial_lse = {lse, a.lse.batch_stride, a.lse.head_stride, 1};
  flash_attention_forward(space, a);
  flash_attention_merge(space, merge);
}

template <class ExecutionSpace, class T>
std::size_t flash_attention_backward_workspace_bytes(ExecutionSpace const& space,
                                                     FlashAttentionArguments<T> const& arguments,
                                                     std::int64_t total_queries) {
  FlashAttentionBackwardArguments<T> backward{};
  backward.forward = arguments;
  set_plan(space, total_queries, backward);
  return sizeof(ComputeType<T>) * WorkspaceSizes<T>(backward).all();
}

template <class ExecutionSpace, class T>
void flash_attention_backward(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> arguments,
                              std::int64_t total_queries, Workspace<ExecutionSpace>& workspace) {
  set_plan(space, total_queries, arguments);
  WorkspaceSizes<T> const sizes(arguments);
  arguments.dq_sums = workspace.template take<ComputeType<T>>(sizes.all()).data();
  arguments.lse_log2 = arguments.dq_sums + sizes.dq_sums;
  arguments.delta = arguments.lse_log2 + sizes.rows;
  if constexpr (is_host_space<ExecutionSpace>)
    backward_host(space, arguments);
  else
    flash_attention_backward_device(space, arguments);
  if (arguments.d_sink && arguments.forward.heads > 0)
    Kokkos::parallel_for("Sporos::flash_attention::backward::sink",
                         Kokkos::TeamPolicy<ExecutionSpace>(space, arguments.forward.heads, Kokkos::AUTO),
                         SinkGradient<ExecutionSpace, T>{arguments});
}

#define SPOROS_INSTANTIATE_TYPE(Space, T)                                                                              \
  template void flash_attention_forward<Space, T>(Space const&, FlashAttentionArguments<T> const&);                    \
  template void flash_attention_split_forward<Space, T>(Space const&, FlashAttentionArguments<T> const&, std::int64_t, \
                                                        Workspace<Space>&, int);                                       \
  template void flash_attention_merge<Space, T>(Space const&, FlashAttentionMerge<T> const&);                          \
  template std::size_t flash_attention_backward_workspace_bytes<Space, T>(                                             \
      Space const&, FlashAttentionArguments<T> const&, std::int64_t);                                                  \
  template void flash_attention_backward<Space, T>(Space const&, FlashAttentionBackwardArguments<T>, std::int64_t,     \
                                                   Workspace<Space>&);
#define SPOROS_INSTANTIATE(Space)          \
  SPOROS_INSTANTIATE_TYPE(Space, double)   \
  SPOROS_INSTANTIATE_TYPE(Space, float)    \
  SPOROS_INSTANTIATE_TYPE(Space, bfloat16) \
  SPOROS_INSTANTIATE_TYPE(Space, float16)
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE)
#undef SPOROS_INSTANTIATE
#undef SPOROS_INSTANTIATE_TYPE

}  // namespace Impl
}  // namespace Sporos
