// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_CHECKPOINTCOMMANDS_HPP
#define SPOROS_CHECKPOINTCOMMANDS_HPP

#include <iosfwd>
#include <string>
#include <vector>

// The commands of sporos-checkpoint that only read. Each returns the program's exit code.

namespace Sporos::Tool {

/// A line for every checkpoint in a directory; of one checkpoint its metadata and tensors
int list(std::string const& path, std::ostream& out);

/// Reads every byte of the checkpoints and compares the CRCs. 1 if any is not whole
int verify(std::vector<std::string> const& paths, std::ostream& out);

/// What differs between two checkpoints: step, metadata, tensors, types, values. 0 if nothing does, 1 if anything does
int diff(std::string const& path_a, std::string const& path_b, std::ostream& out);

}  // namespace Sporos::Tool

#endif
