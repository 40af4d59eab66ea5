// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Trains a GPT-2. Everything it does is in src/; train_gpt --help lists the options.
// Exit codes: 0 the run is over; 75 it was stopped by a signal, or its file system hangs: start it again; else an error.

#include <Kokkos_Core.hpp>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_ProgramArguments.hpp"
#include "Sporos_TrainOptions.hpp"
#include "Sporos_Trainer.hpp"

namespace {

constexpr int try_again = 75;  // EX_TEMPFAIL of sysexits.h

/// Ranks with other options would train on different things, or wait for each other for ever.
void require_same_arguments(Sporos::Communicator const& communicator, std::vector<std::string> const& arguments) {
  std::string mine;
  for (std::string const& argument : arguments) mine += argument + "\n";
  std::string of_root = mine;
  communicator.broadcast(of_root);
  communicator.run_agreed([&] {
    if (mine == of_root) return;
    std::string different = "one is missing";
    std::istringstream root(of_root);
    for (std::string const& argument : arguments)
      if (std::string other; !std::getline(root, other) || other != argument) {
        different = "\"" + argument + "\" is \"" + other + "\" there";
        break;
      }
    throw Sporos::InputError("this rank was started with other arguments than rank 0: " + different);
  });
}

/// All ranks read the same command line; where it is wrong on all, rank 0's text needs no rank.
std::optional<Sporos::Gpt::TrainOptions> parse(Sporos::Communicator const& communicator,
                                               std::vector<std::string> const& arguments) {
  std::optional<Sporos::Gpt::TrainOptions> options;
  std::string output, error;
  try {
    options = Sporos::Gpt::parse_train_options(arguments, output);
  } catch (std::exception const& exception) {
    error = exception.what();
  }
  std::string text_of_root = error;
  communicator.broadcast(text_of_root);
  if (!text_of_root.empty()) throw Sporos::AgreedError(text_of_root);
  communicator.agree_no_error(error);
  if (communicator.rank() == 0) std::cout << output << std::flush;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  Sporos::MpiEnvironment mpi(argc, argv);
  Sporos::Gpt::ProgramArguments arguments(argc, argv);
  try {
    Sporos::Communicator const communicator = Sporos::Communicator::world();
    require_same_arguments(communicator, arguments.own);
    auto const options = parse(communicator, arguments.own);
    if (!options) return 0;
    Kokkos::ScopeGuard const kokkos(arguments.kokkos_count, arguments.kokkos.data());
    return Sporos::Gpt::train(communicator, *options) ? 0 : try_again;
  } catch (Sporos::AgreedError const& error) {
    if (Sporos::Communicator::world().rank() == 0) std::cerr << "train_gpt: " << error.what() << std::endl;
  } catch (std::exception const& error) {
    std::cerr << "train_gpt: (rank " << Sporos::Communicator::world().rank() << ") " << error.what() << std::endl;
    Sporos::MpiEnvironment::abort(1);
  }
  return 1;
}
