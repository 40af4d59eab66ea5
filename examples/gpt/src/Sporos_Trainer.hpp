// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TRAINER_HPP
#define SPOROS_TRAINER_HPP

#include "Sporos_Communicator.hpp"
#include "Sporos_TrainOptions.hpp"

namespace Sporos::Gpt {

/// Trains as the options say, on all ranks of the communicator, in the default execution space. Rank 0 reports on the standard
/// output, in the log and in the report.
///
/// With checkpoints, SIGTERM or SIGUSR1 to any rank lets all of them end the step, save, and return.
///
/// \returns whether the run is over; false where a signal has stopped it and it can be resumed.
/// \throws AgreedError on all ranks for whatever is wrong with the input: data, checkpoint, directories. Any other error while it
///         trains is one rank's own and ends all ranks at once, with its text and a non-zero exit code.
bool train(Communicator const& communicator, TrainOptions const& options);

}  // namespace Sporos::Gpt

#endif
