// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_SAMPLER_HPP
#define SPOROS_SAMPLER_HPP

#include <cstdint>
#include <vector>

#include "Sporos_GptModel.hpp"

namespace Sporos::Gpt {

struct SamplingOptions {
  std::int64_t tokens = 300;
  double temperature = 0.8;  ///< 0: always the most probable token
  std::int64_t top_k = 0;    ///< draw among so many most probable tokens; 0: all
  std::uint64_t seed = 1;
};

/// Draws a token: softmax(logits / temperature) over the top_k largest; among equal logits the smaller index wins.
/// \param uniform in (0, 1)
int draw_token(std::vector<double> const& logits, SamplingOptions const& options, double uniform);

/// Continues the prompt by options.tokens tokens, which are returned. The model sees the last max_length() tokens. Token i
/// depends on the prompt, the weights and (seed, i) alone. Fences.
template <class ExecutionSpace, class T>
std::vector<int> sample_tokens(ExecutionSpace const& space, GptModel<ExecutionSpace, T>& model,
                               std::vector<int> const& prompt, SamplingOptions const& options);

}  // namespace Sporos::Gpt

#endif
