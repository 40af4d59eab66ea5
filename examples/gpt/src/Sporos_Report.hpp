// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_REPORT_HPP
#define SPOROS_REPORT_HPP

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace Sporos::Gpt {

/// A page of HTML that needs nothing but itself: the curves of a training run as SVG, its samples and its settings, from the
/// records of its log.
std::string report_html(std::vector<nlohmann::json> const& records);

/// Writes report_html of the log, beside the old page first.
/// \throws InputError naming the file when it cannot be written
void write_report(std::string const& log_path, std::string const& report_path);

}  // namespace Sporos::Gpt

#endif
