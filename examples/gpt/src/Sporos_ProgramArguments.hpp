// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_PROGRAMARGUMENTS_HPP
#define SPOROS_PROGRAMARGUMENTS_HPP

#include <string>
#include <string_view>
#include <vector>

namespace Sporos::Gpt {

/// A command line, divided into the program's own arguments and those for Kokkos. Given all of them, Kokkos would answer
/// --help too, with a page of its own.
struct ProgramArguments {
  std::vector<std::string> own;  ///< without the program's name
  std::vector<char*> kokkos;     ///< with it; as Kokkos::initialize takes them
  int kokkos_count;

  ProgramArguments(int argc, char** argv) : kokkos{argv[0]} {
    for (int i = 1; i < argc; ++i) {
      if (std::string_view(argv[i]).starts_with("--kokkos-"))
        kokkos.push_back(argv[i]);
      else
        own.push_back(argv[i]);
    }
    kokkos_count = int(kokkos.size());
    kokkos.push_back(nullptr);
  }
};

}  // namespace Sporos::Gpt

#endif
