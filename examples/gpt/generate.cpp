// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Continues a text with a model that train_gpt has saved.

#include <CLI/CLI.hpp>
#include <Kokkos_Core.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_Communicator.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_GptModel.hpp"
#include "Sporos_ProgramArguments.hpp"
#include "Sporos_Sampler.hpp"
#include "Sporos_ShardedState.hpp"
#include "Sporos_TextTokenizer.hpp"

namespace {

using namespace Sporos;
using ExecutionSpace = Kokkos::DefaultExecutionSpace;

template <class T>
void generate(CheckpointReader const& reader, Gpt::GptConfig const& config, Gpt::TextTokenizer const& tokenizer,
              std::string const& prompt, Gpt::SamplingOptions const& options) {
  ExecutionSpace const space;
  ShardedState<ExecutionSpace, T> state(space, Gpt::gpt_layout(config));
  reader.load(state);
  Gpt::GptModel<ExecutionSpace, T> model(space, config, state, 1, config.context);
  std::cout << prompt << tokenizer.decode(Gpt::sample_tokens(space, model, tokenizer.encode(prompt), options))
            << std::endl;
}

void run(Communicator const& communicator, std::string const& directory, std::string const& vocabulary,
         std::string const& merges, std::string const& prompt, Gpt::SamplingOptions const& options) {
  auto const reader = CheckpointReader::newest_valid(communicator, directory, [](std::string const& reason) {
    std::cerr << "generate: checkpoint skipped: " << reason << std::endl;
  });
  SPOROS_THROW_INPUT_ERROR_IF(!reader, "--checkpoint ", directory, " holds no valid checkpoint");
  nlohmann::json const& metadata = reader->metadata();
  SPOROS_THROW_INPUT_ERROR_IF(metadata.value("program", "") != "train_gpt", reader->path(), " is not one of train_gpt");
  std::string const tokenizer = metadata.at("tokenizer");
  SPOROS_THROW_INPUT_ERROR_IF(tokenizer != "byte" && tokenizer != "gpt2", reader->path(),
                              " was trained with --tokenizer ", tokenizer,
                              "; only byte and gpt2 can turn text into tokens and back");
  Gpt::TextTokenizer const text_tokenizer(tokenizer, vocabulary, merges);
  auto const config = metadata.at("model").get<Gpt::GptConfig>();
  std::string const precision = metadata.at("run").at("--precision");
  if (precision == "bf16")
    generate<bfloat16>(*reader, config, text_tokenizer, prompt, options);
  else if (precision == "fp64")
    generate<double>(*reader, config, text_tokenizer, prompt, options);
  else
    generate<float>(*reader, config, text_tokenizer, prompt, options);
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(argc, argv);
  Gpt::ProgramArguments arguments(argc, argv);
  std::string directory, vocabulary, merges, prompt = "\n";
  Gpt::SamplingOptions options;
  CLI::App app("Continues a text with a model that train_gpt has saved.", "generate");
  app.option_defaults()->always_capture_default();
  app.add_option("--checkpoint", directory, "Directory of checkpoints; the newest valid one is taken")->required();
  app.add_option("--prompt", prompt, "What the text starts with");
  app.add_option("--tokenizer-vocabulary", vocabulary, "GPT-2's vocab.json, for models with --tokenizer gpt2");
  app.add_option("--tokenizer-merges", merges, "GPT-2's merges.txt, for models with --tokenizer gpt2");
  app.add_option("--tokens", options.tokens, "How many tokens to add")->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", options.temperature,
                 "0 takes the most probable token, 1 follows the model's probabilities")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-k", options.top_k, "Draw among so many most probable tokens; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "Another seed, another text");
  try {
    app.parse(std::vector<std::string>(arguments.own.rbegin(), arguments.own.rend()));
  } catch (CLI::ParseError const& error) {
    return app.exit(error);
  }
  try {
    Kokkos::ScopeGuard const kokkos(arguments.kokkos_count, arguments.kokkos.data());
    Communicator const communicator = Communicator::world();
    if (communicator.size() > 1 && communicator.rank() != 0) std::cout.setstate(std::ios::failbit);  // all do the same
    run(communicator, directory, vocabulary, merges, prompt, options);
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "generate: " << error.what() << std::endl;
    return 1;
  }
}
