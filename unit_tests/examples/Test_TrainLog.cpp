// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "Sporos_Bigram.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_Report.hpp"
#include "Sporos_TokenDataset.hpp"
#include "Sporos_TrainLog.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace Sporos;
using namespace Sporos::Gpt;
using nlohmann::json;

/// A folder that is there as long as the object
struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("sporos-log-" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(std::string const& name) const { return (path / name).string(); }
};

json step(std::int64_t number, double loss) {
  return {{"event", "step"}, {"step", number}, {"loss", loss},
          {"tokens", 64},    {"seconds", 0.5}, {"tokens_per_second", 128.0}};
}

}  // namespace

TEST_CASE("A resumed log forgets what came after the checkpoint, and a torn line", "[examples][log]") {
  Folder const folder;
  std::string const path = folder.file("log.jsonl");
  {
    TrainLog log(path, 0);
    log.write({{"event", "settings"}});
    for (int s = 1; s <= 5; ++s) log.write(step(s, 1.0 / s));
  }
  std::ofstream(path, std::ios::app) << "{\"event\":\"step\",\"st";
  REQUIRE(read_log(path).size() == 6);
  {
    TrainLog log(path, 3);
    log.write(step(4, 0.125));
  }
  auto const records = read_log(path);
  REQUIRE(records.size() == 5);
  REQUIRE(records[0]["event"] == "settings");
  REQUIRE(records[3]["loss"] == 1.0 / 3);  // to the last bit
  REQUIRE(records[4]["loss"] == 0.125);
  TrainLog(path, 0);
  REQUIRE(read_log(path).empty());
}

TEST_CASE("A text that is no UTF-8 does not break the log", "[examples][log]") {
  Folder const folder;
  std::string const path = folder.file("log.jsonl");
  TrainLog(path, 0).write({{"event", "sample"}, {"text", "a\xff\xc3z"}});
  REQUIRE(read_log(path).at(0)["text"].get<std::string>().front() == 'a');
}

TEST_CASE("A log that cannot be written is named", "[examples][log]") {
  REQUIRE_THROWS_AS(TrainLog("/nowhere/log.jsonl", 0), InputError);
  REQUIRE_THROWS_WITH(TrainLog("/nowhere/log.jsonl", 0), ContainsSubstring("/nowhere/log.jsonl"));
}

TEST_CASE("The report shows curves, figures, samples and settings, and needs nothing from elsewhere",
          "[examples][report]") {
  std::vector<json> records = {{{"event", "settings"},
                                {"title", "tiny <model>"},
                                {"run", json::array({json::array({"ranks", "2"})})},
                                {"options", json::array({json::array({"--data", "a&b.txt"})})}}};
  for (int s = 1; s <= 2000; ++s) records.push_back(step(s, 2 + 1.0 / s));
  records.push_back({{"event", "evaluation"}, {"step", 1000}, {"validation_loss", 2.25}});
  records.push_back({{"event", "sample"}, {"step", 2000}, {"text", "<b>&\x01 end"}});
  records.push_back({{"event", "final"}, {"step", 2000}, {"validation_loss", 2.125}, {"bigram_loss", 2.5}});
  std::string const html = report_html(records);
  for (char const* part :
       {"tiny &lt;model&gt;", "a&amp;b.txt", "&lt;b&gt;&amp; end", "bigram baseline 2.5", "validation, last 2.125",
        "Waiting for data", "Stalled by checkpoints", "tokens per second"}) {
    INFO(part);
    REQUIRE_THAT(html, ContainsSubstring(part));
  }
  for (char const* outside : {"http:", "https:", "src=", "url(", "@import", "nan", "inf\""}) {
    INFO(outside);
    REQUIRE(html.find(outside) == std::string::npos);
  }
  // 2000 steps are more points than a curve has pixels
  std::size_t const path = html.find("<path class=\"a\" d=\"");
  std::string const line = html.substr(path, html.find("\"/>", path) - path);
  REQUIRE(std::count(line.begin(), line.end(), 'L') == 599);
}

TEST_CASE("A report can be made of a log without any step, and of losses that are not finite", "[examples][report]") {
  REQUIRE_THAT(report_html({}), ContainsSubstring("nothing recorded"));
  json broken = step(1, 0);
  broken["loss"] = nullptr;  // what JSON makes of NaN
  REQUIRE_THAT(report_html({broken, step(2, 1.5)}), ContainsSubstring("training, last 1.5"));
}

TEST_CASE("The bigram baseline is the formula", "[examples][bigram]") {
  Folder const folder;
  std::string const text = "abracadabra, she said; abracadabra.";
  std::ofstream(folder.file("text")) << text;
  TokenDataset const dataset = TokenDataset::open("text:" + folder.file("text"), 256);
  TokenRange const train{0, 24}, validation{24, std::int64_t(text.size())};
  std::map<std::string, int> pairs;
  std::map<char, int> firsts;
  for (std::size_t i = 0; i + 1 < 24; ++i) {
    ++pairs[text.substr(i, 2)];
    ++firsts[text[i]];
  }
  double expected = 0;
  for (std::size_t i = 24; i + 1 < text.size(); ++i)
    expected -= std::log((pairs[text.substr(i, 2)] + 1.0) / (firsts[text[i]] + 256.0));
  expected /= double(text.size() - 25);
  REQUIRE(std::abs(BigramModel(dataset, train).loss(dataset, validation) - expected) < 1e-14 * expected);
}
