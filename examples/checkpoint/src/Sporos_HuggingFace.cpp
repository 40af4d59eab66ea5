// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_HuggingFace.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_CheckpointFile.hpp"
#include "Sporos_ElementConversion.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_GptConfig.hpp"
#include "Sporos_Safetensors.hpp"
#include "Sporos_ShardedState.hpp"
#include "Sporos_Version.hpp"
#include "impl/Sporos_Files.hpp"

namespace Sporos::Tool {
namespace {

using namespace Impl;
using Gpt::GptConfig;

constexpr double norm_epsilon = 1e-5;

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) return value;
  if constexpr (std::is_same_v<To, double>) return double(value);
  return To(float(value));
}

template <class To, class From>
void convert_elements(std::byte const* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    To const value = convert<To>(load_element<From>(from + i * sizeof(From)));
    std::memcpy(to + i * sizeof(To), &value, sizeof(To));
  }
}

/// Calls function(T()) for the storage type of this name in a safetensors file.
template <class Function>
auto with_type(std::string const& name, Function const& function) {
  if (name == safetensors_type<double>()) return function(double());
  if (name == safetensors_type<float>()) return function(float());
  if (name == safetensors_type<float16>()) return function(float16());
  if (name == safetensors_type<bfloat16>()) return function(bfloat16());
  throw InputError("elements of type " + name + " are no weights; F64, F32, F16 and BF16 are");
}

std::vector<std::byte> converted(std::vector<std::byte> const& bytes, std::string const& from, std::string const& to) {
  if (from == to) return bytes;
  return with_type(from, [&](auto source) {
    return with_type(to, [&](auto target) {
      std::size_t const count = bytes.size() / sizeof(source);
      std::vector<std::byte> result(count * sizeof(target));
      convert_elements<decltype(target), decltype(source)>(bytes.data(), result.data(), count);
      return result;
    });
  });
}

std::string type_name(ElementType type) {
  return type == ElementType::bfloat16  ? safetensors_type<bfloat16>()
         : type == ElementType::float32 ? safetensors_type<float>()
                                        : safetensors_type<double>();
}

std::string type_name(std::string const& precision) {
  if (precision == "fp64") return safetensors_type<double>();
  if (precision == "fp32") return safetensors_type<float>();
  if (precision == "fp16") return safetensors_type<float16>();
  if (precision == "bf16") return safetensors_type<bfloat16>();
  throw InputError("there is no precision \"" + precision + "\"; fp32, bf16, fp16 and fp64 are");
}

nlohmann::json config_json(GptConfig const& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", norm_epsilon},
          {"n_ctx", config.context},
          {"n_embd", config.width},
          {"n_head", config.heads},
          {"n_layer", config.layers},
          {"n_positions", config.context},
          {"tie_word_embeddings", true},
          {"vocab_size", config.vocabulary}};
}

/// The same weights in a model that computes something else would train on without a word.
void require_same_function(nlohmann::json const& config, std::string const& path) {
  auto const require = [&](char const* key, nlohmann::json const& wanted) {
    if (auto const found = config.value(key, wanted); found != wanted)
      throw InputError(concatenate(path, ": ", key, " is ", found.dump(), "; only ", wanted.dump(), " is supported"));
  };
  require("model_type", "gpt2");
  std::string const activation = config.value("activation_function", "gelu_new");
  SPOROS_THROW_INPUT_ERROR_IF(activation != "gelu_new" && activation != "gelu_pytorch_tanh", path,
                              ": activation_function is ", activation, "; only gelu_new is supported");
  double const epsilon = config.value("layer_norm_epsilon", norm_epsilon);
  SPOROS_THROW_INPUT_ERROR_IF(std::abs(epsilon - norm_epsilon) > 1e-9, path, ": layer_norm_epsilon is ", epsilon,
                              "; only ", norm_epsilon, " is supported");
  require("scale_attn_weights", true);
  require("scale_attn_by_inverse_layer_idx", false);
  require("add_cross_attention", false);
  require("tie_word_embeddings", true);
  if (auto const inner = config.find("n_inner"); inner != config.end() && !inner->is_null())
    require("n_inner", 4 * config.at("n_embd").get<std::int64_t>());
}

GptConfig read_config(std::string const& path) {
  try {
    auto const json = nlohmann::json::parse(read_file(path));
    require_same_function(json, path);
    std::int64_t const context = json.contains("n_positions") ? json.at("n_positions") : json.at("n_ctx");
    return {json.at("vocab_size"), context, json.at("n_layer"), json.at("n_head"), json.at("n_embd")};
  } catch (nlohmann::json::exception const& error) {
    throw InputError(path + ": " + error.what());
  }
}

/// The tensors of a model under our names
using Named = std::map<std::string, std::pair<SafetensorsFile const*, std::string>>;

Named rename(SafetensorsModel const& model) {
  Named result;
  std::string const prefix = "transformer.";
  for (auto const& [name, file] : model.tensors()) {
    std::string const ours = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    // Masks, not weights; older versions of Hugging Face's library stored them.
    if (ours.ends_with(".attn.bias") || ours.ends_with(".attn.masked_bias")) continue;
    auto const [place, is_new] = result.try_emplace(ours, file, name);
    SPOROS_THROW_INPUT_ERROR_IF(!is_new, file->path(), " holds \"", name, "\", which is the same tensor as \"",
                                place->second.second, "\"");
  }
  return result;
}

/// What the shapes of the tensors say about a model without config.json
GptConfig config_of_shapes(Named const& tensors, std::string const& directory, std::int64_t heads) {
  SPOROS_THROW_INPUT_ERROR_IF(heads == 0, directory,
                              " has no config.json, and the number of heads is in no tensor: --heads is needed");
  auto const shape = [&](char const* name) {
    auto const found = tensors.find(name);
    SPOROS_THROW_INPUT_ERROR_IF(found == tensors.end(), directory, " has no tensor ", name);
    auto const& [file, theirs] = found->second;
    auto const& extents = file->find(theirs).shape;
    SPOROS_THROW_INPUT_ERROR_IF(extents.size() != 2, file->path(), " has ", name, " of shape ", shape_text(extents),
                                "; two dimensions are needed");
    return extents;
  };
  auto const tokens = shape("wte.weight"), positions = shape("wpe.weight");
  std::int64_t layers = 0;
  while (tensors.count("h." + std::to_string(layers) + ".ln_1.weight")) ++layers;
  return {tokens[0], positions[0], layers, heads, tokens[1]};
}

std::vector<std::byte> read_tensor(std::pair<SafetensorsFile const*, std::string> const& place) {
  std::vector<std::byte> bytes(std::size_t(place.first->find(place.second).bytes));
  place.first->read_bytes(place.second, bytes.data());
  return bytes;
}

void require_tied_output(Named& tensors) {
  auto const head = tensors.find("lm_head.weight");
  if (head == tensors.end()) return;
  auto const table = tensors.find("wte.weight");
  SPOROS_THROW_INPUT_ERROR_IF(
      table != tensors.end() && read_tensor(head->second) != read_tensor(table->second), head->second.first->path(),
      " has another lm_head.weight than wte.weight; only models whose output layer is the token table are supported");
  tensors.erase(head);
}

void require_tensors(Named const& tensors, StateLayout const& layout, std::string const& path) {
  std::map<std::string, std::string> wanted;
  for (TensorRange const& tensor : layout.tensors()) wanted[tensor.name] = shape_text(tensor.shape);
  std::string text;
  for (auto const& [name, shape] : wanted) {
    auto const found = tensors.find(name);
    if (found == tensors.end()) {
      text += "\n  " + name + " is missing; it should be " + shape;
      continue;
    }
    std::string const theirs = shape_text(found->second.first->find(found->second.second).shape);
    if (theirs != shape) text += "\n  " + name + " is " + theirs + " and should be " + shape;
  }
  for (auto const& [name, place] : tensors)
    if (!wanted.count(name)) text += "\n  " + name + " is unknown";
  SPOROS_THROW_INPUT_ERROR_IF(!text.empty(), path, " does not hold a GPT-2 of these sizes:", text);
}

using Space = Kokkos::DefaultHostExecutionSpace;

template <class T>
void save_weights(Communicator const& communicator, Named const& tensors, StateLayout const& layout,
                  nlohmann::json const& metadata, std::string const& directory) {
  using Compute = ComputeType<T>;
  Space const space;
  ShardedState<Space, T> state(space, layout);
  space.fence();
  communicator.run_agreed([&] {
    for (TensorRange const& tensor : layout.tensors()) {
      auto const& place = tensors.at(tensor.name);
      std::string const& type = place.first->find(place.second).type;
      auto const bytes = read_tensor(place);
      auto const fill = [&](auto const& flat) {
        using Element = typename std::decay_t<decltype(flat)>::value_type;
        auto const elements = converted(bytes, type, safetensors_type<Element>());
        std::memcpy(flat.data() + tensor.offset, elements.data(), elements.size());
      };
      fill(state.parameters());
      if constexpr (!std::is_same_v<T, Compute>) fill(state.master());
    }
  });
  CheckpointWriter writer(communicator, {.directory = directory, .keep = 0});
  writer.save(state, metadata, 0);
  writer.wait();
}

}  // namespace

void export_model(std::string const& checkpoint, std::string const& directory, ExportOptions const& options) {
  CheckpointFile const file = open_checkpoint(checkpoint);
  CheckpointManifest const& manifest = file.manifest();
  auto const array = file.find_array(options.array);
  SPOROS_THROW_INPUT_ERROR_IF(!array, file.path(), " holds no array \"", options.array, "\"");
  std::string const stored = type_name(manifest.arrays[*array].type);
  std::string const type = options.type == "stored" ? stored : type_name(options.type);

  std::vector<SafetensorsTensor> tensors;
  for (std::size_t t = 0; t < manifest.layout.tensors().size(); ++t) {
    TensorRange const& tensor = manifest.layout.tensors()[t];
    tensors.emplace_back(tensor.name, type, tensor.shape,
                         [&file, array, t, stored, type] { return converted(file.read(*array, t), stored, type); });
  }
  // Hugging Face's library refuses files that do not say for which program the tensors are.
  write_safetensors_model(directory, tensors, options.shard_bytes, {{"format", "pt"}});
  if (manifest.metadata.is_object() && manifest.metadata.contains("model"))
    replace_file(directory + "/config.json", config_json(manifest.metadata["model"].get<GptConfig>()).dump(2) + "\n");
}

void import_model(Communicator const& communicator, std::string const& path, std::string const& directory,
                  ImportOptions const& options) {
  std::optional<SafetensorsModel> model;
  Named tensors;
  GptConfig config;
  communicator.run_agreed([&] {
    model.emplace(path);
    tensors = rename(*model);
    std::string const config_path = model->directory() + "/config.json";
    config = std::filesystem::exists(config_path) ? read_config(config_path)
                                                  : config_of_shapes(tensors, model->directory(), options.heads);
    if (options.heads != 0) config.heads = options.heads;
    config.check();
    require_tied_output(tensors);
    require_tensors(tensors, Gpt::gpt_layout(config), path);
    SPOROS_THROW_INPUT_ERROR_IF(
        !std::filesystem::is_directory(directory) ? false : !list_checkpoints(directory).empty(), directory,
        " holds checkpoints already");
  });
  nlohmann::json const metadata = {{"program", "train_gpt"}, {"version", SPOROS_VERSION_STRING},
                                   {"model", config},        {"tokenizer", options.tokenizer},
                                   {"imported", path},       {"run", {{"--precision", options.precision}}}};
  StateLayout const layout = Gpt::gpt_layout(config);
  if (options.precision == "bf16")
    save_weights<bfloat16>(communicator, tensors, layout, metadata, directory);
  else if (options.precision == "fp64")
    save_weights<double>(communicator, tensors, layout, metadata, directory);
  else
    save_weights<float>(communicator, tensors, layout, metadata, directory);
}

}  // namespace Sporos::Tool
