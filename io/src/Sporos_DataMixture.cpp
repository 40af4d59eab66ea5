// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_DataMixture.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "Sporos_Error.hpp"

namespace Sporos {
namespace {

std::vector<double> weights_of(std::vector<DataSource> const& sources) {
  std::vector<double> weights;
  for (DataSource const& source : sources) weights.push_back(source.weight);
  return weights;
}

/// ⌊p · part / whole⌋ for part <= whole < 2^31, where p · part alone could overflow
std::int64_t share_of(std::int64_t p, std::int64_t part, std::int64_t whole) {
  return p / whole * part + p % whole * part / whole;
}

}  // namespace

WeightedTurns::WeightedTurns(std::vector<double> const& weights) {
  SPOROS_THROW_IF(weights.empty(), "there are no weights");
  double total = 0;
  for (double const weight : weights) {
    SPOROS_THROW_IF(!(weight > 0 && std::isfinite(weight)), "a weight is ", weight, "; it must be above 0 and finite");
    total += weight;
  }
  SPOROS_THROW_IF(weights.size() > 1'000'000 || !std::isfinite(total), weights.size(), " weights with the sum ", total);
  for (double const weight : weights)
    m_weights.push_back(std::max<std::int64_t>(1, std::llround(weight / total * double(1 << 30))));
  m_rests = m_weights;
  for (std::size_t s = m_rests.size() - 1; s-- > 0;) m_rests[s] += m_rests[s + 1];
}

WeightedTurns::Turn WeightedTurns::operator()(std::int64_t global_counter) const {
  SPOROS_THROW_IF(global_counter < 0, "the counter is ", global_counter, "; it must not be negative");
  std::int64_t p = global_counter;
  std::size_t source = 0;
  for (; source + 1 < m_weights.size(); ++source) {
    std::int64_t const before = share_of(p, m_weights[source], m_rests[source]);
    if (share_of(p + 1, m_weights[source], m_rests[source]) > before) return {source, before};
    p -= before;
  }
  return {source, p};
}

DataMixture::DataMixture(std::vector<DataSource> sources, std::int64_t sequence_length)
    : m_sources(std::move(sources)), m_sequence_length(sequence_length), m_turns(weights_of(m_sources)) {
  for (DataSource const& source : m_sources) {
    std::int64_t const samples = source.dataset.samples(source.range, sequence_length);
    SPOROS_THROW_IF(source.order.samples() != samples, "the order is one of ", source.order.samples(),
                    " samples; tokens [", source.range.first, ", ", source.range.last, ") hold ", samples,
                    " of length ", sequence_length);
  }
}

void DataMixture::read(std::int64_t global_counter, int* tokens) const {
  WeightedTurns::Turn const turn = m_turns(global_counter);
  DataSource const& source = m_sources[turn.source];
  std::int64_t const sample = source.order(turn.counter);
  source.dataset.read(source.range.first + sample * m_sequence_length, m_sequence_length + 1, tokens);
}

}  // namespace Sporos
