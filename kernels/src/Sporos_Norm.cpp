// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>

#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_Norm_Launch.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos::Impl {

template <class ExecutionSpace, class T, Norm norm>
void norm_forward(ExecutionSpace const& space, std::int64_t rows, NormForward<T, norm> const& arguments) {
  run_items(space, norm == Norm::layer ? "Sporos::layernorm::forward" : "Sporos::rmsnorm::forward", rows, arguments);
}

template <class ExecutionSpace, class T, Norm norm>
void norm_backward(ExecutionSpace const& space, NormBackward<T, norm> arguments, ComputeType<T>* dgamma,
                   ComputeType<T>* dbeta, Workspace<ExecutionSpace>& workspace) {
  if (arguments.rows == 0 || arguments.columns == 0) return;
  // Enough items to fill a GPU, or to balance the cores of a host; and at least 16 rows each, so that writing the partial
  // sums costs little beside reading the rows.
  constexpr std::int64_t most_items = is_host_space<ExecutionSpace> ? 64 : 1024;
  arguments.rows_per_item = std::max<std::int64_t>(16, (arguments.rows + most_items - 1) / most_items);
  std::int64_t const items = (arguments.rows + arguments.rows_per_item - 1) / arguments.rows_per_item;
  arguments.partials =
      workspace.template take<ComputeType<T>>(std::size_t(items) * 2 * std::size_t(arguments.columns)).data();
  run_items(space, norm == Norm::layer ? "Sporos::layernorm::backward" : "Sporos::rmsnorm::backward", items, arguments);
  run_items(space, norm == Norm::layer ? "Sporos::layernorm::backward_sums" : "Sporos::rmsnorm::backward_sums",
            (arguments.columns + norm_finish_columns - 1) / norm_finish_columns,
            NormFinish<ComputeType<T>>{items, arguments.columns, arguments.partials, dgamma, dbeta});
}

#define SPOROS_INSTANTIATE_NORM(ExecutionSpace, T, norm)                                                              \
  template void norm_forward<ExecutionSpace, T, norm>(ExecutionSpace const&, std::int64_t,                            \
                                                      NormForward<T, norm> const&);                                   \
  template void norm_backward<ExecutionSpace, T, norm>(ExecutionSpace const&, NormBackward<T, norm>, ComputeType<T>*, \
                                                       ComputeType<T>*, Workspace<ExecutionSpace>&);
#define SPOROS_INSTANTIATE(ExecutionSpace)                       \
  SPOROS_INSTANTIATE_NORM(ExecutionSpace, double, Norm::layer)   \
  SPOROS_INSTANTIATE_NORM(ExecutionSpace, float, Norm::layer)    \
  SPOROS_INSTANTIATE_NORM(ExecutionSpace, bfloat16, Norm::layer) \
  SPOROS_INSTANTIATE_NORM(ExecutionSpace, double, Norm::rms)     \
  SPOROS_INSTANTIATE_NORM(ExecutionSpace, float, Norm::rms)      \
  SPOROS_INSTANTIATE_NORM(ExecutionSpace, bfloat16, Norm::rms)
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE)

}  // namespace Sporos::Impl
