// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// export_pass fp32|bf16 FILE: one forward and backward pass of a small GPT-2, with everything that another program needs to repeat
// it, as a safetensors file. compare_with_pytorch.py is that program.

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "Sporos_GptModel.hpp"
#include "Sporos_Random.hpp"

namespace {

using namespace Sporos;
using namespace Sporos::Gpt;
using Space = Kokkos::DefaultExecutionSpace;

/// The file format is a length, a JSON header and the data one after another, so this is all it takes to write one.
class Writer {
 public:
  template <class View>
  void add(std::string const& name, std::vector<std::int64_t> const& shape, View const& view) {
    using Element = typename View::non_const_value_type;
    auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    std::size_t const b = m_data.size();
    m_data.append(reinterpret_cast<char const*>(host.data()), host.size() * sizeof(Element));
    char const* const type = std::is_same_v<Element, double>  ? "F64"
                             : std::is_same_v<Element, float> ? "F32"
                             : std::is_same_v<Element, int>   ? "I32"
                                                              : "BF16";
    m_header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {b, m_data.size()}}};
  }
  bool write(std::string const& path) const {
    std::string text = m_header.dump();
    text.append(7 - (text.size() + 7) % 8, ' ');
    std::uint64_t const size = text.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<char const*>(&size), sizeof size) << text << m_data;
    file.close();
    return bool(file);
  }

 private:
  nlohmann::json m_header;
  std::string m_data;
};

template <class T>
bool export_pass(std::string const& path) {
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
  Kokkos::View<double*, Kokkos::HostSpace> const loss("loss", 1);
  Kokkos::deep_copy(loss, Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), sum)());
  loss(0) *= scale;

  Writer writer;
  for (TensorRange const& tensor : state.layout().tensors()) {
    auto const range = Kokkos::pair<std::int64_t, std::int64_t>(tensor.offset, tensor.offset + tensor.size);
    writer.add(tensor.name, tensor.shape, Kokkos::subview(state.parameters(), range));
    writer.add("grad." + tensor.name, tensor.shape, Kokkos::subview(state.gradients(), range));
  }
  writer.add("inputs", {sequences, length}, inputs);
  writer.add("targets", {sequences, length}, targets);
  writer.add("loss", {1}, loss);
  return writer.write(path);
}

}  // namespace

int main(int argc, char** argv) {
  Kokkos::ScopeGuard const kokkos(argc, argv);
  std::string const precision = argc == 3 ? argv[1] : "";
  if (precision != "fp32" && precision != "bf16") {
    std::cerr << "usage: export_pass fp32|bf16 FILE\n";
    return 2;
  }
  bool const written = precision == "fp32" ? export_pass<float>(argv[2]) : export_pass<bfloat16>(argv[2]);
  if (!written) std::cerr << "export_pass: cannot write " << argv[2] << "\n";
  return written ? 0 : 1;
}
