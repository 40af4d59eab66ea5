// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_StopSignals.hpp"

namespace Sporos::Gpt {
namespace {

volatile std::sig_atomic_t last_signal = 0;

void note(int signal) { last_signal = signal; }

}  // namespace

StopSignals::StopSignals() {
  last_signal = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;  // a read or write in progress goes on
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &m_before_term);
  sigaction(SIGUSR1, &action, &m_before_usr1);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &m_before_term, nullptr);
  sigaction(SIGUSR1, &m_before_usr1, nullptr);
}

int StopSignals::received() const { return last_signal; }

}  // namespace Sporos::Gpt
