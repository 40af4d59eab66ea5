// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Report.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "Sporos_Error.hpp"
#include "Sporos_TrainLog.hpp"

namespace Sporos::Gpt {
namespace {

using Records = std::vector<nlohmann::json>;

struct Point {
  double x, y;
};

struct Series {
  std::string name;
  std::string css;  // class of the stroke
  std::vector<Point> points;
  bool marks = false;
};

std::string escaped(std::string const& text) {
  std::string html;
  for (char const c : text) {
    if (c == '&')
      html += "&amp;";
    else if (c == '<')
      html += "&lt;";
    else if (c == '>')
      html += "&gt;";
    else if (c == '"')
      html += "&quot;";
    else if (static_cast<unsigned char>(c) >= 32 || c == '\n' || c == '\t')
      html += c;
  }
  return html;
}

std::string number(double value) {
  char text[32];
  double const magnitude = std::abs(value);
  if (magnitude >= 1e6)
    std::snprintf(text, sizeof text, "%.4gM", value / 1e6);
  else if (magnitude >= 1e4)
    std::snprintf(text, sizeof text, "%.4gk", value / 1e3);
  else
    std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

/// The values of `key` over steps, of all records of `event`
std::vector<Point> points_of(Records const& records, std::string const& event, std::string const& key,
                             double factor = 1) {
  std::vector<Point> points;
  for (auto const& record : records)
    if (record.value("event", "") == event && record.contains(key) && record[key].is_number())
      points.push_back({record.value("step", 0.0), record[key].get<double>() * factor});
  return points;
}

/// At most `limit` points: neighbours are replaced by their mean. More than one a pixel cannot be seen anyway.
std::vector<Point> thinned(std::vector<Point> const& points, std::size_t limit) {
  if (points.size() <= limit) return points;
  std::vector<Point> means;
  for (std::size_t i = 0; i < limit; ++i) {
    std::size_t const begin = i * points.size() / limit, end = (i + 1) * points.size() / limit;
    Point sum{0, 0};
    for (std::size_t p = begin; p < end; ++p) {
      sum.x += points[p].x;
      sum.y += points[p].y;
    }
    means.push_back({sum.x / double(end - begin), sum.y / double(end - begin)});
  }
  return means;
}

struct Axis {
  double low, high, step;

  /// Round steps around [low, high], about `ticks` of them
  Axis(double from, double to, int ticks) {
    if (!(to > from)) {
      double const room = from == 0 ? 1 : 0.1 * std::abs(from);
      if (from != 0) from -= room;
      to += room;
    }
    double const rough = (to - from) / ticks, decade = std::pow(10, std::floor(std::log10(rough)));
    step = rough <= decade ? decade : rough <= 2 * decade ? 2 * decade : rough <= 5 * decade ? 5 * decade : 10 * decade;
    low = step * std::floor(from / step + 1e-9);
    high = step * std::ceil(to / step - 1e-9);
  }
  double position(double value) const { return (value - low) / (high - low); }
  int ticks() const { return int(std::lround((high - low) / step)); }
  double tick(int i) const { return low + i * step; }
};

std::string chart(std::string const& title, std::string const& unit, std::vector<Series> all,
                  std::optional<double> level, std::string const& level_name, bool from_zero) {
  constexpr double left = 64, top = 12, width = 600, height = 220, full_width = 680, full_height = 268;
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low, y_low = x_low, y_high = -x_low;
  for (Series& series : all) {
    series.points = thinned(series.points, std::size_t(width));
    for (Point const& p : series.points) {
      if (!std::isfinite(p.y)) continue;
      x_low = std::min(x_low, p.x);
      x_high = std::max(x_high, p.x);
      y_low = std::min(y_low, p.y);
      y_high = std::max(y_high, p.y);
    }
  }
  std::ostringstream html;
  html << "<figure><figcaption>" << escaped(title) << " <span class=\"unit\">" << escaped(unit)
       << "</span></figcaption>\n";
  if (!(x_low <= x_high)) {
    html << "<p class=\"none\">nothing recorded</p></figure>\n";
    return html.str();
  }
  if (level) {
    y_low = std::min(y_low, *level);
    y_high = std::max(y_high, *level);
  }
  if (from_zero) y_low = std::min(0.0, y_low);
  Axis const x(x_low, x_high, 6), y(y_low, y_high, 5);
  auto const px = [&](double value) { return left + width * x.position(value); };
  auto const py = [&](double value) { return top + height * (1 - y.position(value)); };

  html << "<svg viewBox=\"0 0 " << full_width << " " << full_height << "\" role=\"img\" aria-label=\"" << escaped(title)
       << "\">\n";
  for (int i = 0; i <= y.ticks(); ++i)
    html << "<line class=\"grid\" x1=\"" << left << "\" x2=\"" << left + width << "\" y1=\"" << py(y.tick(i))
         << "\" y2=\"" << py(y.tick(i)) << "\"/><text class=\"tick\" text-anchor=\"end\" x=\"" << left - 8 << "\" y=\""
         << py(y.tick(i)) + 4 << "\">" << number(std::abs(y.tick(i)) < y.step * 1e-6 ? 0 : y.tick(i)) << "</text>\n";
  for (int i = 0; i <= x.ticks(); ++i)
    html << "<text class=\"tick\" text-anchor=\"middle\" x=\"" << px(x.tick(i)) << "\" y=\"" << top + height + 18
         << "\">" << number(x.tick(i)) << "</text>\n";
  html << "<text class=\"tick\" text-anchor=\"middle\" x=\"" << left + width / 2 << "\" y=\"" << full_height - 4
       << "\">step</text>\n";
  if (level)
    html << "<line class=\"level\" x1=\"" << left << "\" x2=\"" << left + width << "\" y1=\"" << py(*level)
         << "\" y2=\"" << py(*level) << "\"><title>" << escaped(level_name) << " " << number(*level)
         << "</title></line>\n";
  for (Series const& series : all) {
    std::ostringstream path;
    path.precision(5);
    bool pen_down = false;
    for (Point const& p : series.points) {
      if (!std::isfinite(p.y)) {
        pen_down = false;
        continue;
      }
      path << (pen_down ? 'L' : 'M') << px(p.x) << ' ' << py(p.y);
      pen_down = true;
    }
    html << "<path class=\"" << series.css << "\" d=\"" << path.str() << "\"/>\n";
    if (!series.marks) continue;
    for (Point const& p : series.points)
      if (std::isfinite(p.y))
        html << "<circle class=\"" << series.css << "\" r=\"3\" cx=\"" << px(p.x) << "\" cy=\"" << py(p.y)
             << "\"><title>step " << number(p.x) << ": " << number(p.y) << "</title></circle>\n";
  }
  html << "</svg>\n<p class=\"legend\">";
  for (Series const& series : all)
    if (!series.points.empty())
      html << "<span><i class=\"" << series.css << "\"></i>" << escaped(series.name) << ", last "
           << number(series.points.back().y) << "</span>";
  if (level) html << "<span><i class=\"level\"></i>" << escaped(level_name) << " " << number(*level) << "</span>";
  html << "</p></figure>\n";
  return html.str();
}

/// The last value of `key` in records of `event`
std::optional<double> last(Records const& records, std::string const& event, std::string const& key) {
  auto const points = points_of(records, event, key);
  if (points.empty()) return std::nullopt;
  return points.back().y;
}

double total(Records const& records, std::string const& key) {
  double sum = 0;
  for (Point const& p : points_of(records, "step", key)) sum += p.y;
  return sum;
}

std::string facts(Records const& records) {
  std::ostringstream html;
  auto const box = [&](std::string const& name, std::string const& value) {
    html << "<div><b>" << value << "</b><span>" << name << "</span></div>\n";
  };
  auto const fact = [&](std::string const& name, std::optional<double> value) {
    if (value) box(name, number(*value));
  };
  auto const percent = [](double share) {
    char text[16];
    std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
    return std::string(text);
  };
  html << "<section class=\"facts\">\n";
  auto const steps = points_of(records, "step", "loss");
  if (!steps.empty()) fact("steps", steps.back().x);
  auto const final_loss = last(records, "final", "validation_loss");
  fact("validation loss", final_loss ? final_loss : last(records, "evaluation", "validation_loss"));
  fact("bigram baseline", last(records, "final", "bigram_loss"));
  fact("training loss", last(records, "step", "loss"));
  double const seconds = total(records, "seconds"), tokens = total(records, "tokens");
  if (seconds > 0) {
    fact("seconds of training", seconds);
    fact("tokens/s, mean", tokens / seconds);
    box("of the time waiting for data", percent(total(records, "data_wait_seconds") / seconds));
    box("of the time stalled by checkpoints", percent(total(records, "checkpoint_stall_seconds") / seconds));
  }
  html << "</section>\n";
  return html.str();
}

std::string samples(Records const& records) {
  std::ostringstream html;
  for (auto const& record : records)
    if (record.value("event", "") == "sample")
      html << "<details><summary>after step " << record.value("step", std::int64_t(0)) << "</summary><pre>"
           << escaped(record.value("text", "")) << "</pre></details>\n";
  std::string text = html.str();
  if (text.empty()) return text;
  text.replace(text.rfind("<details>"), 9, "<details open>");
  return "<h2>What the model writes</h2>\n" + text;
}

std::string settings(Records const& records) {
  nlohmann::json table;
  for (auto const& record : records)
    if (record.value("event", "") == "settings") table = record;
  if (!table.is_object()) return "";
  std::ostringstream html;
  html << "<h2>Settings</h2>\n<table>\n";
  for (auto const* part : {"run", "options"})
    if (table.contains(part))
      for (auto const& row : table[part])
        html << "<tr><td>" << escaped(row.at(0).get<std::string>()) << "</td><td>"
             << escaped(row.at(1).get<std::string>()) << "</td></tr>\n";
  html << "</table>\n";
  return html.str();
}

constexpr char const* style = R"(
:root { --ink: #1d2330; --soft: #667085; --paper: #ffffff; --line: #e4e7ec; --a: #2563eb; --b: #d9480f; --c: #0f8a5f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --soft: #98a2b3; --paper: #14171d; --line: #2b303a; --a: #7aa5ff; --b: #ff9a62; --c: #5fd3a4; }
}
body { margin: 0 auto; max-width: 1440px; padding: 24px; background: var(--paper); color: var(--ink);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 28px 0 8px; }
.sub, .unit, .none { color: var(--soft); } .unit { font-weight: normal; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0; }
.facts div { border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; }
.facts b { display: block; font-size: 20px; } .facts span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 20px; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: 12px; }
figcaption { font-weight: 600; margin-bottom: 6px; }
svg { width: 100%; height: auto; } path { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.grid { stroke: var(--line); } .tick { fill: var(--soft); font-size: 12px; }
.a { stroke: var(--a); } .b { stroke: var(--b); } .c { stroke: var(--c); } circle { fill: var(--paper); stroke-width: 1.6; }
.level { stroke: var(--soft); stroke-dasharray: 6 4; stroke-width: 1.4; }
.legend { margin: 4px 0 0; font-size: 13px; color: var(--soft); display: flex; flex-wrap: wrap; gap: 4px 18px; }
.legend i { display: inline-block; width: 18px; height: 0; margin-right: 6px; vertical-align: middle; border-top: 2px solid; }
i.a { border-color: var(--a); } i.b { border-color: var(--b); } i.c { border-color: var(--c); }
i.level { border-top-style: dashed; border-color: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); border-radius: 8px; padding: 12px; }
table { border-collapse: collapse; font-size: 14px; } td { border-bottom: 1px solid var(--line); padding: 3px 24px 3px 0;
       overflow-wrap: anywhere; } td:first-child { color: var(--soft); white-space: nowrap; }
)";

}  // namespace

std::string report_html(std::vector<nlohmann::json> const& records) {
  std::string subtitle;
  for (auto const& record : records)
    if (record.value("event", "") == "settings") subtitle = record.value("title", "");
  std::vector<Point> validation = points_of(records, "evaluation", "validation_loss");
  for (Point const& p : points_of(records, "final", "validation_loss")) validation.push_back(p);

  std::ostringstream html;
  html << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width\"><title>train_gpt</title>\n<style>"
       << style << "</style></head><body>\n<h1>train_gpt</h1>\n<p class=\"sub\">" << escaped(subtitle) << "</p>\n"
       << facts(records) << "<div class=\"charts\">\n"
       << chart("Loss", "nats per token",
                {{"training", "a", points_of(records, "step", "loss")}, {"validation", "b", validation, true}},
                last(records, "final", "bigram_loss"), "bigram baseline", false)
       << chart("Throughput", "tokens per second",
                {{"all ranks", "a", points_of(records, "step", "tokens_per_second")}}, {}, "", true)
       << chart("Waiting for data", "milliseconds per step",
                {{"wait", "c", points_of(records, "step", "data_wait_seconds", 1e3)}}, {}, "", true)
       << chart("Stalled by checkpoints", "milliseconds per step",
                {{"stall", "b", points_of(records, "step", "checkpoint_stall_seconds", 1e3)}}, {}, "", true)
       << chart("Gradient norm", "before clipping", {{"norm", "a", points_of(records, "step", "gradient_norm")}}, {},
                "", true)
       << chart("Learning rate", "", {{"rate", "c", points_of(records, "step", "learning_rate")}}, {}, "", true)
       << "</div>\n"
       << samples(records) << settings(records) << "</body></html>\n";
  return html.str();
}

void write_report(std::string const& log_path, std::string const& report_path) {
  std::string const renewed = report_path + ".new";
  std::ofstream file(renewed, std::ios::trunc);
  file << report_html(read_log(log_path));
  file.close();
  SPOROS_THROW_INPUT_ERROR_IF(!file, "--report ", report_path, " cannot be written: ", std::strerror(errno));
  std::error_code error;
  std::filesystem::rename(renewed, report_path, error);
  SPOROS_THROW_INPUT_ERROR_IF(error, "--report ", report_path, " cannot be written: ", error.message());
}

}  // namespace Sporos::Gpt
