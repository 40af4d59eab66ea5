// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_GptConfig.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "Sporos_Error.hpp"

namespace Sporos::Gpt {
namespace {

std::vector<std::pair<std::string, GptConfig>> const& presets() {
  static std::vector<std::pair<std::string, GptConfig>> const table = {{"gpt2-124M", {50257, 1024, 12, 12, 768}},
                                                                       {"gpt2-350M", {50257, 1024, 24, 16, 1024}},
                                                                       {"gpt2-774M", {50257, 1024, 36, 20, 1280}},
                                                                       {"gpt2-1.5B", {50257, 1024, 48, 25, 1600}}};
  return table;
}

}  // namespace

std::int64_t GptConfig::parameters() const {
  std::int64_t const block = 12 * width * width + 13 * width;  // four matrices, their biases, two norms
  return (vocabulary + context) * width + layers * block + 2 * width;
}

double GptConfig::flops_per_token(std::int64_t sequence_length) const {
  double const matrices = double(layers) * 12 * double(width) * double(width) + double(vocabulary) * double(width);
  double const attention = double(layers) * double(width) * double(sequence_length);  // QKᵀ and PV, half of them masked
  return 6 * (matrices + attention);
}

void GptConfig::check() const {
  std::pair<char const*, std::int64_t> const sizes[] = {{"--vocabulary", vocabulary},
                                                        {"--context", context},
                                                        {"--layers", layers},
                                                        {"--heads", heads},
                                                        {"--width", width}};
  for (auto const& [option, value] : sizes)
    SPOROS_THROW_INPUT_ERROR_IF(value < 1, option, " is ", value, "; it must be at least 1");
  SPOROS_THROW_INPUT_ERROR_IF(vocabulary > 0x7fffffff, "--vocabulary is ", vocabulary, "; token ids have 31 bits");
  SPOROS_THROW_INPUT_ERROR_IF(width % heads != 0, "--width ", width, " is not a multiple of --heads ", heads);
  SPOROS_THROW_INPUT_ERROR_IF(head_dim() % 8 != 0 || head_dim() > 256, "--width ", width, " over --heads ", heads,
                              " gives a head of ", head_dim(), "; it must be a multiple of 8 and at most 256");
}

std::vector<std::string> const& gpt_preset_names() {
  static std::vector<std::string> const names = [] {
    std::vector<std::string> list;
    for (auto const& preset : presets()) list.push_back(preset.first);
    return list;
  }();
  return names;
}

std::optional<GptConfig> gpt_preset(std::string const& name) {
  for (auto const& [preset, config] : presets())
    if (preset == name) return config;
  return std::nullopt;
}

void to_json(nlohmann::json& json, GptConfig const& config) {
  json = {{"vocabulary", config.vocabulary},
          {"context", config.context},
          {"layers", config.layers},
          {"heads", config.heads},
          {"width", config.width}};
}

void from_json(nlohmann::json const& json, GptConfig& config) {
  json.at("vocabulary").get_to(config.vocabulary);
  json.at("context").get_to(config.context);
  json.at("layers").get_to(config.layers);
  json.at("heads").get_to(config.heads);
  json.at("width").get_to(config.width);
}

StateLayout gpt_layout(GptConfig const& config) {
  StateLayout layout;
  std::int64_t const width = config.width;
  auto const norm = [&](std::string const& name) {
    layout.add(name + ".weight", {width}, false);
    layout.add(name + ".bias", {width}, false);
  };
  auto const linear = [&](std::string const& name, std::int64_t in, std::int64_t out) {
    layout.add(name + ".weight", {in, out}, true);
    layout.add(name + ".bias", {out}, false);
  };
  layout.add("wte.weight", {config.vocabulary, width}, true);
  layout.add("wpe.weight", {config.context, width}, true);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    layout.begin_unit();
    std::string const block = "h." + std::to_string(l);
    norm(block + ".ln_1");
    linear(block + ".attn.c_attn", width, 3 * width);
    linear(block + ".attn.c_proj", width, width);
    norm(block + ".ln_2");
    linear(block + ".mlp.c_fc", width, 4 * width);
    linear(block + ".mlp.c_proj", 4 * width, width);
  }
  layout.begin_unit();
  norm("ln_f");
  return layout;
}

}  // namespace Sporos::Gpt
