// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TRAINLOG_HPP
#define SPOROS_TRAINLOG_HPP

#include <chrono>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace Sporos::Gpt {

/// The records of a log; lines that are no JSON object, such as the torn last one of a killed run, are left out.
/// Empty where there is no file.
std::vector<nlohmann::json> read_log(std::string const& path);

/// JSON lines, each an object with "event" and, but for settings, "step". Every line is in the file when write() returns.
class TrainLog {
 public:
  /// A new run starts with an empty file. A resumed one keeps the records up to `resumed_step`, the steps already made: what a
  /// killed run did after its last checkpoint is done again.
  /// \throws InputError naming the file when it cannot be written
  TrainLog(std::string path, std::int64_t resumed_step);

  void write(nlohmann::json const& record);
  std::string const& path() const { return m_path; }

 private:
  std::string m_path;
  std::ofstream m_file;
};

/// What the person at the terminal sees: one line that renews itself, or where the output goes elsewhere a line now and then.
class Progress {
 public:
  Progress(std::int64_t first_step, std::int64_t steps);

  void step(std::int64_t steps_done, double loss, double tokens_per_second);
  /// A line that stays
  void say(std::string const& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t m_first_step, m_steps;
  bool m_terminal, m_line_open = false;
  Clock::time_point m_start, m_last;
};

}  // namespace Sporos::Gpt

#endif
