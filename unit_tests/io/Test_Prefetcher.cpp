// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "Sporos_Prefetcher.hpp"
#include "TokenFiles.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::BatchPlan;
using Sporos::SampleOrder;
using Sporos::TokenDataset;
using Space = Kokkos::DefaultExecutionSpace;
using Prefetcher = Sporos::Prefetcher<Space>;
using namespace Sporos::Testing;

std::vector<int> numbered_tokens(int count) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

template <class View>
std::vector<int> to_host(View const& view) {
  auto const mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return std::vector<int>(mirror.data(), mirror.data() + mirror.extent(0));
}

/// The tokens of a file are their own positions, so that a batch says by itself where it was read.
struct Numbered {
  static constexpr int length = 6;
  static constexpr int first = 100;
  static constexpr int samples = 50;
  TemporaryFile file = TemporaryFile("tokens.bin", uint16_tokens(numbered_tokens(1000)));
  TokenDataset dataset = TokenDataset::open(file.path(), 1000);
  Sporos::TokenRange range = {first, first + samples* length + 1};
  SampleOrder order = SampleOrder(samples, 3);
  Space space;

  std::vector<int> expected(std::int64_t counter, std::int64_t count, int shift) const {
    std::vector<int> tokens;
    for (std::int64_t s = counter; s < counter + count; ++s)
      for (int i = 0; i < length; ++i) tokens.push_back(int(first + order(s) * length + i + shift));
    return tokens;
  }
};

// 24 steps of 7 sequences: three epochs and a bit. Shares that do not divide, micro-batches that do not, more ranks than
// sequences: always the same global batches.
TEST_CASE("All ranks together read each step's samples in order, whatever their number", "[io][prefetcher]") {
  Numbered const data;
  constexpr std::int64_t global_batch = 7, first_step = 2, steps = 24;
  for (int const ranks : {1, 2, 3, 4, 7, 9})
    for (std::int64_t const micro_batch : {1, 2, 5, 100}) {
      CAPTURE(ranks, micro_batch);
      std::vector<std::vector<int>> inputs(steps), targets(steps);
      for (int rank = 0; rank < ranks; ++rank) {
        BatchPlan const plan{global_batch, micro_batch, rank, ranks, first_step};
        Prefetcher prefetcher(data.space, data.dataset, data.range, data.order, Numbered::length, plan);
        Sporos::Share const share(global_batch, rank, ranks);
        for (std::int64_t step = 0; step < steps; ++step) {
          std::int64_t sequence = share.first;
          for (std::int64_t b = 0; b < prefetcher.batches_per_step(); ++b) {
            auto const batch = prefetcher.next();
            REQUIRE(batch.step == first_step + step);
            REQUIRE(batch.first_sequence == sequence);
            REQUIRE(batch.count >= 1);
            REQUIRE(batch.count <= micro_batch);
            REQUIRE(std::int64_t(batch.inputs.extent(0)) == batch.count * Numbered::length);
            REQUIRE(std::int64_t(batch.targets.extent(0)) == batch.count * Numbered::length);
            for (int const token : to_host(batch.inputs)) inputs[std::size_t(step)].push_back(token);
            for (int const token : to_host(batch.targets)) targets[std::size_t(step)].push_back(token);
            sequence += batch.count;
          }
          REQUIRE(sequence == share.last);
        }
      }
      for (std::int64_t step = 0; step < steps; ++step) {
        std::int64_t const counter = (first_step + step) * global_batch;
        REQUIRE(inputs[std::size_t(step)] == data.expected(counter, global_batch, 0));
        REQUIRE(targets[std::size_t(step)] == data.expected(counter, global_batch, 1));
      }
    }
}

// The reading thread gets all the time it wants to overwrite what it must not.
TEST_CASE("A batch stays as it is until the next one is asked for", "[io][prefetcher]") {
  Numbered const data;
  Prefetcher prefetcher(data.space, data.dataset, data.range, data.order, Numbered::length, {4, 2, 0, 1, 0});
  for (std::int64_t b = 0; b < 8; ++b) {
    auto const batch = prefetcher.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    REQUIRE(to_host(batch.inputs) == data.expected(2 * b, 2, 0));
    REQUIRE(to_host(batch.targets) == data.expected(2 * b, 2, 1));
  }
  REQUIRE(prefetcher.seconds_waited() >= 0);
}

TEST_CASE("An error of the reading thread reaches the caller after the batches before it, again and again",
          "[io][prefetcher]") {
  std::vector<int> tokens = numbered_tokens(1000);
  tokens[305] = 5000;
  TemporaryFile const file("tokens.bin", uint16_tokens(tokens));
  Prefetcher prefetcher(Space(), TokenDataset::open(file.path(), 1000), {0, 1000}, SampleOrder::sequential(99), 10,
                        {5, 5, 0, 1, 0});
  for (std::int64_t b = 0; b < 6; ++b) REQUIRE(to_host(prefetcher.next().inputs).front() == 50 * b);
  for (int again = 0; again < 3; ++again)
    REQUIRE_THROWS_WITH(prefetcher.next(),
                        ContainsSubstring(file.path() + ": token 305 is 5000; the vocabulary has 1000 tokens"));
}

TEST_CASE("A file that is cut while it is read gives an error", "[io][prefetcher]") {
  Numbered const data;
  Prefetcher prefetcher(data.space, data.dataset, data.range, data.order, Numbered::length, {4, 2, 0, 1, 0});
  (void)prefetcher.next();
  REQUIRE(::truncate(data.file.path().c_str(), 0) == 0);
  auto const read_on = [&] {
    for (int b = 0; b < 4; ++b) (void)prefetcher.next();  // two may have been read before
  };
  REQUIRE_THROWS_WITH(read_on(), ContainsSubstring(data.file.path() + ": ends at byte"));
}

TEST_CASE("A prefetcher can be left at any moment", "[io][prefetcher]") {
  Numbered const data;
  for (int taken = 0; taken < 5; ++taken)
    for (int again = 0; again < 20; ++again) {
      Prefetcher prefetcher(data.space, data.dataset, data.range, data.order, Numbered::length, {4, 2, 0, 1, 0});
      for (int b = 0; b < taken; ++b) (void)prefetcher.next();
    }
  SUCCEED("every thread was joined");
}

TEST_CASE("A rank without a share has no batches", "[io][prefetcher]") {
  Numbered const data;
  Prefetcher prefetcher(data.space, data.dataset, data.range, data.order, Numbered::length, {2, 1, 0, 3, 0});
  REQUIRE(prefetcher.batches_per_step() == 0);
  REQUIRE_THROWS_WITH(prefetcher.next(), ContainsSubstring("rank 0 of 3 has no share of 2 sequences"));
}

TEST_CASE("A plan that makes no sense is refused", "[io][prefetcher]") {
  Numbered const data;
  auto const make = [&](BatchPlan const& plan, SampleOrder const& order, Sporos::TokenRange range, int length) {
    Prefetcher prefetcher(data.space, data.dataset, range, order, length, plan);
  };
  for (BatchPlan const& plan : {BatchPlan{0, 1, 0, 1, 0}, BatchPlan{1, 0, 0, 1, 0}, BatchPlan{1, 1, 1, 1, 0},
                                BatchPlan{1, 1, -1, 1, 0}, BatchPlan{1, 1, 0, 0, 0}, BatchPlan{1, 1, 0, 1, -1}})
    REQUIRE_THROWS_AS(make(plan, data.order, data.range, Numbered::length), Sporos::InvalidArgument);
  REQUIRE_THROWS_WITH(make({}, SampleOrder(49, 3), data.range, Numbered::length),
                      ContainsSubstring("one of 49 samples; tokens [100, 401) hold 50 of length 6"));
  REQUIRE_THROWS_AS(make({}, data.order, {0, 6}, Numbered::length), Sporos::InputError);
}

TEST_CASE("Interleaved micro-batches are the same on any number of ranks", "[io][prefetcher]") {
  Numbered const data;
  for (std::int64_t const micro_batch : {1, 3, 4, 100}) {
    std::int64_t const global_batch = 10;
    for (int const ranks : {1, 2, 3, 4, 12}) {
      CAPTURE(ranks, micro_batch);
      std::vector<std::vector<int>> batches;  // by their place in the global batch
      for (int rank = 0; rank < ranks; ++rank) {
        BatchPlan const plan{global_batch, micro_batch, rank, ranks, 2, true};
        Prefetcher prefetcher(data.space, data.dataset, data.range, data.order, Numbered::length, plan);
        for (std::int64_t b = 0; b < prefetcher.batches_per_step(); ++b) {
          auto const batch = prefetcher.next();
          std::int64_t const place = b * ranks + rank;
          REQUIRE(batch.step == 2);
          REQUIRE(batch.first_sequence == place * std::min(micro_batch, global_batch));
          batches.resize(std::max(batches.size(), std::size_t(place + 1)));
          batches[std::size_t(place)] = to_host(batch.inputs);
          REQUIRE(std::int64_t(batches[std::size_t(place)].size()) == batch.count * Numbered::length);
        }
      }
      std::vector<int> all;
      for (auto const& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
      REQUIRE(std::int64_t(batches.size()) == (BatchPlan{global_batch, micro_batch}.micro_batches()));
      REQUIRE(all == data.expected(2 * global_batch, global_batch, 0));
    }
  }
}

TEST_CASE("A plan says which ranks are at work in each round", "[io][prefetcher]") {
  using Rounds = std::vector<std::vector<int>>;
  // Shares of 2, 2 and 3 sequences: the ranks with fewer micro-batches come in last.
  REQUIRE(BatchPlan{7, 2, 0, 3}.rounds() == Rounds{{2}, {0, 1, 2}});
  REQUIRE(BatchPlan{7, 2, 1, 3, 0, true}.rounds() == Rounds{{0, 1, 2}, {0}});
  REQUIRE(BatchPlan{2, 1, 0, 3, 0, true}.rounds() == Rounds{{0, 1}});
  REQUIRE(BatchPlan{1, 8, 0, 1}.rounds() == Rounds{{0}});
}

TEST_CASE("Shares are contiguous, complete and differ by at most one", "[io][prefetcher]") {
  for (std::int64_t const total :
       {std::int64_t(0), std::int64_t(1), std::int64_t(7), std::int64_t(64), std::int64_t(1) << 60})
    for (int const ranks : {1, 2, 3, 7, 1000}) {
      std::int64_t next = 0, smallest = total, largest = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        Sporos::Share const share(total, rank, ranks);
        REQUIRE(share.first == next);
        next = share.last;
        smallest = std::min(smallest, share.size());
        largest = std::max(largest, share.size());
      }
      REQUIRE(next == total);
      REQUIRE(largest - smallest <= 1);
    }
}

}  // namespace
