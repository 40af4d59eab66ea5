// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_TrainOptions.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <sstream>
#include <system_error>
#include <toml++/toml.hpp>
#include <type_traits>

#include "Sporos_Error.hpp"
#include "Sporos_Tokenizer.hpp"
#include "Sporos_Version.hpp"

namespace Sporos::Gpt {
namespace {

/// Calls f(name, value, description) for every option.
template <class Options, class Function>
void for_each_option(Options& o, Function&& f) {
  f("--data", o.data,
    "Training data: text, llm.c .bin, nanoGPT .bin or Megatron .idx; a prefix text:, llmc:, nanogpt: or megatron: says "
    "which. "
    "Several sources: 0.7:A,0.3:B");
  f("--validation-data", o.validation_data, "Validation data; without it the end of the training data is kept apart");
  f("--validation-fraction", o.validation_fraction, "The part of --data that is kept for validation");
  f("--tokenizer", o.tokenizer,
    "byte: every byte of a text is a token; gpt2: the data are tokens that `tokenize` has made; none: they are tokens");
  f("--tokenizer-vocabulary", o.tokenizer_vocabulary, "GPT-2's vocab.json, for samples with --tokenizer gpt2");
  f("--tokenizer-merges", o.tokenizer_merges, "GPT-2's merges.txt, for samples with --tokenizer gpt2");
  f("--model", o.model, "Model preset, or custom with the sizes below; a size overrules the preset's");
  f("--vocabulary", o.vocabulary, "Number of token ids");
  f("--layers", o.layers, "Number of blocks");
  f("--heads", o.heads, "Attention heads; divides the width");
  f("--width", o.width, "Width of the residual stream");
  f("--context", o.context, "Number of positions, the longest sequence");
  f("--sequence-length", o.sequence_length, "Tokens of a training sequence; 0: the context");
  f("--batch-tokens", o.batch_tokens, "Tokens of a step, on all ranks together; 0: eight sequences");
  f("--micro-batch", o.micro_batch, "Sequences that a rank computes at once; the rest of its share follows in turn");
  f("--steps", o.steps, "Steps of the whole run, those before a resume included");
  f("--learning-rate", o.learning_rate, "Peak learning rate of AdamW");
  f("--minimum-learning-rate", o.minimum_learning_rate, "Learning rate at the end; negative: a tenth of the peak");
  f("--warmup-steps", o.warmup_steps, "Steps of linear warm-up");
  f("--schedule", o.schedule, "What follows the warm-up: cosine, linear or constant");
  f("--weight-decay", o.weight_decay, "Decoupled weight decay of matrices and tables");
  f("--beta1", o.beta1, "AdamW's decay of the first moment");
  f("--beta2", o.beta2, "AdamW's decay of the second moment");
  f("--clip", o.clip, "Largest global norm of the gradient; 0: none");
  f("--dropout", o.dropout, "Dropout of embedding, attention and residual branches");
  f("--precision", o.precision, "Parameters and activations: fp32, bf16 (with fp32 master weights) or fp64");
  f("--seed", o.seed, "Seed of weights, sample order and dropout");
  f("--evaluate-every", o.evaluate_every, "Validation loss every so many steps; 0: at the end only");
  f("--evaluate-batches", o.evaluate_batches, "Batches of a validation during training; 0: all validation data");
  f("--final-evaluate-batches", o.final_evaluate_batches,
    "Batches of the validation at the end; 0: all validation data");
  f("--sample-every", o.sample_every, "Text from the model every so many steps; 0: none");
  f("--sample-tokens", o.sample_tokens, "Tokens of such a text");
  f("--sample-prompt", o.sample_prompt, "What such a text starts with");
  f("--checkpoint-every", o.checkpoint_every, "Checkpoint every so many steps and at the end; 0: none");
  f("--checkpoint-directory", o.checkpoint_directory, "Where checkpoints are written and looked for");
  f("--keep", o.keep, "Checkpoints to keep");
  f("--resume", o.resume, "auto: from the newest valid checkpoint if there is one; must: or fail; never: start anew");
  f("--log", o.log, "JSON lines: settings, steps, evaluations, checkpoints");
  f("--report", o.report, "The page of curves; empty: none");
  f("--zero", o.zero,
    "What ranks share out instead of each holding it: 1 optimizer state, 2 and gradients, 3 and parameters");
  f("--recompute", o.recompute, "Keep one tensor of a block for the backward pass and compute the others again");
  f("--reproducible", o.reproducible,
    "Sum the gradients of micro-batches in one fixed tree: the same bits on any number of ranks");
  f("--reduce-bucket-mb", o.reduce_bucket_mb, "Size of the pieces in which gradients are summed over ranks, in MB");
  f("--print-bigram-baseline", o.print_bigram_baseline,
    "At the end also the validation loss of a bigram model with add-one smoothing");
}

template <class Value>
std::string text_of(Value const& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    std::string text;
    for (char const c : value) text += c == '\n' ? std::string("\\n") : std::string(1, c);
    return text;
  } else if constexpr (std::is_same_v<Value, bool>) {
    return value ? "yes" : "no";
  } else {
    std::ostringstream text;
    text << value;
    return text.str();
  }
}

/// Reads the file of --config with toml++, which knows line numbers. CLI11 has a reader of its own, which takes many things that are
/// not TOML without a word.
class TomlConfig : public CLI::Config {
 public:
  TomlConfig(CLI::App const& app, std::string const& path) : m_app(app), m_path(path) {}

  std::string to_config(CLI::App const*, bool, bool, std::string) const override { return {}; }

  std::vector<CLI::ConfigItem> from_config(std::istream& stream) const override {
    toml::table table;
    try {
      table = toml::parse(stream, m_path);
    } catch (toml::parse_error const& error) {
      throw InputError(Impl::concatenate(m_path, ":", error.source().begin.line, ": ", error.description()));
    }
    std::vector<CLI::ConfigItem> items;
    for (auto const& [key, node] : table) {
      std::string const name(key.str());
      auto const line = node.source().begin.line;
      SPOROS_THROW_INPUT_ERROR_IF(name == "config" || !m_app.get_option_no_throw("--" + name), m_path, ":", line,
                                  ": unknown option \"", name, "\"; --help lists them");
      SPOROS_THROW_INPUT_ERROR_IF(!node.is_value() || node.is_date() || node.is_time() || node.is_date_time(), m_path,
                                  ":", line, ": option \"", name, "\" is a ", type_name(node.type()),
                                  "; it must be a string, a number or a boolean");
      std::ostringstream value;
      value.precision(17);
      node.visit([&](auto const& typed) {
        if constexpr (toml::is_boolean<decltype(typed)>)
          value << (typed.get() ? "true" : "false");
        else if constexpr (toml::is_string<decltype(typed)> || toml::is_number<decltype(typed)>)
          value << typed.get();
      });
      CLI::ConfigItem item;
      item.name = name;
      item.inputs = {value.str()};
      items.push_back(item);
    }
    return items;
  }

 private:
  static std::string type_name(toml::node_type type) {
    std::ostringstream text;
    text << type;
    return text.str();
  }

  CLI::App const& m_app;
  std::string const& m_path;
};

void resolve_model(TrainOptions& o) {
  std::optional<GptConfig> const preset = gpt_preset(o.model);
  if (o.tokenizer == "byte" && o.vocabulary == 0) o.vocabulary = ByteTokenizer::vocabulary;
  SPOROS_THROW_INPUT_ERROR_IF(o.tokenizer == "byte" && o.vocabulary < ByteTokenizer::vocabulary, "--vocabulary is ",
                              o.vocabulary, "; --tokenizer byte needs ", ByteTokenizer::vocabulary);
  GptConfig sizes = preset.value_or(GptConfig{0, 0, 0, 0, 0});
  struct {
    char const* option;
    std::int64_t& given;
    std::int64_t& size;
  } const pairs[] = {{"--vocabulary", o.vocabulary, sizes.vocabulary},
                     {"--layers", o.layers, sizes.layers},
                     {"--heads", o.heads, sizes.heads},
                     {"--width", o.width, sizes.width},
                     {"--context", o.context, sizes.context}};
  for (auto const& [option, given, size] : pairs) {
    SPOROS_THROW_INPUT_ERROR_IF(given == 0 && size == 0, "--model custom needs ", option);
    if (given != 0) size = given;
    given = size;
  }
  sizes.check();
  o.gpt = sizes;
}

void resolve_batch(TrainOptions& o) {
  if (o.sequence_length == 0) o.sequence_length = o.gpt.context;
  SPOROS_THROW_INPUT_ERROR_IF(o.sequence_length < 1 || o.sequence_length > o.gpt.context, "--sequence-length is ",
                              o.sequence_length, "; it must be between 1 and --context ", o.gpt.context);
  if (o.batch_tokens == 0) o.batch_tokens = 8 * o.sequence_length;
  SPOROS_THROW_INPUT_ERROR_IF(o.batch_tokens < 1 || o.batch_tokens % o.sequence_length != 0, "--batch-tokens is ",
                              o.batch_tokens, "; it must be a multiple of --sequence-length ", o.sequence_length);
  o.global_batch = o.batch_tokens / o.sequence_length;
}

template <class Value>
void require(char const* option, Value value, bool holds, char const* what) {
  SPOROS_THROW_INPUT_ERROR_IF(!holds, option, " is ", value, "; it must be ", what);
}

void check(TrainOptions const& o) {
  SPOROS_THROW_INPUT_ERROR_IF(o.data.empty(), "--data is missing: a text file, or a .bin file of tokens");
  auto const one_of = [](char const* option, std::string const& value, std::vector<std::string> const& choices) {
    std::string list;
    for (auto const& choice : choices) list += (list.empty() ? "" : ", ") + choice;
    SPOROS_THROW_INPUT_ERROR_IF(std::find(choices.begin(), choices.end(), value) == choices.end(), option, " is \"",
                                value, "\"; it must be one of ", list);
  };
  std::vector<std::string> models = gpt_preset_names();
  models.push_back("custom");
  one_of("--model", o.model, models);
  one_of("--tokenizer", o.tokenizer, {"byte", "gpt2", "none"});
  one_of("--schedule", o.schedule, {"cosine", "linear", "constant"});
  one_of("--precision", o.precision, {"fp32", "bf16", "fp64"});
  one_of("--resume", o.resume, {"auto", "must", "never"});

  auto const in_unit = [](double x) { return x >= 0 && x < 1; };
  require("--validation-fraction", o.validation_fraction, in_unit(o.validation_fraction), "at least 0 and below 1");
  require("--dropout", o.dropout, in_unit(o.dropout), "at least 0 and below 1");
  require("--beta1", o.beta1, in_unit(o.beta1), "at least 0 and below 1");
  require("--beta2", o.beta2, in_unit(o.beta2), "at least 0 and below 1");
  require("--micro-batch", o.micro_batch, o.micro_batch >= 1, "at least 1");
  require("--steps", o.steps, o.steps >= 1, "at least 1");
  require("--learning-rate", o.learning_rate, o.learning_rate > 0 && std::isfinite(o.learning_rate), "above 0");
  require("--weight-decay", o.weight_decay, o.weight_decay >= 0 && std::isfinite(o.weight_decay), "at least 0");
  require("--clip", o.clip, o.clip >= 0, "at least 0");
  require("--keep", o.keep, o.keep >= 1 && o.keep <= 1000000, "between 1 and 1000000");
  require("--zero", o.zero, o.zero >= 0 && o.zero <= 3, "between 0 and 3");
  require("--reduce-bucket-mb", o.reduce_bucket_mb, o.reduce_bucket_mb > 0 && o.reduce_bucket_mb <= 1024,
          "above 0 and at most 1024");
  std::pair<char const*, std::int64_t> const counts[] = {
      {"--warmup-steps", o.warmup_steps},         {"--evaluate-every", o.evaluate_every},
      {"--evaluate-batches", o.evaluate_batches}, {"--final-evaluate-batches", o.final_evaluate_batches},
      {"--sample-every", o.sample_every},         {"--sample-tokens", o.sample_tokens},
      {"--checkpoint-every", o.checkpoint_every}, {"--sequence-length", o.sequence_length},
      {"--batch-tokens", o.batch_tokens}};
  for (auto const& [option, value] : counts) require(option, value, value >= 0, "at least 0");
  std::pair<char const*, std::int64_t> const sizes[] = {{"--vocabulary", o.vocabulary},
                                                        {"--layers", o.layers},
                                                        {"--heads", o.heads},
                                                        {"--width", o.width},
                                                        {"--context", o.context}};
  for (auto const& [option, value] : sizes) require(option, value, value >= 0, "at least 1");

  std::size_t const sources = parse_data(o.data).size();
  SPOROS_THROW_INPUT_ERROR_IF(sources > 1 && o.print_bigram_baseline,
                              "--print-bigram-baseline is for one source; --data has ", sources);
  SPOROS_THROW_INPUT_ERROR_IF(o.sample_every > 0 && o.tokenizer == "none", "--sample-every is ", o.sample_every,
                              "; only --tokenizer byte and gpt2 can turn tokens into text, it is ", o.tokenizer);
  SPOROS_THROW_INPUT_ERROR_IF(o.sample_every > 0 && o.sample_prompt.empty(),
                              "--sample-prompt is empty; the first token must come from somewhere");
  SPOROS_THROW_INPUT_ERROR_IF(o.checkpoint_every > 0 && o.checkpoint_directory.empty(), "--checkpoint-every is ",
                              o.checkpoint_every, ", but there is no --checkpoint-directory");
  SPOROS_THROW_INPUT_ERROR_IF(o.resume == "must" && o.checkpoint_directory.empty(),
                              "--resume is must, but there is no --checkpoint-directory");
}

}  // namespace

std::optional<TrainOptions> parse_train_options(std::vector<std::string> const& arguments, std::string& output) {
  TrainOptions options;
  CLI::App app("Trains a GPT-2 on every back end of Kokkos, on as many MPI ranks as the launcher starts.", "train_gpt");
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", std::string("train_gpt of Sporos ") + SPOROS_VERSION_STRING);
  for_each_option(options, [&](char const* name, auto& value, char const* description) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, bool>)
      app.add_flag(name, value, description);
    else
      app.add_option(name, value, description);
  });
  std::string config_path;
  app.set_config("--config", "",
                 "TOML file of these options, names without dashes in front; the command line overrules it");
  app.get_option("--config")->each([&](std::string const& path) { config_path = path; });
  app.config_formatter(std::make_shared<TomlConfig>(app, config_path));
  app.footer("Under mpirun or srun every rank runs the same command. Options --kokkos-… go to Kokkos.");

  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (CLI::CallForHelp const&) {
    output = app.help();
    return std::nullopt;
  } catch (CLI::CallForVersion const&) {
    output = app.version() + "\n";
    return std::nullopt;
  } catch (CLI::ParseError const& error) {
    throw InputError(Impl::concatenate(error.what(), " (--help lists the options)"));
  }
  if (options.minimum_learning_rate < 0) options.minimum_learning_rate = options.learning_rate / 10;
  check(options);
  resolve_model(options);
  resolve_batch(options);
  return options;
}

std::vector<std::pair<std::string, std::string>> TrainOptions::table() const {
  std::vector<std::pair<std::string, std::string>> rows;
  for_each_option(*this,
                  [&](char const* name, auto const& value, char const*) { rows.emplace_back(name, text_of(value)); });
  return rows;
}

std::vector<DataSpec> parse_data(std::string const& text) {
  std::error_code ignored;
  std::vector<DataSpec> result;
  bool const is_one_file = std::filesystem::exists(text, ignored);
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t const end = is_one_file ? text.size() : std::min(text.find(',', begin), text.size());
    DataSpec one{1, text.substr(begin, end - begin)};
    begin = end + 1;
    if (std::size_t const colon = one.spec.find(':'); colon != std::string::npos) {
      double weight = 0;
      auto const [rest, error] = std::from_chars(one.spec.data(), one.spec.data() + colon, weight);
      if (error == std::errc() && rest == one.spec.data() + colon) {
        SPOROS_THROW_INPUT_ERROR_IF(!(weight > 0 && std::isfinite(weight)), "--data: the weight of ", one.spec, " is ",
                                    weight, "; it must be above 0");
        one = {weight, one.spec.substr(colon + 1)};
      }
    }
    SPOROS_THROW_INPUT_ERROR_IF(one.spec.empty(), "--data: a source of \"", text, "\" has no name");
    result.push_back(one);
  }
  return result;
}

double learning_rate(TrainOptions const& o, std::int64_t step) {
  if (step < o.warmup_steps) return o.learning_rate * double(step + 1) / double(o.warmup_steps);
  if (o.schedule == "constant") return o.learning_rate;
  std::int64_t const decay_steps = std::max<std::int64_t>(o.steps - 1 - o.warmup_steps, 1);
  double const progress = std::min(double(step - o.warmup_steps) / double(decay_steps), 1.0);
  double const left = o.schedule == "linear" ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return o.minimum_learning_rate + (o.learning_rate - o.minimum_learning_rate) * left;
}

}  // namespace Sporos::Gpt
