// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_TrainLog.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "Sporos_Error.hpp"

namespace Sporos::Gpt {
namespace {

std::string line_of(nlohmann::json const& record) {
  // A byte-level model writes what it likes; replaced are bytes that are no UTF-8.
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// Whether a person watches. A launcher gives its ranks a pseudo-terminal of its own, wherever its own output goes: then its
/// output decides, which is that of the parent process.
bool is_watched() {
  if (!isatty(STDOUT_FILENO)) return false;
  int const parent = open(Impl::concatenate("/proc/", getppid(), "/fd/1").c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK);
  if (parent < 0) return true;
  bool const is_terminal = isatty(parent);
  close(parent);
  return is_terminal;
}

std::string duration(double seconds) {
  long const s = long(seconds + 0.5);
  char text[32];
  if (s < 3600)
    std::snprintf(text, sizeof text, "%ld:%02ld", s / 60, s % 60);
  else
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  return text;
}

}  // namespace

std::vector<nlohmann::json> read_log(std::string const& path) {
  std::vector<nlohmann::json> records;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    auto record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object()) records.push_back(std::move(record));
  }
  return records;
}

TrainLog::TrainLog(std::string path, std::int64_t resumed_step) : m_path(std::move(path)) {
  std::vector<nlohmann::json> kept;
  if (resumed_step > 0)
    for (auto& record : read_log(m_path))
      if (record.value("step", std::int64_t(0)) <= resumed_step) kept.push_back(std::move(record));

  // Beside the old file first: a second kill must not leave half a log.
  std::string const renewed = m_path + ".new";
  m_file.open(renewed, std::ios::trunc);
  SPOROS_THROW_INPUT_ERROR_IF(!m_file, "--log ", m_path, " cannot be written: ", std::strerror(errno));
  for (auto const& record : kept) m_file << line_of(record);
  m_file.flush();
  std::error_code error;
  std::filesystem::rename(renewed, m_path, error);
  SPOROS_THROW_INPUT_ERROR_IF(!m_file || error, "--log ", m_path, " cannot be written: ", error.message());
}

void TrainLog::write(nlohmann::json const& record) {
  m_file << line_of(record) << std::flush;
  SPOROS_THROW_INPUT_ERROR_IF(!m_file, "--log ", m_path, " cannot be written: ", std::strerror(errno));
}

Progress::Progress(std::int64_t first_step, std::int64_t steps)
    : m_first_step(first_step), m_steps(steps), m_terminal(is_watched()), m_start(Clock::now()), m_last() {}

void Progress::step(std::int64_t steps_done, double loss, double tokens_per_second) {
  Clock::time_point const now = Clock::now();
  double const interval = m_terminal ? 0.1 : 5;
  bool const is_first_or_last = steps_done == m_first_step + 1 || steps_done == m_steps;
  if (!is_first_or_last && std::chrono::duration<double>(now - m_last).count() < interval) return;
  m_last = now;
  double const elapsed = std::chrono::duration<double>(now - m_start).count();
  double const left = elapsed / double(steps_done - m_first_step) * double(m_steps - steps_done);
  char text[160];
  std::snprintf(text, sizeof text, "step %lld/%lld  loss %.4f  %.0f tokens/s  %s left", (long long)steps_done,
                (long long)m_steps, loss, tokens_per_second, duration(left).c_str());
  if (m_terminal) {
    std::cout << "\r\033[K" << text << std::flush;
    m_line_open = true;
  } else {
    std::cout << text << std::endl;
  }
}

void Progress::say(std::string const& text) {
  if (m_line_open) std::cout << "\r\033[K";
  m_line_open = false;
  std::cout << text << std::endl;
}

}  // namespace Sporos::Gpt
