// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "Sporos_GptModel.hpp"
#include "Sporos_Random.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Gpt;
using Space = Kokkos::DefaultExecutionSpace;

using Tokens = Kokkos::View<int*, Space::memory_space>;

Tokens tokens_of(std::vector<int> const& values) {
  Tokens tokens("tokens", values.size());
  auto const host = Kokkos::create_mirror_view(tokens);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(tokens, host);
  return tokens;
}

std::vector<int> random_tokens(std::size_t count, int vocabulary, std::uint64_t stream) {
  RandomStream const random(7, stream);
  std::vector<int> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = int(random.bits(i) % unsigned(vocabulary));
  return tokens;
}

template <class T>
std::vector<double> host_values(Kokkos::View<T*, Space::memory_space> const& view) {
  auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return {host.data(), host.data() + host.extent(0)};
}

/// Sees how a model uses its parameters and when it reports its gradients.
template <class T>
class Recorder : public StateAccess<Space, T> {
 public:
  using StateAccess<Space, T>::StateAccess;

  T* parameters(std::size_t unit, std::optional<std::size_t> next) override {
    REQUIRE((!announced || *announced == unit));
    REQUIRE((!in_use || unit != *in_use));
    announced = next;
    in_use = unit;
    used.push_back(unit);
    return StateAccess<Space, T>::parameters(unit, next);
  }
  void release(std::size_t unit) override {
    REQUIRE(in_use == unit);
    in_use.reset();
  }
  void ready(std::size_t unit) override {
    used.push_back(1000 + unit);
    if (on_ready) on_ready(this->layout().units()[unit]);
  }

  std::function<void(Interval const&)> on_ready;
  std::optional<std::size_t> announced, in_use;
  std::vector<std::size_t> used;  // units asked for, and 1000 + unit where gradients were reported
};

/// A model with everything that the tests feed it. The weights are much larger than those that training starts from, so that
/// every part of the model has a gradient that counts.
template <class T>
struct Fixture {
  GptConfig config{13, 7, 3, 2, 16};
  Space space;
  ShardedState<Space, T> state{space, gpt_layout(config)};
  Recorder<T> access{state};
  GptModel<Space, T> model;
  Tokens inputs, targets;
  std::int64_t length;
  Kokkos::View<double, Space::memory_space> loss_view{"loss"};

  explicit Fixture(std::int64_t sequences = 3, std::int64_t sequence_length = 5, bool recompute = false)
      : model(space, config, access, sequences, sequence_length, recompute), length(sequence_length) {
    initialise_gpt(space, config, 3, state);
    auto const parameters = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.parameters());
    RandomStream const random(11, 0);
    for (TensorRange const& tensor : state.layout().tensors())
      for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i)
        parameters(std::size_t(i)) =
            T(ComputeType<T>(double(parameters(std::size_t(i))) + 0.6 * (random.uniform(std::uint64_t(i)) - 0.5)));
    Kokkos::deep_copy(state.parameters(), parameters);
    auto const rows = std::size_t(sequences * sequence_length);
    inputs = tokens_of(random_tokens(rows, int(config.vocabulary), 0));
    auto wanted = random_tokens(rows, int(config.vocabulary), 1);
    wanted[2] = -1;  // counts nothing
    targets = tokens_of(wanted);
  }

  double loss() {
    model.loss(inputs, targets, length, loss_view);
    return value();
  }
  double loss_and_gradients(double scale, DropoutPlace const& place) {
    model.loss_and_gradients(inputs, targets, length, scale, place, loss_view);
    return value();
  }
  double value() {
    double result;
    Kokkos::deep_copy(result, loss_view);
    return result;
  }
};

/// |a − b| / |b| of one tensor, in the 2-norm
double relative_difference(std::vector<double> const& a, std::vector<double> const& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

/// Compares every stride-th element of every tensor's gradient with the difference quotient of fourth order.
template <class Loss>
void compare_with_differences(Fixture<double>& fixture, std::int64_t stride, Loss const& loss) {
  std::vector<double> const gradients = host_values(fixture.state.gradients());
  auto const set = [&](std::int64_t i, double value) {
    Kokkos::deep_copy(Kokkos::subview(fixture.state.parameters(), std::size_t(i)), value);
  };
  std::vector<double> const parameters = host_values(fixture.state.parameters());
  constexpr double h = 1e-3;  // truncation h⁴ and rounding 1e-16 / h are both near 1e-12 of the loss
  for (TensorRange const& tensor : fixture.state.layout().tensors()) {
    std::vector<double> exact, numeric;
    for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.size; i += stride) {
      double const p = parameters[std::size_t(i)];
      auto const at = [&](double shift) { return set(i, p + shift), loss(); };
      double const d1 = at(h) - at(-h), d2 = at(2 * h) - at(-2 * h);
      set(i, p);
      numeric.push_back((8 * d1 - d2) / (12 * h));
      exact.push_back(gradients[std::size_t(i)]);
    }
    INFO(tensor.name);
    REQUIRE(relative_difference(exact, numeric) < 1e-6);
  }
}

}  // namespace

TEST_CASE("The gradient of every tensor is the limit of difference quotients", "[examples][gpt]") {
  Fixture<double> fixture;
  Kokkos::deep_copy(fixture.state.gradients(), 0.0);
  double const loss = fixture.loss_and_gradients(1.0, {});
  REQUIRE(loss == fixture.loss());  // no dropout: evaluation and training are one computation
  compare_with_differences(fixture, 7, [&] { return fixture.loss(); });
}

TEST_CASE("With dropout the gradient is that of the model with this mask", "[examples][gpt]") {
  Fixture<double> fixture;
  DropoutPlace const place{.probability = 0.3, .seed = 5, .step = 2, .first_sequence = 4};
  Kokkos::deep_copy(fixture.state.gradients(), 0.0);
  double const loss = fixture.loss_and_gradients(1.0, place);
  REQUIRE(loss != fixture.loss());
  compare_with_differences(fixture, 23, [&] { return fixture.loss_and_gradients(0.0, place); });
}

TEST_CASE("Gradients and losses do not depend on how a batch is cut into micro-batches", "[examples][gpt]") {
  Fixture<double> whole(4, 5), parts(4, 5);
  DropoutPlace place{.probability = 0.2, .seed = 5, .step = 1, .first_sequence = 3};
  Kokkos::deep_copy(whole.state.gradients(), 0.0);
  Kokkos::deep_copy(parts.state.gradients(), 0.0);
  double const loss = whole.loss_and_gradients(0.25, place);
  double sum = 0;
  for (auto const& [first, count] : {std::pair{0, 1}, std::pair{1, 3}}) {
    auto const range = Kokkos::pair<int, int>(first * 5, (first + count) * 5);
    place.first_sequence = 3 + first;
    parts.model.loss_and_gradients(Kokkos::subview(parts.inputs, range), Kokkos::subview(parts.targets, range), 5, 0.25,
                                   place, parts.loss_view);
    sum += parts.value();
  }
  REQUIRE(std::abs(sum - loss) < 1e-13 * loss);
  REQUIRE(relative_difference(host_values(parts.state.gradients()), host_values(whole.state.gradients())) < 1e-13);
}

TEST_CASE("A dropout mask is another one at another step and another sequence", "[examples][gpt]") {
  Fixture<double> fixture;
  DropoutPlace const place{.probability = 0.3, .seed = 5, .step = 2, .first_sequence = 4};
  double const loss = fixture.loss_and_gradients(1.0, place);
  REQUIRE(fixture.loss_and_gradients(1.0, place) == loss);
  for (DropoutPlace const& other : {DropoutPlace{0.3, 6, 2, 4}, DropoutPlace{0.3, 5, 3, 4}, DropoutPlace{0.3, 5, 2, 5}})
    REQUIRE(fixture.loss_and_gradients(1.0, other) != loss);
}

TEMPLATE_TEST_CASE("The backward pass reports all gradients from the end to the beginning, each when it is final",
                   "[examples][gpt]", double, float, bfloat16) {
  Fixture<TestType> fixture;
  using Compute = ComputeType<TestType>;
  Kokkos::deep_copy(fixture.state.gradients(), Compute(0));
  std::int64_t next = fixture.state.layout().size();
  std::vector<double> at_report(std::size_t(next), std::nan(""));
  fixture.access.on_ready = [&](Interval const& unit) {
    REQUIRE(unit.last == next);
    next = unit.first;
    auto const current = host_values(fixture.state.gradients());
    std::copy(current.begin() + unit.first, current.begin() + unit.last, at_report.begin() + unit.first);
  };
  fixture.loss_and_gradients(1.0, {});
  REQUIRE(next == 0);
  REQUIRE(at_report == host_values(fixture.state.gradients()));
}

TEST_CASE("Units are announced one ahead, and a rank that only attends asks for the same", "[examples][gpt]") {
  Fixture<float> working, attending;
  working.loss_and_gradients(1.0, {});
  attending.model.attend(true);
  REQUIRE(working.access.used == std::vector<std::size_t>{0, 1, 2, 3, 4, 0, 4, 1004, 3, 1003, 2, 1002, 1, 1001, 1000});
  REQUIRE(attending.access.used == working.access.used);
  working.access.used.clear();
  attending.access.used.clear();
  working.loss();
  attending.model.attend(false);
  REQUIRE(working.access.used == std::vector<std::size_t>{0, 1, 2, 3, 4, 0});
  REQUIRE(attending.access.used == working.access.used);
}

TEMPLATE_TEST_CASE("With recomputation losses and gradients have the same bits, in less memory", "[examples][gpt]",
                   double, float, bfloat16) {
  using Compute = ComputeType<TestType>;
  for (double const probability : {0.0, 0.3}) {
    CAPTURE(probability);
    Fixture<TestType> stored(3, 5, false), recomputed(3, 5, true);
    DropoutPlace const place{.probability = probability, .seed = 5, .step = 2, .first_sequence = 4};
    Kokkos::deep_copy(stored.state.gradients(), Compute(0));
    Kokkos::deep_copy(recomputed.state.gradients(), Compute(0));
    REQUIRE(stored.loss_and_gradients(1.0, place) == recomputed.loss_and_gradients(1.0, place));
    REQUIRE(host_values(stored.state.gradients()) == host_values(recomputed.state.gradients()));
    REQUIRE(stored.loss() == recomputed.loss());
    // Of each block but the first, the residual stream is all that is kept: 1 of more than 16 widths.
    std::size_t const kept = 2 * 15 * 16 * sizeof(TestType);
    REQUIRE(stored.model.bytes() - recomputed.model.bytes() > 15 * kept);
  }
}

TEMPLATE_TEST_CASE("A pass repeated gives the same bits", "[examples][gpt]", double, float, bfloat16) {
  Fixture<TestType> fixture;
  using Compute = ComputeType<TestType>;
  DropoutPlace const place{.probability = 0.1, .seed = 1, .step = 0, .first_sequence = 0};
  Kokkos::deep_copy(fixture.state.gradients(), Compute(0));
  double const loss = fixture.loss_and_gradients(1.0, place);
  auto const first = host_values(fixture.state.gradients());
  Kokkos::deep_copy(fixture.state.gradients(), Compute(0));
  REQUIRE(fixture.loss_and_gradients(1.0, place) == loss);
  REQUIRE(host_values(fixture.state.gradients()) == first);
}

TEST_CASE("The logits of the next token are those of the loss", "[examples][gpt]") {
  Fixture<double> fixture(1, 5);
  Kokkos::View<double*, Space::memory_space> logits("logits", 13);
  fixture.model.next_token_logits(fixture.inputs, logits);
  std::vector<double> const values = host_values(logits);
  double total = 0;
  for (double const value : values) total += std::exp(value);
  fixture.targets = tokens_of({-1, -1, -1, -1, 6});
  REQUIRE(std::abs(fixture.loss() - (std::log(total) - values[6])) < 1e-12);
}

TEST_CASE("The logits of the next token are the same when the tokens come a few at a time", "[examples][gpt]") {
  Fixture<double> fixture(1, 7);
  Kokkos::View<double*, Space::memory_space> logits("logits", 13);
  fixture.model.next_token_logits(fixture.inputs, logits);
  std::vector<double> const wanted = host_values(logits);
  auto const part = [&](std::size_t begin, std::size_t end) {
    fixture.model.next_token_logits(Kokkos::subview(fixture.inputs, Kokkos::pair<std::size_t, std::size_t>(begin, end)),
                                    logits, std::int64_t(begin));
  };
  part(0, 3);
  part(3, 4);
  part(4, 6);
  part(6, 7);
  std::vector<double> const values = host_values(logits);
  for (std::size_t i = 0; i < wanted.size(); ++i) REQUIRE(std::abs(values[i] - wanted[i]) < 1e-12);
  REQUIRE_THROWS_AS(fixture.model.next_token_logits(fixture.inputs, logits, 1), InvalidArgument);
}

TEST_CASE("Initial weights have GPT-2's distribution, the same for any type", "[examples][gpt]") {
  GptConfig const config{64, 32, 3, 4, 64};
  Space const space;
  ShardedState<Space, double> state(space, gpt_layout(config));
  ShardedState<Space, bfloat16> rounded(space, gpt_layout(config));
  initialise_gpt(space, config, 9, state);
  initialise_gpt(space, config, 9, rounded);
  std::vector<double> const weights = host_values(state.parameters());
  std::vector<double> const master = host_values(rounded.master()), parameters = host_values(rounded.parameters());
  for (TensorRange const& tensor : state.layout().tensors()) {
    INFO(tensor.name);
    double sum = 0, squares = 0;
    for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
      double const w = weights[std::size_t(i)];
      REQUIRE(master[std::size_t(i)] == double(float(w)));
      REQUIRE(parameters[std::size_t(i)] == double(bfloat16(float(w))));
      sum += w;
      squares += w * w;
    }
    double const mean = sum / double(tensor.size), deviation = std::sqrt(squares / double(tensor.size));
    if (tensor.shape.size() == 1) {
      bool const is_gain = tensor.name.find("ln_") != std::string::npos && tensor.name.ends_with("weight");
      REQUIRE(mean == (is_gain ? 1.0 : 0.0));
      REQUIRE(deviation == mean);
    } else {
      double const wanted = tensor.name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(6.0) : 0.02;
      double const error = wanted / std::sqrt(double(tensor.size));  // one standard error of the mean
      REQUIRE(std::abs(mean) < 4 * error);
      REQUIRE(std::abs(deviation - wanted) < 4 * error / std::sqrt(2.0));
    }
  }
}

TEST_CASE("The model refuses what it was not made for", "[examples][gpt]") {
  using Catch::Matchers::ContainsSubstring;
  Fixture<float> fixture;
  REQUIRE_THROWS_WITH((GptModel<Space, float>(fixture.space, fixture.config, fixture.state, 1, 8)),
                      ContainsSubstring("8 tokens") && ContainsSubstring("context is 7"));
  fixture.length = 4;
  REQUIRE_THROWS_WITH(fixture.loss(), ContainsSubstring("15 tokens in sequences of 4"));
  fixture.length = 3;
  REQUIRE_THROWS_WITH(fixture.loss(), ContainsSubstring("3 sequences of 5"));
}

TEST_CASE("The layout has Hugging Face's names and the number of parameters that is promised", "[examples][gpt]") {
  for (std::string const& name : gpt_preset_names()) {
    GptConfig const config = *gpt_preset(name);
    config.check();
    StateLayout const layout = gpt_layout(config);
    std::int64_t elements = 0;
    for (TensorRange const& tensor : layout.tensors()) elements += tensor.size;
    REQUIRE(elements == config.parameters());
  }
  REQUIRE(gpt_preset("gpt2-124M")->parameters() == 124439808);  // as counted in the published model
  REQUIRE(gpt_preset("gpt2-1.5B")->parameters() == 1557611200);
  REQUIRE(gpt_layout(*gpt_preset("gpt2-124M")).find("h.11.mlp.c_fc.weight").shape ==
          std::vector<std::int64_t>{768, 3072});
}
