// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "Sporos_Error.hpp"
#include "Sporos_Random.hpp"

namespace Sporos::Gpt {

int draw_token(std::vector<double> const& logits, SamplingOptions const& options, double uniform) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::size_t const kept = options.temperature == 0 ? 1
                           : options.top_k == 0     ? order.size()
                                                    : std::min(order.size(), std::size_t(options.top_k));
  std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(kept), order.end(), [&](int a, int b) {
    return logits[std::size_t(a)] != logits[std::size_t(b)] ? logits[std::size_t(a)] > logits[std::size_t(b)] : a < b;
  });
  order.resize(kept);
  if (kept == 1) return order.front();

  double const largest = logits[std::size_t(order.front())];
  std::vector<double> cumulative;
  double total = 0;
  for (int const token : order)
    cumulative.push_back(total += std::exp((logits[std::size_t(token)] - largest) / options.temperature));
  auto const drawn = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
  return order[std::size_t(std::min<std::ptrdiff_t>(drawn - cumulative.begin(), std::ptrdiff_t(kept) - 1))];
}

template <class ExecutionSpace, class T>
std::vector<int> sample_tokens(ExecutionSpace const& space, GptModel<ExecutionSpace, T>& model,
                               std::vector<int> const& prompt, SamplingOptions const& options) {
  using MemorySpace = typename ExecutionSpace::memory_space;
  SPOROS_THROW_INPUT_ERROR_IF(prompt.empty(), "the prompt is empty; the first token must come from somewhere");
  for (int const token : prompt)
    SPOROS_THROW_INPUT_ERROR_IF(token < 0 || token >= model.config().vocabulary, "the prompt holds token ", token,
                                ", the vocabulary has ", model.config().vocabulary);
  constexpr std::uint64_t sampling_stream = 0x73616d706c65;  // no other use of the seed counts that far
  RandomStream const random(options.seed, sampling_stream);
  std::size_t const context = std::size_t(model.max_length());
  Kokkos::View<int*, MemorySpace> const window("Sporos::gpt::window", context);
  auto const window_host = Kokkos::create_mirror_view(window);
  Kokkos::View<ComputeType<T>*, MemorySpace> const logits("Sporos::gpt::next_logits",
                                                          std::size_t(model.config().vocabulary));
  auto const logits_host = Kokkos::create_mirror_view(logits);

  std::vector<int> text = prompt;
  std::size_t seen = 0;  // tokens whose keys and values the model still has
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    // In a window that slides every token has a new position, and all are computed again.
    if (text.size() > context) seen = text.size() - context;
    std::size_t const before = text.size() > context ? 0 : seen, length = text.size() - seen;
    std::copy(text.end() - std::ptrdiff_t(length), text.end(), window_host.data());
    Kokkos::deep_copy(space, window, window_host);
    model.next_token_logits(Kokkos::subview(window, Kokkos::pair<std::size_t, std::size_t>(0, length)), logits,
                            std::int64_t(before));
    seen = text.size();
    Kokkos::deep_copy(space, logits_host, logits);
    space.fence("Sporos::gpt::sample_tokens: logits are read on the host");
    std::vector<double> const values(logits_host.data(), logits_host.data() + logits_host.extent(0));
    text.push_back(draw_token(values, options, random.uniform(std::uint64_t(i))));
  }
  return {text.begin() + std::ptrdiff_t(prompt.size()), text.end()};
}

#define SPOROS_INSTANTIATE_SAMPLER(T)                                                                           \
  template std::vector<int> sample_tokens(Kokkos::DefaultExecutionSpace const&,                                 \
                                          GptModel<Kokkos::DefaultExecutionSpace, T>&, std::vector<int> const&, \
                                          SamplingOptions const&);

SPOROS_INSTANTIATE_SAMPLER(double)
SPOROS_INSTANTIATE_SAMPLER(float)
SPOROS_INSTANTIATE_SAMPLER(bfloat16)

}  // namespace Sporos::Gpt
