// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_GPTCONFIG_HPP
#define SPOROS_GPTCONFIG_HPP

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "Sporos_StateLayout.hpp"

namespace Sporos::Gpt {

/// The sizes of a GPT-2: layer norm before each part, learned positions, the output layer is the transposed token table
struct GptConfig {
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;  ///< positions, the longest sequence
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t width = 768;

  std::int64_t head_dim() const { return width / heads; }
  std::int64_t parameters() const;
  /// Multiplications and additions of a forward and backward pass, attention counted as causal
  double flops_per_token(std::int64_t sequence_length) const;

  /// Throws InputError that names the option and both values.
  void check() const;

  bool operator==(GptConfig const&) const = default;
};

/// "gpt2-124M", "gpt2-350M", "gpt2-774M", "gpt2-1.5B"
std::vector<std::string> const& gpt_preset_names();
std::optional<GptConfig> gpt_preset(std::string const& name);

void to_json(nlohmann::json& json, GptConfig const& config);
void from_json(nlohmann::json const& json, GptConfig& config);

/// The parameters under Hugging Face's names, matrices as (in, out), in the order in which a forward pass meets them: the
/// backward pass then finishes the flat gradient buffer from its end. The tables, each block and the last norm are units.
/// Matrices and tables decay, vectors do not.
StateLayout gpt_layout(GptConfig const& config);

}  // namespace Sporos::Gpt

#endif
