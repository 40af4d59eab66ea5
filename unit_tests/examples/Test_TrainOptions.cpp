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
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "Sporos_Error.hpp"
#include "Sporos_TrainOptions.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using namespace Sporos::Gpt;

TrainOptions parse(std::vector<std::string> arguments) {
  std::string output;
  return parse_train_options(arguments, output).value();
}

std::vector<std::string> with(std::vector<std::string> more) {
  std::vector<std::string> all = {"--data", "x.txt"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// A file that is there as long as the object
struct File {
  std::string path;
  explicit File(std::string const& content)
      : path((std::filesystem::temp_directory_path() / ("sporos-options-" + std::to_string(getpid()) + ".toml"))
                 .string()) {
    std::ofstream(path) << content;
  }
  ~File() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("A preset gives the sizes, an explicit size overrules it", "[examples][options]") {
  REQUIRE(parse(with({})).gpt == *gpt_preset("gpt2-124M"));
  REQUIRE(parse(with({"--model", "gpt2-1.5B"})).gpt == GptConfig{50257, 1024, 48, 25, 1600});
  TrainOptions const small = parse(with({"--tokenizer", "byte", "--model", "custom", "--layers", "2", "--heads", "4",
                                         "--width", "64", "--context", "32", "--batch-tokens", "128"}));
  REQUIRE(small.gpt == GptConfig{256, 32, 2, 4, 64});
  REQUIRE(small.sequence_length == 32);
  REQUIRE(small.global_batch == 4);
  REQUIRE(parse(with({"--context", "512"})).gpt == GptConfig{50257, 512, 12, 12, 768});
}

TEST_CASE("A TOML file sets options and the command line overrules it", "[examples][options]") {
  File const file(
      "# a run\ndata = \"a b.txt\"\nlearning-rate = 3e-4\nsteps = 77\nprint-bigram-baseline = true\ndropout = 0.25\n");
  TrainOptions const options = parse({"--config", file.path, "--steps", "78"});
  REQUIRE(options.data == "a b.txt");
  REQUIRE(options.learning_rate == 3e-4);
  REQUIRE(options.minimum_learning_rate == options.learning_rate / 10);
  REQUIRE(options.steps == 78);
  REQUIRE(options.dropout == 0.25);
  REQUIRE(options.print_bigram_baseline);
}

TEST_CASE("What is wrong in a TOML file is named with file and line", "[examples][options]") {
  auto const refuses = [](std::string const& content, std::string const& where, std::string const& what) {
    File const file(content);
    REQUIRE_THROWS_WITH(parse(with({"--config", file.path})),
                        ContainsSubstring(file.path + where) && ContainsSubstring(what));
    REQUIRE_THROWS_AS(parse(with({"--config", file.path})), Sporos::InputError);
  };
  refuses("steps = 3\nlearning_rate = 1\n", ":2:", "unknown option \"learning_rate\"");
  refuses("steps = 3\n[model]\nlayers = 2\n", ":2:", "table");
  refuses("steps = \n", ":1:", "");
  refuses("steps = [1, 2]\n", ":1:", "array");
  refuses("config = \"other.toml\"\n", ":1:", "unknown option \"config\"");
}

TEST_CASE("What is wrong on the command line is named", "[examples][options]") {
  auto const refuses = [](std::vector<std::string> const& arguments, std::string const& what,
                          std::string const& more = "") {
    REQUIRE_THROWS_AS(parse(arguments), Sporos::InputError);
    REQUIRE_THROWS_WITH(parse(arguments), ContainsSubstring(what) && ContainsSubstring(more));
  };
  refuses({}, "--data");
  refuses(with({"--lerning-rate", "1"}), "--lerning-rate");
  refuses(with({"--steps", "many"}), "--steps", "many");
  refuses(with({"--steps", "0"}), "--steps is 0");
  refuses(with({"--config", "/nowhere/run.toml"}), "/nowhere/run.toml");
  refuses(with({"--model", "gpt3"}), "--model is \"gpt3\"", "gpt2-124M");
  refuses(with({"--model", "custom", "--layers", "2"}), "--model custom needs");
  refuses(with({"--heads", "7"}), "--width 768", "--heads 7");
  refuses(with({"--width", "780"}), "a head of 65");
  refuses(with({"--sequence-length", "2048"}), "--sequence-length is 2048", "--context 1024");
  refuses(with({"--batch-tokens", "1000"}), "--batch-tokens is 1000", "--sequence-length 1024");
  refuses(with({"--precision", "fp8"}), "--precision is \"fp8\"", "bf16");
  refuses(with({"--dropout", "1"}), "--dropout is 1");
  refuses(with({"--validation-fraction", "-0.1"}), "--validation-fraction is -0.1");
  refuses(with({"--tokenizer", "byte", "--vocabulary", "100"}), "--vocabulary is 100", "256");
  refuses(with({"--sample-every", "5"}), "--sample-every is 5", "--tokenizer byte");
  refuses(with({"--checkpoint-every", "5"}), "--checkpoint-directory");
  refuses(with({"--resume", "must"}), "--resume is must");
  refuses(with({"--resume", "always"}), "--resume is \"always\"", "never");
  refuses(with({"--layers", "-1"}), "--layers is -1");
}

TEST_CASE("--data is one source or several with weights", "[examples][options]") {
  auto const specs = [](std::string const& text) {
    std::vector<std::pair<double, std::string>> result;
    for (DataSpec const& one : parse_data(text)) result.emplace_back(one.weight, one.spec);
    return result;
  };
  using Specs = std::vector<std::pair<double, std::string>>;
  CHECK(specs("a.txt") == Specs{{1, "a.txt"}});
  CHECK(specs("text:a.txt") == Specs{{1, "text:a.txt"}});
  CHECK(specs("2:a.txt") == Specs{{2, "a.txt"}});
  CHECK(specs("0.7:llmc:a.bin,b.bin,3e-1:c") == Specs{{0.7, "llmc:a.bin"}, {1, "b.bin"}, {0.3, "c"}});
  File const with_comma("x");
  std::string const name = with_comma.path + ",b";
  std::ofstream(name) << "y";
  CHECK(specs(name) == Specs{{1, name}});
  std::filesystem::remove(name);
  CHECK(specs(name) == Specs{{1, with_comma.path}, {1, "b"}});
  for (char const* wrong : {"0:a", "-1:a", "nan:a", "inf:a", "a,", ",a", "1:", "a,,b"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH(specs(wrong), ContainsSubstring("--data: "));
  }
}

TEST_CASE("--help lists every option of the table and no other", "[examples][options]") {
  std::string help, version;
  REQUIRE(!parse_train_options({"--help"}, help));
  REQUIRE(!parse_train_options({"--version"}, version));
  REQUIRE_THAT(version, ContainsSubstring("train_gpt of Sporos"));
  std::set<std::string> listed, wanted = {"--version", "--config"};
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);)
    if (std::size_t const begin = line.find_first_not_of(' ');
        line.substr(std::min(begin, line.size())).starts_with("--"))
      listed.insert(line.substr(begin, line.find_first_of(" ,", begin) - begin));
  for (auto const& row : parse(with({})).table()) wanted.insert(row.first);
  REQUIRE(listed == wanted);
}

TEST_CASE("The learning rate warms up, decays by its schedule and ends at the minimum", "[examples][options]") {
  auto const options = [](std::string const& schedule) {
    return parse(with({"--steps", "110", "--warmup-steps", "10", "--learning-rate", "0.5", "--minimum-learning-rate",
                       "0.1", "--schedule", schedule}));
  };
  for (std::string const schedule : {"cosine", "linear", "constant"}) {
    INFO(schedule);
    TrainOptions const o = options(schedule);
    REQUIRE(learning_rate(o, 0) == 0.05);
    REQUIRE(learning_rate(o, 9) == 0.5);
    REQUIRE(learning_rate(o, 10) == 0.5);
    double const last = schedule == "constant" ? 0.5 : 0.1;
    REQUIRE(std::abs(learning_rate(o, 109) - last) < 1e-12);
    REQUIRE(std::abs(learning_rate(o, 1000) - last) < 1e-12);
  }
  // A third of the way down
  REQUIRE(std::abs(learning_rate(options("linear"), 10 + 33) - (0.5 - 0.4 / 3)) < 1e-12);
  REQUIRE(std::abs(learning_rate(options("cosine"), 10 + 33) - 0.4) < 1e-12);
}
