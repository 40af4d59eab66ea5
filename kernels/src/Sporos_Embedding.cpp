// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Embedding.hpp"

#include <algorithm>

#include "impl/Sporos_Instantiate.hpp"
#include "impl/Sporos_RowLaunch.hpp"

namespace Sporos::Impl {

template <class ExecutionSpace, class T>
void embedding(ExecutionSpace const& space, std::int64_t rows, EmbeddingForward<T> const& arguments) {
  run_items(space, "Sporos::embedding::forward", rows, arguments);
}

template <class ExecutionSpace, class T>
void embedding_backward(ExecutionSpace const& space, EmbeddingTokenGradient<T> const& of_tokens,
                        EmbeddingPositionGradient<T> const& of_positions) {
  run_items(space, "Sporos::embedding::backward_tokens", of_tokens.rows, of_tokens);
  run_items(space, "Sporos::embedding::backward_positions", std::min(of_positions.rows, of_positions.sequence_length),
            of_positions);
}

#define SPOROS_INSTANTIATE_EMBEDDING(ExecutionSpace, T)                                                        \
  template void embedding<ExecutionSpace, T>(ExecutionSpace const&, std::int64_t, EmbeddingForward<T> const&); \
  template void embedding_backward<ExecutionSpace, T>(ExecutionSpace const&, EmbeddingTokenGradient<T> const&, \
                                                      EmbeddingPositionGradient<T> const&);
#define SPOROS_INSTANTIATE(ExecutionSpace)             \
  SPOROS_INSTANTIATE_EMBEDDING(ExecutionSpace, double) \
  SPOROS_INSTANTIATE_EMBEDDING(ExecutionSpace, float)  \
  SPOROS_INSTANTIATE_EMBEDDING(ExecutionSpace, bfloat16)
SPOROS_INSTANTIATE_FOR_EXECUTION_SPACES(SPOROS_INSTANTIATE)

}  // namespace Sporos::Impl
