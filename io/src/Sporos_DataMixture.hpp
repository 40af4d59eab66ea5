// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_DATAMIXTURE_HPP
#define SPOROS_DATAMIXTURE_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "Sporos_SampleOrder.hpp"
#include "Sporos_TokenDataset.hpp"

namespace Sporos {

/// In which proportions several sources take turns. A function of the global counter alone: no memory but one number a source,
/// starts anywhere, the same for any number of ranks.
///
/// Of the first n counters source s gets n · weight_s / Σ weight, rounded, for every n: with a_s = weight_s and A_s = Σ a_r over
/// r >= s, counter p of those that come to source s is its own if ⌊(p + 1) a_s / A_s⌋ > ⌊p a_s / A_s⌋ (Bresenham's line), and
/// its number ⌊p a_s / A_s⌋ there; else it is number p − ⌊p a_s / A_s⌋ of those that come to source s + 1. So each
/// source is walked through without gaps.
class WeightedTurns {
 public:
  struct Turn {
    std::size_t source = 0;
    std::int64_t counter = 0;  ///< how many turns the source has had before
  };

  /// Weights are rounded to multiples of 2^-30 of their sum.
  /// \throws InvalidArgument unless there is one at least and all are above 0 and finite
  explicit WeightedTurns(std::vector<double> const& weights);

  Turn operator()(std::int64_t global_counter) const;

 private:
  std::vector<std::int64_t> m_weights;
  std::vector<std::int64_t> m_rests;  // sums from here to the end
};

/// One source of training data
struct DataSource {
  TokenDataset dataset;
  TokenRange range;
  SampleOrder order;  ///< of the samples of the range
  double weight = 1;
};

/// What a run is trained on: samples of one or several sources, mixed by their weights. A source that is at its end begins
/// anew, in another order, as often as its weight demands.
class DataMixture {
 public:
  /// \throws InputError when a range holds no sample, InvalidArgument when an order is one of another number of samples
  DataMixture(std::vector<DataSource> sources, std::int64_t sequence_length);

  std::int64_t sequence_length() const { return m_sequence_length; }
  std::vector<DataSource> const& sources() const { return m_sources; }

  /// The sequence_length + 1 tokens of the sample that is visited as number `global_counter` >= 0 of the run
  void read(std::int64_t global_counter, int* tokens) const;

 private:
  std::vector<DataSource> m_sources;
  std::int64_t m_sequence_length;
  WeightedTurns m_turns;
};

}  // namespace Sporos

#endif
