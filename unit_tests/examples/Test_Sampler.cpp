// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <vector>

#include "Sporos_Sampler.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Gpt;
using Space = Kokkos::DefaultExecutionSpace;

}  // namespace

TEST_CASE("Tokens are drawn with the softmax's probabilities", "[examples][sampler]") {
  std::vector<double> const logits = {std::log(1.0), std::log(4.0), std::log(2.0), std::log(3.0)};
  SamplingOptions options;
  options.temperature = 1;
  // Most probable first: 1, 3, 2, 0 with the limits 0.4, 0.7, 0.9
  for (auto const& [uniform, token] :
       {std::pair{0.001, 1}, std::pair{0.399, 1}, std::pair{0.401, 3}, std::pair{0.699, 3}, std::pair{0.701, 2},
        std::pair{0.901, 0}, std::pair{0.999, 0}})
    REQUIRE(draw_token(logits, options, uniform) == token);
  options.top_k = 2;  // 4/7 and 3/7
  REQUIRE(draw_token(logits, options, 0.571) == 1);
  REQUIRE(draw_token(logits, options, 0.572) == 3);
  REQUIRE(draw_token(logits, options, 0.999) == 3);
  options.top_k = 0;
  options.temperature = 0.5;  // squares: 16, 9, 4, 1 of 30
  REQUIRE(draw_token(logits, options, 0.533) == 1);
  REQUIRE(draw_token(logits, options, 0.534) == 3);
  options.temperature = 0;
  REQUIRE(draw_token(logits, options, 0.999) == 1);
  REQUIRE(draw_token({1.0, 2.0, 2.0}, options, 0.999) == 1);
}

TEST_CASE("A text repeats with its seed, and goes on beyond the context", "[examples][sampler]") {
  GptConfig const config{256, 8, 1, 1, 16};
  Space const space;
  ShardedState<Space, float> state(space, gpt_layout(config));
  initialise_gpt(space, config, 1, state);
  GptModel<Space, float> model(space, config, state, 1, 8);
  SamplingOptions options;
  options.tokens = 20;
  std::vector<int> const prompt = {5, 6, 7};
  std::vector<int> const text = sample_tokens(space, model, prompt, options);
  REQUIRE(text.size() == 20);
  REQUIRE(sample_tokens(space, model, prompt, options) == text);
  options.seed = 2;
  REQUIRE(sample_tokens(space, model, prompt, options) != text);

  // With temperature 0 the continuation of a continuation is the continuation, where the model sees the same tokens.
  options.temperature = 0;
  std::vector<int> const greedy = sample_tokens(space, model, prompt, options);
  std::vector<int> longer_prompt = prompt;
  longer_prompt.insert(longer_prompt.end(), greedy.begin(), greedy.begin() + 12);
  options.tokens = 8;
  REQUIRE(sample_tokens(space, model, longer_prompt, options) == std::vector<int>(greedy.begin() + 12, greedy.end()));
}

// Keys and values that are kept from token to token, against all of them computed again for every token
TEST_CASE("A text from cached keys and values is the one that full passes give", "[examples][sampler]") {
  GptConfig const config{256, 40, 2, 2, 16};
  Space const space;
  ShardedState<Space, float> state(space, gpt_layout(config));
  initialise_gpt(space, config, 1, state);
  GptModel<Space, float> model(space, config, state, 1, 32);
  SamplingOptions options;
  options.tokens = 50;  // the last ones behind the end of the window
  std::vector<int> text = {5, 6, 7};
  std::vector<int> const sampled = sample_tokens(space, model, text, options);

  Kokkos::View<float*, Space::memory_space> const logits("logits", 256);
  for (int const token : sampled) {
    std::size_t const length = std::min<std::size_t>(text.size(), 32), index = text.size() - 3;
    Kokkos::View<int*, Space::memory_space> const window("window", length);
    Kokkos::deep_copy(window, Kokkos::View<int const*, Kokkos::HostSpace>(text.data() + text.size() - length, length));
    model.next_token_logits(window, logits);
    auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), logits);
    constexpr std::uint64_t sampling_stream = 0x73616d706c65;
    double const uniform = RandomStream(options.seed, sampling_stream).uniform(index);
    REQUIRE(draw_token({host.data(), host.data() + host.extent(0)}, options, uniform) == token);
    text.push_back(token);
  }
}

TEST_CASE("A prompt that no model can continue is refused", "[examples][sampler]") {
  using Catch::Matchers::ContainsSubstring;
  GptConfig const config{256, 8, 1, 1, 16};
  Space const space;
  ShardedState<Space, float> state(space, gpt_layout(config));
  GptModel<Space, float> model(space, config, state, 1, 8);
  REQUIRE_THROWS_WITH(sample_tokens(space, model, {}, SamplingOptions()), ContainsSubstring("empty"));
  REQUIRE_THROWS_WITH(sample_tokens(space, model, {3, 256}, SamplingOptions()),
                      ContainsSubstring("token 256") && ContainsSubstring("vocabulary has 256"));
}
