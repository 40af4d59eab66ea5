// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TRAINOPTIONS_HPP
#define SPOROS_TRAINOPTIONS_HPP

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "Sporos_GptConfig.hpp"

namespace Sporos::Gpt {

/// What a user may set of a training run. The options of the command line, the keys of the TOML file, the table at the start, the
/// log and the report all come from the one list in Sporos_TrainOptions.cpp.
struct TrainOptions {
  std::string data;
  std::string validation_data;
  double validation_fraction = 0.1;
  std::string tokenizer = "none";
  std::string tokenizer_vocabulary;
  std::string tokenizer_merges;

  std::string model = "gpt2-124M";
  std::int64_t vocabulary = 0;  // 0 here and below: what the model preset, or the tokenizer, says
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;
  std::int64_t context = 0;

  std::int64_t sequence_length = 0;
  std::int64_t batch_tokens = 0;
  std::int64_t micro_batch = 8;

  std::int64_t steps = 1000;
  double learning_rate = 6e-4;
  double minimum_learning_rate = -1;  // negative: a tenth of learning_rate
  std::int64_t warmup_steps = 0;
  std::string schedule = "cosine";
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double clip = 1.0;
  double dropout = 0.0;
  std::string precision = "fp32";
  std::uint64_t seed = 1;

  std::int64_t evaluate_every = 0;  // 0: at the end only
  std::int64_t evaluate_batches = 0;
  std::int64_t final_evaluate_batches = 0;
  std::int64_t sample_every = 0;
  std::int64_t sample_tokens = 300;
  std::string sample_prompt = "\n";

  std::int64_t checkpoint_every = 0;
  std::string checkpoint_directory;
  std::int64_t keep = 2;
  std::string resume = "auto";

  std::string log = "train_gpt.jsonl";
  std::string report = "report.html";

  std::int64_t zero = 0;
  bool recompute = false;
  bool reproducible = false;
  double reduce_bucket_mb = 16;
  bool print_bigram_baseline = false;

  GptConfig gpt;                  // from model and the sizes
  std::int64_t global_batch = 0;  // sequences of a step, on all ranks together

  /// Option name (with its dashes) and value, all defaults worked out: for the table, the log and the report
  std::vector<std::pair<std::string, std::string>> table() const;
};

/// Parses a command line and the file of its --config.
/// \returns nothing if all is said already (--help, --version): the text is in `output`.
/// \throws InputError for an unknown option or key, a value of the wrong kind, a file that cannot be read, and options that do
///         not fit together; the text names them, with file and line where it is a file's
std::optional<TrainOptions> parse_train_options(std::vector<std::string> const& arguments, std::string& output);

/// One source of --data
struct DataSpec {
  double weight = 1;
  std::string spec;  ///< as TokenDataset::open takes it
};

/// "A" is one source; "0.7:A,0.3:B" two of which A gets 0.7 of the sequences; where a weight is missing it is 1. A file whose name
/// has a comma is one source.
/// \throws InputError for a weight that is not above 0, and for a source without a name
std::vector<DataSpec> parse_data(std::string const& text);

/// The learning rate of step 0, 1, …: linear warm-up, then the schedule down to the minimum at the last step
double learning_rate(TrainOptions const& options, std::int64_t step);

}  // namespace Sporos::Gpt

#endif
