// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_FlashAttention_Hopper.hpp"
#include "impl/Sporos_FlashAttention_TeamWork.hpp"
#include "impl/Sporos_HopperLaunch.hpp"

#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__)
namespace Sporos::Impl {
namespace {

// A causal mask wastes half a block of keys in each tile: narrow ones there, see FlashAttentionForwardShape.
using Narrow = FlashAttentionHopperForward<2, 128>;

/// f(Arch, Work): the kernel for a problem
template <class T, class F>
auto with_forward_kernel(FlashAttentionArguments<T> const& a, F const& f) {
  using Two = Arch::Sm90With<2>;
  using Three = Arch::Sm90With<3>;
  if (a.head_dim <= 64) return f(Three(), std::type_identity<FlashAttentionForwardWork<Three, T, 64>>());
  if (a.head_dim > 128) return f(Two(), std::type_identity<FlashAttentionForwardWork<Two, T, 256>>());
  if (a.right < a.unbounded) return f(Two(), std::type_identity<FlashAttentionForwardWork<Two, T, 128, Narrow>>());
  return f(Two(), std::type_identity<FlashAttentionForwardWork<Two, T, 128>>());
}

/// Sequences one after another have ends that maps do not know of.
template <class Tile, class T>
TensorMaps<4> maps_of(FlashAttentionArguments<T>& a) {
  TensorMaps<4> maps;
  bool const complete = a.cumulative_queries == nullptr && a.queries > 0 && a.keys > 0 &&
                        maps.add(a.q, a.batch, a.queries, a.heads, a.q.width, Tile::queries) &&
                        maps.add(a.k, a.batch, a.keys, a.kv_heads, a.k.width, Tile::keys) &&
                        maps.add(a.v, a.batch, a.keys, a.kv_heads, a.v.width, Tile::keys);
  if (!complete) maps.count = 0;
  return maps;
}

}  // namespace

template <class ExecutionSpace, class T>
bool hopper_takes_forward(ExecutionSpace const&, FlashAttentionArguments<T> const& a) {
  bool const plain = !(a.softcap > 0) && !a.alibi_slopes.data && !a.bias.data && !a.dropout.active();
  if (!plain || a.splits != 1 || a.partial_o.data || !device_runs_hopper_code()) return false;
  return with_forward_kernel(a, [&]<class Arch, class Work>(Arch, std::type_identity<Work>) {
    std::int64_t const items = std::int64_t(a.batch) * a.heads * Work::Tile::tiles(a);
    return items <= std::numeric_limits<int>::max() && fits_scratch<Arch, Work>();
  });
}

template <class ExecutionSpace, class T>
void flash_attention_forward_hopper(ExecutionSpace const& space, FlashAttentionArguments<T> const& arguments) {
  with_forward_kernel(arguments, [&]<class Arch, class Work>(Arch, std::type_identity<Work>) {
    FlashAttentionArguments<T> a = arguments;
    TensorMaps<4> const maps = maps_of<typename Work::Tile>(a);
    launch_hopper<Arch>("Sporos::flash_attention::forward", space, Work(a), maps);
  });
}

#define SPOROS_INSTANTIATE(T)                                                                                  \
  template bool hopper_takes_forward<Kokkos::Cuda, T>(Kokkos::Cuda const&, FlashAttentionArguments<T> const&); \
  template void flash_attention_forward_hopper<Kokkos::Cuda, T>(Kokkos::Cuda const&, FlashAttentionArguments<T> const&);
SPOROS_INSTANTIATE(bfloat16)
SPOROS_INSTANTIATE(float16)
#undef SPOROS_INSTANTIATE

}  // namespace Sporos::Impl
#endif
