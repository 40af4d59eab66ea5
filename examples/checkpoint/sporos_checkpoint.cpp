// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// sporos-checkpoint: looks at checkpoints, and turns them into safetensors and back. Everything it does is in src/.

#include <CLI/CLI.hpp>
#include <Kokkos_Core.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "Sporos_CheckpointCommands.hpp"
#include "Sporos_Communicator.hpp"
#include "Sporos_HuggingFace.hpp"
#include "Sporos_ProgramArguments.hpp"
#include "Sporos_Version.hpp"

namespace {

using namespace Sporos;

// What looks at a checkpoint runs without MPI: it must work where no launcher is.
int import_on_all_ranks(int argc, char** argv, Gpt::ProgramArguments& arguments, std::string const& model,
                        std::string const& directory, Tool::ImportOptions const& options) {
  MpiEnvironment const mpi(argc, argv);
  Kokkos::ScopeGuard const kokkos(arguments.kokkos_count, arguments.kokkos.data());
  Communicator const communicator = Communicator::world();
  try {
    Tool::import_model(communicator, model, directory, options);
    return 0;
  } catch (AgreedError const& error) {
    if (communicator.rank() == 0) std::cerr << "sporos-checkpoint: " << error.what() << std::endl;
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Gpt::ProgramArguments arguments(argc, argv);
  CLI::App app("Looks at the checkpoints of Sporos, and turns them into safetensors and back.", "sporos-checkpoint");
  app.set_version_flag("--version", std::string("sporos-checkpoint of Sporos ") + SPOROS_VERSION_STRING);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  app.footer(
      "PATH is a checkpoint, or a directory of checkpoints. Exit codes: 0 all is well; 1 damaged (verify) or different "
      "(diff); 2 the command could not be done.");
  std::string path, other;
  std::vector<std::string> paths;
  Tool::ExportOptions export_options;
  Tool::ImportOptions import_options;

  CLI::App& list = *app.add_subcommand("ls", "Lists the checkpoints of a directory, or metadata and tensors of one");
  list.add_option("PATH", path)->required();

  CLI::App& verify = *app.add_subcommand("verify", "Reads every byte and compares the CRCs");
  verify.add_option("PATH", paths)->required();

  CLI::App& diff =
      *app.add_subcommand("diff", "Says what differs between two checkpoints (of directories: the newest)");
  diff.add_option("A", path)->required();
  diff.add_option("B", other)->required();

  CLI::App& exporting =
      *app.add_subcommand("export", "Writes safetensors and config.json as Hugging Face's GPT-2 has them");
  exporting.add_option("PATH", path, "Checkpoint; of a directory the newest")->required();
  exporting.add_option("DIRECTORY", other, "Where the model goes; must not hold one")->required();
  exporting.add_option("--array", export_options.array, "parameters, master, first_moment or second_moment");
  exporting.add_option("--type", export_options.type, "stored, fp32, bf16, fp16 or fp64");
  exporting.add_option("--shard-bytes", export_options.shard_bytes, "Largest file; more tensors go into the next one")
      ->check(CLI::PositiveNumber);

  CLI::App& importing = *app.add_subcommand("import", "Makes a checkpoint of step 0 from Hugging Face's GPT-2");
  importing.add_option("MODEL", path, "A .safetensors file, an index, or a directory with one of them")->required();
  importing.add_option("DIRECTORY", other, "Directory of checkpoints; must not hold any")->required();
  importing.add_option("--precision", import_options.precision, "fp32, bf16 or fp64, as train_gpt will be told")
      ->check(CLI::IsMember({"fp32", "bf16", "fp64"}));
  importing.add_option("--tokenizer", import_options.tokenizer, "What the tokens are, as train_gpt will be told")
      ->check(CLI::IsMember({"none", "byte", "gpt2"}));
  importing.add_option("--heads", import_options.heads, "Where there is no config.json")->check(CLI::PositiveNumber);

  try {
    app.parse(std::vector<std::string>(arguments.own.rbegin(), arguments.own.rend()));
  } catch (CLI::ParseError const& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (list) return Tool::list(path, std::cout);
    if (verify) return Tool::verify(paths, std::cout);
    if (diff) return Tool::diff(path, other, std::cout);
    if (exporting) {
      Tool::export_model(path, other, export_options);
      return 0;
    }
    return import_on_all_ranks(argc, argv, arguments, path, other, import_options);
  } catch (std::exception const& error) {
    std::cerr << "sporos-checkpoint: " << error.what() << std::endl;
    return 2;
  }
}
