// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_CrossEntropy.hpp"

#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos::Impl {

template <class ExecutionSpace, class T>
void cross_entropy(ExecutionSpace const& space, std::int64_t rows, CrossEntropyForward<T> const& arguments) {
  run_items(space, "Sporos::cross_entropy::forward", rows, arguments);
}

template <class ExecutionSpace, class LogitsT, class T>
void cross_entropy_backward(ExecutionSpace const& space, std::int64_t rows,
                            CrossEntropyBackward<LogitsT, T> const& arguments) {
  run_items(space, "Sporos::cross_entropy::backward", rows, arguments);
}

#define SPOROS_INSTANTIATE_FORWARD(ExecutionSpace, T) \
  template void cross_entropy<ExecutionSpace, T>(ExecutionSpace const&, std::int64_t, CrossEntropyForward<T> const&);
#define SPOROS_INSTANTIATE_BACKWARD(ExecutionSpace, LogitsT, T)                                         \
  template void cross_entropy_backward<ExecutionSpace, LogitsT, T>(ExecutionSpace const&, std::int64_t, \
                                                                   CrossEntropyBackward<LogitsT, T> const&);
#define SPOROS_INSTANTIATE(ExecutionSpace)                     \
  SPOROS_INSTANTIATE_FORWARD(ExecutionSpace, double)           \
  SPOROS_INSTANTIATE_FORWARD(ExecutionSpace, float)            \
  SPOROS_INSTANTIATE_FORWARD(ExecutionSpace, bfloat16)         \
  SPOROS_INSTANTIATE_BACKWARD(ExecutionSpace, double, double)  \
  SPOROS_INSTANTIATE_BACKWARD(ExecutionSpace, float, float)    \
  SPOROS_INSTANTIATE_BACKWARD(ExecutionSpace, float, bfloat16) \
  SPOROS_INSTANTIATE_BACKWARD(ExecutionSpace, bfloat16, bfloat16)
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE)

}  // namespace Sporos::Impl
