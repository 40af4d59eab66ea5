// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// export_pass fp32|bf16 FILE: one forward and backward pass of a small GPT-2, with everything that another program needs to repeat
// it, as a safetensors file. compare_with_pytorch.py is that program.

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "Sporos_GptModel.hpp"
#include "Sporos_Random.hpp"
#include "Sporos_Safetensors.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Gpt;
using Space = Kokkos::DefaultExecutionSpace;

template <class T>
void export_pass(std::string const& path) {
  using Tokens = Kokkos::View<int*, Space::memory_space>;
  GptConfig const config{97, 24, 2, 4, 64};
  std::int64_t const sequences = 3, length = 20;
  Space const space;
  ShardedState<Space, T> state(space, gpt_layout(config));
  initialise_gpt(space, config, 1, state);

  // Weights as after some training: larger, norms and biases off their first values.
  auto const weights = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.parameters());
  RandomStream const random(2, 0);
  for (TensorRange const& tensor : state.layout().tensors())
    for (auto i = std::size_t(tensor.offset); i < std::size_t(tensor.offset + tensor.size); ++i)
      weights(i) = T(ComputeType<T>(double(weights(i)) + 0.2 * (random.uniform(i) - 0.5)));
  Kokkos::deep_copy(state.parameters(), weights);

  Tokens const inputs("inputs", std::size_t(sequences * length)), targets("targets", std::size_t(sequences * length));
  auto const inputs_host = Kokkos::create_mirror_view(inputs), targets_host = Kokkos::create_mirror_view(targets);
  RandomStream const words(3, 0);
  for (std::size_t i = 0; i < inputs.extent(0); ++i) {
    inputs_host(i) = int(words.bits(2 * i) % unsigned(config.vocabulary));
    targets_host(i) = int(words.bits(2 * i + 1) % unsigned(config.vocabulary));
  }
  Kokkos::deep_copy(inputs, inputs_host);
  Kokkos::deep_copy(targets, targets_host);

  GptModel<Space, T> model(space, config, state, sequences, length);
  Kokkos::View<double, Space::memory_space> const sum("loss");
  double const scale = 1 / double(sequences * length);
  model.loss_and_gradients(inputs, targets, length, scale, {}, sum);
  space.fence();
  double loss;
  Kokkos::deep_copy(loss, sum);
  loss *= scale;

  auto const parameters = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.parameters());
  auto const gradients = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.gradients());
  std::vector<SafetensorsTensor> tensors = {{"inputs", {sequences, length}, inputs_host.data()},
                                            {"targets", {sequences, length}, targets_host.data()},
                                            {"loss", {1}, &loss}};
  for (TensorRange const& tensor : state.layout().tensors()) {
    tensors.emplace_back(tensor.name, tensor.shape, parameters.data() + tensor.offset);
    tensors.emplace_back("grad." + tensor.name, tensor.shape, gradients.data() + tensor.offset);
  }
  write_safetensors(path, tensors);
}

}  // namespace

int main(int argc, char** argv) {
  Kokkos::ScopeGuard const kokkos(argc, argv);
  std::string const precision = argc == 3 ? argv[1] : "";
  if (precision != "fp32" && precision != "bf16") {
    std::cerr << "usage: export_pass fp32|bf16 FILE\n";
    return 2;
  }
  try {
    precision == "fp32" ? export_pass<float>(argv[2]) : export_pass<bfloat16>(argv[2]);
  } catch (std::exception const& error) {
    std::cerr << "export_pass: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
