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
  std::int64_t const heads = std::int64_t(arguments.batch) * arguments.heads;
  for_each_item("Sporos::flash_attention::forward", space, heads * tiles, kernel.scratch_bytes(arguments),
                [=](int item, void* scratch) {
                  int const head = int(item % heads);
                  int const tile = tiles - 1 - int(item / heads);  // the long causal ones first
                  kernel.tile(arguments, head / arguments.heads, head % arguments.heads, tile, scratch);
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
  int const padded_queries = blocks(a.queries, tiling.queries) * tiling.queries;

  std::int64_t const bytes =
      std::int64_t(sizeof(ComputeType<T>)) * a.batch * a.heads * padded_queries * tiling.head_dim;
  std::int64_t const held = (std::int64_t(32) << 20) / std::max<std::int64_t>(1, bytes);
  std::int64_t const even = heads >= 4 * threads ? 1 : threads / std::gcd(heads, threads);
  std::int64_t const slots = std::min({even, held, std::int64_t(blocks(a.keys, tiling.keys))});
  return {int(std::max<std::int64_t>(1, slots)), padded_queries, tiling.head_dim};
}

template <class ExecutionSpace, class T>
void backward_host(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> const& arguments) {
  FlashAttentionBackwardHostKernel<T> const kernel = flash_attention_backward_kernels(best_host_level());
  FlashAttentionArguments<T> const& forward = arguments.forward;
  int const blocks = arguments.padded_queries / kernel.tiling(forward).queries;
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
}

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

  WorkspaceSizes(FlashAttentionArguments<T> const& a, FlashAttentionBackwardPlan const& plan)
      : rows(std::size_t(a.batch) * std::size_t(a.heads) * std::size_t(plan.padded_queries)) {
    dq_sums = std::size_t(plan.slots) * rows * std::size_t(plan.padded_head_dim);
  }
  std::size_t all() const { return dq_sums + 2 * rows; }
};

}  // namespace

template <class ExecutionSpace, class T>
void flash_attention_forward(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  if constexpr (is_host_space<ExecutionSpace>)
    forward_host(space, arguments);
  else
    flash_attention_forward_device(space, arguments);
}

template <class ExecutionSpace, class T>
std::size_t flash_attention_backward_workspace_bytes(ExecutionSpace const& space,
                                                     FlashAttentionArguments<T> const& arguments) {
  return sizeof(ComputeType<T>) * WorkspaceSizes<T>(arguments, plan(space, arguments)).all();
}

template <class ExecutionSpace, class T>
void flash_attention_backward(ExecutionSpace const& space, FlashAttentionBackwardArguments<T> arguments,
                              Workspace<ExecutionSpace>& workspace) {
  FlashAttentionBackwardPlan const plan = Impl::plan(space, arguments.forward);
  WorkspaceSizes<T> const sizes(arguments.forward, plan);
  arguments.slots = plan.slots;
  arguments.padded_queries = plan.padded_queries;
  arguments.padded_head_dim = plan.padded_head_dim;
  arguments.dq_sums = workspace.template take<ComputeType<T>>(sizes.all()).data();
  arguments.lse_log2 = arguments.dq_sums + sizes.dq_sums;
  arguments.delta = arguments.lse_log2 + sizes.rows;
  if constexpr (is_host_space<ExecutionSpace>)
    backward_host(space, arguments);
  else
    flash_attention_backward_device(space, arguments);
}

#define SPOROS_INSTANTIATE_TYPE(Space, T)                                                                     \
  template void flash_attention_forward<Space, T>(Space const&, FlashAttentionArguments<T> const&);           \
  template std::size_t flash_attention_backward_workspace_bytes<Space, T>(Space const&,                       \
                                                                          FlashAttentionArguments<T> const&); \
  template void flash_attention_backward<Space, T>(Space const&, FlashAttentionBackwardArguments<T>, Workspace<Space>&);
#define SPOROS_INSTANTIATE(Space)        \
  SPOROS_INSTANTIATE_TYPE(Space, double) \
  SPOROS_INSTANTIATE_TYPE(Space, float)  \
  SPOROS_INSTANTIATE_TYPE(Space, bfloat16)
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE)
#undef SPOROS_INSTANTIATE
#undef SPOROS_INSTANTIATE_TYPE

}  // namespace Impl
}  // namespace Sporos
