// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_STOPSIGNALS_HPP
#define SPOROS_STOPSIGNALS_HPP

#include <csignal>

namespace Sporos::Gpt {

/// What a batch system sends before the time is over. While an object lives, SIGTERM and SIGUSR1 do not end the process but
/// are noted. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(StopSignals const&) = delete;
  StopSignals& operator=(StopSignals const&) = delete;

  /// The number of the last one; 0: none yet
  int received() const;

 private:
  struct sigaction m_before_term, m_before_usr1;
};

}  // namespace Sporos::Gpt

#endif
