// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Trainer.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "Sporos_AdamW.hpp"
#include "Sporos_Bigram.hpp"
#include "Sporos_Checkpoint.hpp"
#include "Sporos_DataMixture.hpp"
#include "Sporos_GptModel.hpp"
#include "Sporos_Prefetcher.hpp"
#include "Sporos_Report.hpp"
#include "Sporos_SampleOrder.hpp"
#include "Sporos_Sampler.hpp"
#include "Sporos_ShardedState.hpp"
#include "Sporos_StateAccess.hpp"
#include "Sporos_StopSignals.hpp"
#include "Sporos_TextTokenizer.hpp"
#include "Sporos_TokenDataset.hpp"
#include "Sporos_TrainLog.hpp"
#include "Sporos_Version.hpp"

namespace Sporos::Gpt {
namespace {

using ExecutionSpace = Kokkos::DefaultExecutionSpace;
using MemorySpace = ExecutionSpace::memory_space;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
  return text;
}

std::int64_t granules_of(Interval const& range) {
  return (range.size() + StateLayout::granule - 1) / StateLayout::granule;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// Which tokens are trained on and which are held back
struct Data {
  DataMixture train;
  std::optional<TokenDataset> validation;
  TokenRange validation_range;
  std::int64_t validation_samples = 0;
  std::optional<TextTokenizer> tokenizer{};  // where text is sampled

  std::int64_t train_samples() const {
    std::int64_t samples = 0;
    for (DataSource const& source : train.sources()) samples += source.order.samples();
    return samples;
  }
  /// Of all sources, each with its weight where there are several
  std::string train_fingerprint() const {
    if (train.sources().size() == 1) return hexadecimal(train.sources().front().dataset.fingerprint());
    std::string text;
    for (DataSource const& source : train.sources())
      text += Impl::concatenate(text.empty() ? "" : ",", source.weight, ":", hexadecimal(source.dataset.fingerprint()));
    return text;
  }
  std::string train_description() const {
    std::string text;
    for (DataSource const& source : train.sources()) {
      if (train.sources().size() > 1) text += Impl::concatenate(text.empty() ? "" : "; ", source.weight, " of ");
      text += source.dataset.description();
    }
    return text;
  }
};

std::string dataset_spec(TrainOptions const& options, std::string const& path) {
  bool const is_text = path.starts_with("text:");
  SPOROS_THROW_INPUT_ERROR_IF(options.tokenizer == "gpt2" && is_text, path,
                              " is text; the program `tokenize` makes tokens of it for --tokenizer gpt2");
  if (options.tokenizer != "byte" || is_text) return path;
  for (char const* const kind : {"llmc:", "nanogpt:", "megatron:"})
    SPOROS_THROW_INPUT_ERROR_IF(path.starts_with(kind), path,
                                " holds tokens, but --tokenizer is byte; use --tokenizer none");
  return "text:" + path;
}

/// Every source has an order of its own, also where two have the same number of samples.
std::uint64_t seed_of_source(std::uint64_t seed, std::size_t source) {
  return seed ^ std::uint64_t(source) * 0x9e3779b97f4a7c15u;
}

Data open_data(TrainOptions const& options) {
  int const vocabulary = int(options.gpt.vocabulary);
  std::int64_t const length = options.sequence_length;
  std::vector<DataSource> sources;
  std::optional<TokenDataset> validation;
  TokenRange validation_range;
  auto const specs = parse_data(options.data);
  for (DataSpec const& spec : specs) {
    TokenDataset const dataset = TokenDataset::open(dataset_spec(options, spec.spec), vocabulary);
    TokenRange range = dataset.all();
    // Of several sources nothing is kept apart: the loss on a bit of each is no loss of the mixture.
    if (specs.size() == 1 && options.validation_data.empty()) {
      TrainValidationSplit const split = TrainValidationSplit::by_fraction(dataset, options.validation_fraction);
      range = split.train;
      validation = dataset;
      validation_range = split.validation;
    }
    SampleOrder const order(dataset.samples(range, length), seed_of_source(options.seed, sources.size()));
    sources.push_back({dataset, range, order, spec.weight});
  }
  if (!options.validation_data.empty()) {
    validation = TokenDataset::open(dataset_spec(options, options.validation_data), vocabulary);
    validation_range = validation->all();
  }
  Data data{
      .train = DataMixture(std::move(sources), length), .validation = validation, .validation_range = validation_range};
  if (options.sample_every > 0)
    data.tokenizer.emplace(options.tokenizer, options.tokenizer_vocabulary, options.tokenizer_merges);
  if (validation_range.size() > 0) data.validation_samples = validation->samples(validation_range, length);
  SPOROS_THROW_INPUT_ERROR_IF(
      data.validation_samples == 0 && options.evaluate_every > 0, "--evaluate-every is ", options.evaluate_every,
      ", but there is no --validation-data and --validation-fraction is ", options.validation_fraction,
      specs.size() > 1 ? ", which is for one source of --data only" : "");
  return data;
}

template <class T>
class Trainer {
 public:
  Trainer(Communicator const& communicator, TrainOptions const& options, Data const& data);

  /// Whether the run is over; if not, a signal has stopped it and it can be resumed
  bool run();

 private:
  using Compute = ComputeType<T>;
  using Model = GptModel<ExecutionSpace, T>;

  struct Step {
    double loss, gradient_norm;
    bool skipped;
  };

  bool is_root() const { return m_communicator.rank() == 0; }
  nlohmann::json metadata() const;
  void start_or_resume();
  void require_same_run(CheckpointReader const& reader) const;
  void require_no_checkpoints() const;
  void announce();
  void record_memory();
  void record_step(Step const& step, double seconds, double waited, double stalled);
  Step train_step(Prefetcher<ExecutionSpace>& prefetcher);
  void enqueue_norms();
  double squared_norm() const;
  double total_loss(std::vector<double> const& mine) const;
  void update(double gradient_scale);
  BatchPlan plan(std::int64_t sequences) const;
  bool takes_part(std::vector<int> const& ranks) const;
  std::int64_t validation_sequences(std::int64_t batches) const;
  double evaluate(std::int64_t batches);
  void evaluate_and_record();
  void sample_and_record();
  void save();
  bool stop_is_due();
  void stop();
  void finish();
  void say(std::string const& text);
  void record(nlohmann::json const& json);
  void renew_report();

  Communicator m_communicator;
  TrainOptions m_options;
  Data m_data;
  ExecutionSpace m_space;
  std::int64_t m_first_step = 0;
  ShardedState<ExecutionSpace, T> m_state;
  ShardedAccess<ExecutionSpace, T> m_access;
  Model m_model;
  std::vector<std::vector<int>> m_rounds;  // of a step: the ranks that have a micro-batch in each
  using Numbers = Kokkos::View<double*, MemorySpace>;
  using NumbersHost = decltype(Kokkos::create_mirror_view(std::declval<Numbers>()));
  Numbers m_losses;  // of this rank's micro-batches of a step
  Numbers m_norms;   // squared, of the granules of the gradient's owned parts
  NumbersHost m_losses_host, m_norms_host;
  std::int64_t m_saved_step = -1;

  // Rank 0's
  std::optional<TrainLog> m_log;
  std::optional<Progress> m_progress;

  std::unique_ptr<CheckpointWriter> m_writer;
  std::optional<StopSignals> m_signals;  // only with a writer: without checkpoints there is nothing to be saved
};

template <class T>
Trainer<T>::Trainer(Communicator const& communicator, TrainOptions const& options, Data const& data)
    : m_communicator(communicator),
      m_options(options),
      m_data(data),
      m_state(m_space, gpt_layout(options.gpt),
              {ZeroStage(int(options.zero)), communicator.rank(), communicator.size()}),
      m_access(communicator, m_state,
               {.bucket_bytes = std::size_t(options.reduce_bucket_mb * 1e6),
                .tree_leaves = options.reproducible ? plan(options.global_batch).micro_batches() : 0}),
      m_model(m_space, options.gpt, m_access, options.micro_batch, options.sequence_length, options.recompute),
      m_rounds(plan(options.global_batch).rounds()) {
  std::int64_t granules = 0;
  for (OwnedPart const& part : m_state.owned()) granules += granules_of(part.range);
  m_losses = Numbers("Sporos::train_gpt::losses", m_rounds.size());
  m_norms = Numbers("Sporos::train_gpt::norms", std::size_t(granules));
  m_losses_host = Kokkos::create_mirror_view(m_losses);
  m_norms_host = Kokkos::create_mirror_view(m_norms);
}

/// How `sequences` sequences are shared out over the ranks
template <class T>
BatchPlan Trainer<T>::plan(std::int64_t sequences) const {
  return {.global_batch = sequences,
          .micro_batch = std::min(m_options.micro_batch, sequences),
          .rank = m_communicator.rank(),
          .ranks = m_communicator.size(),
          .first_step = m_first_step,
          .interleaved = m_options.reproducible};
}

template <class T>
bool Trainer<T>::takes_part(std::vector<int> const& ranks) const {
  return std::find(ranks.begin(), ranks.end(), m_communicator.rank()) != ranks.end();
}

template <class T>
void Trainer<T>::say(std::string const& text) {
  if (m_progress)
    m_progress->say(text);
  else if (is_root())
    std::cout << text << std::endl;
}

template <class T>
void Trainer<T>::record(nlohmann::json const& json) {
  if (m_log) m_log->write(json);
}

template <class T>
void Trainer<T>::renew_report() {
  if (m_log && !m_options.report.empty()) write_report(m_log->path(), m_options.report);
}

/// What makes two runs the same one: a checkpoint is resumed only with all of it unchanged.
template <class T>
nlohmann::json Trainer<T>::metadata() const {
  return {{"program", "train_gpt"},
          {"version", SPOROS_VERSION_STRING},
          {"model", m_options.gpt},
          {"tokenizer", m_options.tokenizer},
          {"run",
           {{"--precision", m_options.precision},
            {"--seed", m_options.seed},
            {"--sequence-length", m_options.sequence_length},
            {"--batch-tokens", m_options.batch_tokens},
            {"--data (fingerprint)", m_data.train_fingerprint()},
            {"--data (sequences to train on)", m_data.train_samples()}}}};
}

template <class T>
void Trainer<T>::require_same_run(CheckpointReader const& reader) const {
  nlohmann::json const now = metadata(), then = reader.metadata();
  bool const imported = then.contains("imported");  // weights from elsewhere: only what they are is given
  std::string differences;
  if (then.value("program", "") != "train_gpt") differences = " it is not one of train_gpt;";
  for (auto const& [key, value] : now["run"].items())
    if (imported && key != "--precision")
      continue;
    else if (nlohmann::json const before = then.value("run", nlohmann::json::object()).value(key, nlohmann::json());
             before != value)
      differences += Impl::concatenate(" ", key, " was ", before.dump(), " and is ", value.dump(), ";");
  if (!differences.empty())
    throw InputError(Impl::concatenate("the checkpoint ", reader.path(), " belongs to another run:", differences,
                                       " --resume never starts anew"));
}

/// Two runs in one directory would count as one, and the older checkpoints, if they have more steps, as the newer.
template <class T>
void Trainer<T>::require_no_checkpoints() const {
  std::error_code missing;
  for (auto const& entry : std::filesystem::directory_iterator(m_options.checkpoint_directory, missing)) {
    std::string const name = entry.path().filename().string();
    SPOROS_THROW_INPUT_ERROR_IF(name.starts_with("step-") && name.find(".unfinished-") == std::string::npos,
                                "--resume is never, but ", m_options.checkpoint_directory, " holds ", name,
                                "; give another --checkpoint-directory or remove it");
  }
}

template <class T>
void Trainer<T>::start_or_resume() {
  std::optional<CheckpointReader> reader;
  if (!m_options.checkpoint_directory.empty() && m_options.resume != "never")
    reader = CheckpointReader::load_newest(
        m_communicator, m_options.checkpoint_directory, m_state,
        [this](CheckpointReader const& candidate) { require_same_run(candidate); },
        [this](std::string const& reason) { say("checkpoint skipped: " + reason); });
  m_communicator.run_agreed([&] {
    SPOROS_THROW_INPUT_ERROR_IF(!reader && m_options.resume == "must", "--resume is must, but ",
                                m_options.checkpoint_directory, " holds no valid checkpoint");
    if (m_options.resume == "never" && m_options.checkpoint_every > 0) require_no_checkpoints();
  });
  if (reader) {
    m_access.parameters_changed();
    m_saved_step = m_state.step;
  } else {
    initialise_gpt(m_space, m_options.gpt, m_options.seed, m_state);
  }
  m_first_step = m_state.step;
  m_communicator.run_agreed([&] {
    if (!is_root()) return;
    m_log.emplace(m_options.log, m_first_step);
    if (reader) m_log->write({{"event", "resume"}, {"step", m_first_step}, {"checkpoint", reader->path()}});
  });
  if (m_options.checkpoint_every > 0) {
    m_writer = std::make_unique<CheckpointWriter>(
        m_communicator, CheckpointOptions{.directory = m_options.checkpoint_directory, .keep = int(m_options.keep)});
    m_signals.emplace();
  }
  announce();
  if (reader) say("resumed from " + reader->path());
}

template <class T>
void Trainer<T>::announce() {
  if (!is_root()) return;
  using Rows = std::vector<std::pair<std::string, std::string>>;
  Rows const options = m_options.table();
  Rows const run = {
      {"version", SPOROS_VERSION_STRING},
      {"ranks", std::to_string(m_communicator.size())},
      {"execution space",
       std::string(ExecutionSpace::name()) + ", concurrency " + std::to_string(m_space.concurrency())},
      {"parameters", std::to_string(m_options.gpt.parameters())},
      {"work per token", fixed(m_options.gpt.flops_per_token(m_options.sequence_length) / 1e6, 1) + " MFLOP"},
      {"training data", m_data.train_description() + ", " + std::to_string(m_data.train_samples()) + " sequences"},
      {"validation data", std::to_string(m_data.validation_samples) + " sequences"},
      {"first step", std::to_string(m_first_step)}};
  for (Rows const& rows : {run, options})
    for (auto const& [name, value] : rows)
      std::cout << "  " << name << std::string(name.size() < 26 ? 26 - name.size() : 1, ' ') << value << "\n";
  std::cout << std::flush;
  record({{"event", "settings"},
          {"step", m_first_step},
          {"title", Impl::concatenate(m_options.model, ", ", m_options.gpt.parameters(), " parameters, ",
                                      m_options.precision, ", ", m_communicator.size(),
                                      m_communicator.size() == 1 ? " rank, " : " ranks, ", ExecutionSpace::name())},
          {"run", run},
          {"options", options}});
}

template <class T>
auto Trainer<T>::train_step(Prefetcher<ExecutionSpace>& prefetcher) -> Step {
  double const scale = 1 / double(m_options.batch_tokens);
  std::size_t batches = 0;
  m_access.begin_step();
  for (std::size_t round = 0; round < m_rounds.size(); ++round) {
    m_access.begin_round(m_rounds[round], round + 1 == m_rounds.size());
    if (takes_part(m_rounds[round])) {
      Batch<ExecutionSpace> const batch = prefetcher.next();
      m_model.loss_and_gradients(batch.inputs, batch.targets, m_options.sequence_length, scale,
                                 {m_options.dropout, m_options.seed, m_state.step, batch.first_sequence},
                                 Kokkos::subview(m_losses, batches++));
    } else {
      m_model.attend(true);
    }
  }
  m_access.finish_step();

  enqueue_norms();
  Kokkos::deep_copy(m_space, m_losses_host, m_losses);
  m_space.fence("Sporos::train_gpt: losses and norms are read on the host");
  double const loss = total_loss({m_losses_host.data(), m_losses_host.data() + batches}) * scale;

  // A gradient with a NaN or an infinity teaches nothing: every rank sees it and leaves the weights as they are.
  double const squared = squared_norm();
  bool const skipped = !std::isfinite(squared);
  if (!skipped) update(m_options.clip > 0 ? clip_coefficient(squared, m_options.clip) : 1.0);
  ++m_state.step;
  return {loss, std::sqrt(squared), skipped};
}

template <class T>
void Trainer<T>::enqueue_norms() {
  std::int64_t begin = 0;
  for (OwnedPart const& part : m_state.owned()) {
    std::int64_t const end = begin + granules_of(part.range);
    squared_norms(m_space, m_state.part(m_state.gradients(), part), StateLayout::granule,
                  Kokkos::subview(m_norms, std::pair(begin, end)));
    begin = end;
  }
  Kokkos::deep_copy(m_space, m_norms_host, m_norms);
}

/// Of the whole gradient: the norms of all granules, added in their order, which is the same for any number of ranks
template <class T>
double Trainer<T>::squared_norm() const {
  auto const norms =
      m_communicator.all_gather(std::vector<double>(m_norms_host.data(), m_norms_host.data() + m_norms_host.extent(0)));
  std::vector<std::size_t> next(norms.size(), 0);
  double sum = 0;
  for (std::size_t unit = 0; unit < m_state.owned().size(); ++unit)
    for (int rank = 0; rank < m_communicator.size(); ++rank) {
      std::int64_t const granules = granules_of(m_state.layout().owned(unit, rank, m_communicator.size()));
      for (std::int64_t g = 0; g < granules; ++g) sum += norms[std::size_t(rank)][next[std::size_t(rank)]++];
    }
  return sum;
}

/// Of all ranks' micro-batches, in the order of their sequences
template <class T>
double Trainer<T>::total_loss(std::vector<double> const& mine) const {
  auto const losses = m_communicator.all_gather(mine);
  double sum = 0;
  if (!m_options.reproducible) {
    for (auto const& of_rank : losses) sum = std::accumulate(of_rank.begin(), of_rank.end(), sum);
    return sum;
  }
  for (std::size_t batch = 0; batch < losses.front().size(); ++batch)
    for (auto const& of_rank : losses)
      if (batch < of_rank.size()) sum += of_rank[batch];
  return sum;
}

/// Each rank updates what it owns, or all where nothing is shared out.
template <class T>
void Trainer<T>::update(double gradient_scale) {
  AdamWOptions adam{.learning_rate = learning_rate(m_options, m_state.step),
                    .beta1 = m_options.beta1,
                    .beta2 = m_options.beta2,
                    .step = m_state.step + 1};
  auto parts = m_state.owned();
  if (!m_state.is_shared(ZeroStage::optimizer)) parts = {{0, {0, m_state.layout().size()}, 0}};
  for (OwnedPart const& part : parts)
    for (TensorRange const& tensor : m_state.layout().tensors()) {
      Interval const common{std::max(part.range.first, tensor.offset),
                            std::min(part.range.last, tensor.offset + tensor.size)};
      if (common.size() <= 0) continue;
      OwnedPart const piece{part.unit, common, part.offset + common.first - part.range.first};
      adam.weight_decay = tensor.weight_decay ? m_options.weight_decay : 0;
      adamw(m_space, adam, gradient_scale, m_state.part(m_state.gradients(), piece),
            m_state.part(m_state.master(), piece), m_state.part(m_state.first_moment(), piece),
            m_state.part(m_state.second_moment(), piece), m_state.part(m_state.parameters(), piece));
    }
  m_access.parameters_changed();
}

template <class T>
std::int64_t Trainer<T>::validation_sequences(std::int64_t batches) const {
  return batches == 0 ? m_data.validation_samples
                      : std::min(m_data.validation_samples, batches * m_options.global_batch);
}

/// Mean loss over the first `batches` global batches of the validation data, or with 0 over all of it. Its sequences lie one after
/// another, so a micro-batch is read in one go.
template <class T>
double Trainer<T>::evaluate(std::int64_t batches) {
  std::int64_t const length = m_options.sequence_length;
  std::int64_t const sequences = validation_sequences(batches);
  BatchPlan const shares = plan(sequences);
  std::int64_t const largest = shares.micro_batch * length;
  Kokkos::View<int*, MemorySpace> const tokens("Sporos::train_gpt::validation_tokens", std::size_t(2 * largest));
  auto const tokens_host = Kokkos::create_mirror_view(tokens);
  std::vector<int> read(std::size_t(largest + 1));
  Kokkos::View<double, MemorySpace> const loss("Sporos::train_gpt::validation_loss");
  std::vector<double> losses;
  for (std::vector<int> const& ranks : shares.rounds()) {
    if (!takes_part(ranks)) {
      m_model.attend(false);
      continue;
    }
    auto const [first, count_of_sequences] = shares[std::int64_t(losses.size())];
    std::int64_t const count = count_of_sequences * length;
    m_data.validation->read(m_data.validation_range.first + first * length, count + 1, read.data());
    std::copy_n(read.begin(), count, tokens_host.data());
    std::copy_n(read.begin() + 1, count, tokens_host.data() + count);
    Kokkos::deep_copy(m_space, tokens, tokens_host);
    using Range = Kokkos::pair<std::int64_t, std::int64_t>;
    m_model.loss(Kokkos::subview(tokens, Range(0, count)), Kokkos::subview(tokens, Range(count, 2 * count)), length,
                 loss);
    Kokkos::deep_copy(m_space, losses.emplace_back(), loss);
    m_space.fence("Sporos::train_gpt: the validation loss is read on the host");
  }
  return total_loss(losses) / double(sequences * length);
}

template <class T>
void Trainer<T>::evaluate_and_record() {
  double const loss = evaluate(m_options.evaluate_batches);
  say(Impl::concatenate("step ", m_state.step, "  validation loss ", fixed(loss, 4)));
  record({{"event", "evaluation"}, {"step", m_state.step}, {"validation_loss", loss}});
}

template <class T>
void Trainer<T>::sample_and_record() {
  // Where parameters are shared out, all ranks compute what rank 0 writes.
  if (!is_root() && !m_state.is_shared(ZeroStage::optimizer)) return;
  SamplingOptions options;
  options.tokens = m_options.sample_tokens;
  options.seed = m_options.seed;
  std::string const text = m_data.tokenizer->decode(
      sample_tokens(m_space, m_model, m_data.tokenizer->encode(m_options.sample_prompt), options));
  if (!is_root()) return;
  say(Impl::concatenate("step ", m_state.step, "  sample:\n", text));
  record({{"event", "sample"}, {"step", m_state.step}, {"prompt", m_options.sample_prompt}, {"text", text}});
}

template <class T>
void Trainer<T>::save() {
  m_writer->save(m_state, metadata(), m_state.step);
  m_saved_step = m_state.step;
  record({{"event", "checkpoint"}, {"step", m_state.step}});
}

template <class T>
void Trainer<T>::record_step(Step const& step, double seconds, double waited, double stalled) {
  double const tokens_per_second = double(m_options.batch_tokens) / seconds;
  record({{"event", "step"},
          {"step", m_state.step},
          {"loss", step.loss},
          {"gradient_norm", step.gradient_norm},
          {"skipped", step.skipped},
          {"learning_rate", learning_rate(m_options, m_state.step - 1)},
          {"tokens", m_options.batch_tokens},
          {"seconds", seconds},
          {"tokens_per_second", tokens_per_second},
          {"data_wait_seconds", waited},
          {"checkpoint_stall_seconds", stalled}});
  if (step.skipped)
    say(Impl::concatenate("step ", m_state.step, "  the gradient is not finite: weights left as they are"));
  if (m_progress) m_progress->step(m_state.step, step.loss, tokens_per_second);
}

/// A signal may reach the ranks in different steps, or one rank alone: all stop after the same step.
template <class T>
bool Trainer<T>::stop_is_due() {
  return m_writer && m_communicator.all_reduce_max(std::int64_t(m_signals->received())) != 0;
}

template <class T>
void Trainer<T>::stop() {
  if (m_saved_step != m_state.step) save();
  m_writer->wait();
  record({{"event", "stopped"}, {"step", m_state.step}});
  renew_report();
  say(Impl::concatenate("step ", m_state.step, "  stopped by a signal; saved in ", m_options.checkpoint_directory,
                        ", --resume goes on from there"));
}

/// Of the rank that needs most of each kind. Known after the first step, in which buffers have grown to what they will be.
template <class T>
void Trainer<T>::record_memory() {
  auto const state = m_state.bytes();
  auto const access = m_access.bytes();
  std::pair<char const*, std::size_t> const kinds[] = {
      {"parameters", state.parameters},       {"gradients", state.gradients},
      {"optimizer", state.optimizer},         {"gathered_parameters", access.parameters},
      {"gradients_in_use", access.gradients}, {"communication", access.communication},
      {"activations", m_model.bytes()}};
  nlohmann::json json = {{"event", "memory"}, {"step", m_state.step}};
  std::string text;
  for (auto const& [kind, bytes] : kinds) {
    std::int64_t const largest = m_communicator.all_reduce_max(std::int64_t(bytes));
    json[kind] = largest;
    text += Impl::concatenate(text.empty() ? "" : ", ", kind, " ", fixed(double(largest) / 1e6, 1));
  }
  say("MB per rank: " + text);
  record(json);
}

template <class T>
void Trainer<T>::finish() {
  if (m_writer) {
    if (m_saved_step != m_state.step) save();
    m_writer->wait();
    say("checkpoints are in " + m_options.checkpoint_directory);
  }
  nlohmann::json last = {{"event", "final"}, {"step", m_state.step}};
  if (m_data.validation_samples > 0) {
    std::int64_t const batches = m_options.final_evaluate_batches;
    double const loss = evaluate(batches);
    last["validation_loss"] = loss;
    std::string text = "final validation loss " + fixed(loss, 6);
    if (m_options.print_bigram_baseline && is_root()) {
      DataSource const& source = m_data.train.sources().front();
      TokenRange same = m_data.validation_range;
      same.last = same.first + validation_sequences(batches) * m_options.sequence_length + 1;
      double const bigram = BigramModel(source.dataset, source.range).loss(*m_data.validation, same);
      last["bigram_loss"] = bigram;
      text += "  (bigram model with add-one smoothing: " + fixed(bigram, 6) + ")";
    }
    say(text);
  }
  record(last);
  renew_report();
  say("the log is " + m_options.log);
  if (!m_options.report.empty()) say("the report is " + m_options.report);
}

template <class T>
bool Trainer<T>::run() {
  start_or_resume();
  if (is_root()) m_progress.emplace(m_first_step, m_options.steps);
  Prefetcher<ExecutionSpace> prefetcher(m_space, m_data.train, plan(m_options.global_batch));
  auto const due = [this](std::int64_t every) { return every > 0 && m_state.step % every == 0; };
  double waited = 0, stalled = 0;
  while (m_state.step < m_options.steps) {
    Clock::time_point const start = Clock::now();
    Step const step = train_step(prefetcher);
    // Into the time of the step goes what its checkpoint costs; evaluations and samples are nobody's throughput.
    if (m_writer && due(m_options.checkpoint_every)) save();
    double const seconds = seconds_since(start);
    double const all_waited = prefetcher.seconds_waited();
    double const all_stalled = m_writer ? m_writer->seconds_stalled() : 0;
    record_step(step, seconds, all_waited - waited, all_stalled - stalled);
    if (m_state.step == m_first_step + 1) record_memory();
    waited = all_waited;
    stalled = all_stalled;

    bool const is_last = m_state.step == m_options.steps;
    if (!is_last && stop_is_due()) {
      stop();
      return false;
    }
    if (due(m_options.evaluate_every) && !is_last) evaluate_and_record();
    if (due(m_options.sample_every) || (is_last && m_options.sample_every > 0)) sample_and_record();
    if (due(m_options.evaluate_every)) renew_report();
  }
  finish();
  return true;
}

/// One rank has met what the others do not know of: they may be waiting for it for ever.
[[noreturn]] void abandon(Communicator const& communicator, std::exception const& error) {
  // The same error on all ranks is printed by rank 0 alone, which ends the others while they sleep.
  if (communicator.rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  std::cerr << "train_gpt: (rank " << communicator.rank() << ") " << error.what() << std::endl;
  MpiEnvironment::abort(1);
}

template <class T>
bool run_trainer(Communicator const& communicator, TrainOptions const& options, Data const& data) {
  std::unique_ptr<Trainer<T>> trainer;
  try {
    trainer = std::make_unique<Trainer<T>>(communicator, options, data);
    return trainer->run();
  } catch (AgreedError const&) {
    throw;
  } catch (std::exception const& error) {
    abandon(communicator, error);  // before the trainer is destroyed, which takes all ranks
  }
}

}  // namespace

bool train(Communicator const& communicator, TrainOptions const& options) {
  std::optional<Data> data;
  communicator.run_agreed([&] { data.emplace(open_data(options)); });
  if (options.precision == "bf16") return run_trainer<bfloat16>(communicator, options, *data);
  if (options.precision == "fp64") return run_trainer<double>(communicator, options, *data);
  return run_trainer<float>(communicator, options, *data);
}

}  // namespace Sporos::Gpt
