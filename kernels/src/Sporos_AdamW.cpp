// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_AdamW.hpp"

#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos::Impl {

template <class ExecutionSpace, class T>
void adamw(ExecutionSpace const& space, AdamWStep<T> const& arguments) {
  run_items(space, "Sporos::adamw", (arguments.size + flat_item_size - 1) / flat_item_size, arguments);
}

template <Reduction reduction, class ExecutionSpace, class C>
void reduce(ExecutionSpace const& space, std::int64_t size, C const* x, double* result,
            Workspace<ExecutionSpace>& workspace) {
  std::int64_t const items = (size + flat_item_size - 1) / flat_item_size;
  double* const partials = workspace.template take<double>(std::size_t(items)).data();
  run_items(space, "Sporos::reduce::partial_sums", items, PartialSums<C, reduction>{size, flat_item_size, x, partials});
  run_items(space, "Sporos::reduce::final_sum", 1, FinalSum{items, partials, result});
}

template <class ExecutionSpace, class C>
void squared_norms(ExecutionSpace const& space, std::int64_t size, std::int64_t block, C const* x, double* result) {
  run_items(space, "Sporos::squared_norms", (size + block - 1) / block,
            PartialSums<C, Reduction::sum_of_squares>{size, block, x, result});
}

#define SPOROS_INSTANTIATE_ADAMW(ExecutionSpace, T) \
  template void adamw<ExecutionSpace, T>(ExecutionSpace const&, AdamWStep<T> const&);
#define SPOROS_INSTANTIATE_REDUCE(ExecutionSpace, C, reduction)                                              \
  template void reduce<reduction, ExecutionSpace, C>(ExecutionSpace const&, std::int64_t, C const*, double*, \
                                                     Workspace<ExecutionSpace>&);
#define SPOROS_INSTANTIATE_NORMS(ExecutionSpace, C) \
  template void squared_norms<ExecutionSpace, C>(ExecutionSpace const&, std::int64_t, std::int64_t, C const*, double*);
#define SPOROS_INSTANTIATE(ExecutionSpace)                                     \
  SPOROS_INSTANTIATE_ADAMW(ExecutionSpace, double)                             \
  SPOROS_INSTANTIATE_ADAMW(ExecutionSpace, float)                              \
  SPOROS_INSTANTIATE_ADAMW(ExecutionSpace, bfloat16)                           \
  SPOROS_INSTANTIATE_REDUCE(ExecutionSpace, double, Reduction::sum)            \
  SPOROS_INSTANTIATE_REDUCE(ExecutionSpace, float, Reduction::sum)             \
  SPOROS_INSTANTIATE_REDUCE(ExecutionSpace, double, Reduction::sum_of_squares) \
  SPOROS_INSTANTIATE_REDUCE(ExecutionSpace, float, Reduction::sum_of_squares)  \
  SPOROS_INSTANTIATE_NORMS(ExecutionSpace, double)                             \
  SPOROS_INSTANTIATE_NORMS(ExecutionSpace, float)
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE)

}  // namespace Sporos::Impl
