// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "Sporos_DataMixture.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_Prefetcher.hpp"
#include "TokenFiles.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::DataMixture, Sporos::DataSource, Sporos::SampleOrder, Sporos::TokenDataset, Sporos::WeightedTurns;
using namespace Sporos::Testing;

TEST_CASE("Sources take turns in proportion at every moment, each without gaps", "[io][mixture]") {
  for (std::vector<double> const& weights :
       {std::vector<double>{1}, {1, 1}, {0.7, 0.3}, {1, 1000}, {3, 2, 1}, {1e-3, 0.5, 2, 40, 1}}) {
    WeightedTurns const turns(weights);
    double const total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<std::int64_t> taken(weights.size(), 0);
    for (std::int64_t n = 0; n < 20000; ++n) {
      auto const turn = turns(n);
      REQUIRE(turn.source < weights.size());
      REQUIRE(turn.counter == taken[turn.source]);
      ++taken[turn.source];
      for (std::size_t s = 0; s < weights.size(); ++s) {
        CAPTURE(n, s);
        // Each source before it in the chain rounds once.
        REQUIRE(std::abs(double(taken[s]) - double(n + 1) * weights[s] / total) <= double(s) + 1);
      }
    }
  }
}

TEST_CASE("Turns far on in a run neither overflow nor lose their place", "[io][mixture]") {
  WeightedTurns const turns({0.6, 0.3, 0.1});
  std::int64_t const start = std::int64_t(1) << 60;
  std::map<std::size_t, std::int64_t> next;
  for (std::int64_t n = start; n < start + 1000; ++n) {
    auto const turn = turns(n);
    if (next.count(turn.source)) REQUIRE(turn.counter == next[turn.source]);
    next[turn.source] = turn.counter + 1;
  }
  REQUIRE(next.size() == 3);
  REQUIRE(std::abs(double(next[0]) / double(start) - 0.6) < 1e-8);
  REQUIRE(std::abs(double(next[2]) / double(start) - 0.1) < 1e-8);
}

TEST_CASE("Weights that are none are refused", "[io][mixture]") {
  double const nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (std::vector<double> const& weights : {std::vector<double>{}, {0}, {1, 0}, {1, -2}, {nan}, {infinity, 1}})
    REQUIRE_THROWS_AS(WeightedTurns(weights), Sporos::InvalidArgument);
  REQUIRE_THROWS_AS(WeightedTurns({1})(-1), Sporos::InvalidArgument);
}

/// Source s holds the tokens 1000·s, 1000·s + 1, …, so that a token says where it is from.
class Sources {
 public:
  static constexpr int length = 5;

  Sources() {
    for (int s = 0; s < 2; ++s) {
      std::vector<int> tokens(std::size_t(sizes[s] * length + 1));
      std::iota(tokens.begin(), tokens.end(), 1000 * s);
      m_files.emplace_back(std::make_unique<TemporaryFile>("tokens.bin", uint16_tokens(tokens)));
    }
  }

  DataMixture mixture(double first_weight, double second_weight) const {
    std::vector<DataSource> sources;
    for (std::size_t s = 0; s < 2; ++s) {
      TokenDataset const dataset = TokenDataset::open(m_files[s]->path(), 65536);
      sources.push_back({dataset, dataset.all(), SampleOrder(sizes[s], 7 + s), s == 0 ? first_weight : second_weight});
    }
    return DataMixture(sources, length);
  }

  static constexpr std::int64_t sizes[] = {40, 12};

 private:
  std::vector<std::unique_ptr<TemporaryFile>> m_files;
};

TEST_CASE("A mixture visits each sample of a source once an epoch of that source", "[io][mixture]") {
  Sources const sources;
  DataMixture const mixture = sources.mixture(3, 1);
  std::vector<int> window(Sources::length + 1);
  std::vector<std::vector<int>> visits{std::vector<int>(40, 0), std::vector<int>(12, 0)};
  for (std::int64_t counter = 0; counter < 160; ++counter) {  // 120 of the first, 40 of the second
    mixture.read(counter, window.data());
    auto const source = std::size_t(window[0] / 1000);
    int const sample = window[0] % 1000 / Sources::length;
    for (int i = 0; i <= Sources::length; ++i) REQUIRE(window[std::size_t(i)] == window[0] + i);
    ++visits[source][std::size_t(sample)];
  }
  for (int const visit : visits[0]) REQUIRE(visit == 3);
  for (int const visit : visits[1]) REQUIRE((visit == 3 || visit == 4));
}

TEST_CASE("The global batches of a mixture are the same on any number of ranks", "[io][mixture]") {
  Sources const sources;
  Kokkos::DefaultExecutionSpace const space;
  std::int64_t const global_batch = 6, steps = 9, first_step = 4;
  std::vector<std::vector<int>> reference;
  for (int const ranks : {1, 2, 3, 5, 7}) {
    std::vector<std::vector<int>> batches(steps);
    for (int rank = 0; rank < ranks; ++rank) {
      Sporos::Prefetcher prefetcher(space, sources.mixture(0.7, 0.3), {global_batch, 2, rank, ranks, first_step});
      for (std::int64_t step = 0; step < steps; ++step)
        for (std::int64_t b = 0; b < prefetcher.batches_per_step(); ++b) {
          auto const batch = prefetcher.next();
          auto const inputs = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), batch.inputs);
          auto& all = batches[std::size_t(step)];
          all.insert(all.end(), inputs.data(), inputs.data() + inputs.extent(0));
        }
    }
    if (ranks == 1) reference = batches;
    CAPTURE(ranks);
    REQUIRE(batches == reference);
    REQUIRE(std::int64_t(batches[0].size()) == global_batch * Sources::length);
  }
}

TEST_CASE("A source with an order of another length, or too short, is refused", "[io][mixture]") {
  TemporaryFile const file("tokens.bin", uint16_tokens(std::vector<int>(11, 1)));
  TokenDataset const dataset = TokenDataset::open(file.path(), 10);
  REQUIRE_THROWS_WITH(DataMixture({{dataset, dataset.all(), SampleOrder(3, 1), 1.0}}, 5),
                      ContainsSubstring("one of 3 samples") && ContainsSubstring("hold 2 of length 5"));
  REQUIRE_THROWS_WITH(DataMixture({{dataset, dataset.all(), SampleOrder(1, 1), 1.0}}, 11),
                      ContainsSubstring(file.path()) && ContainsSubstring("needs 12"));
}

}  // namespace
