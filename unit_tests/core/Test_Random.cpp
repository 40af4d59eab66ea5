// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdint>
#include <set>

#include "Sporos_Random.hpp"

namespace {

using Words = std::array<std::uint32_t, 4>;

Words philox(std::array<std::uint32_t, 2> key, Words counter) {
  std::uint32_t const k[2] = {key[0], key[1]};
  std::uint32_t const c[4] = {counter[0], counter[1], counter[2], counter[3]};
  auto const block = Sporos::philox4x32(k, c);
  return {block.word[0], block.word[1], block.word[2], block.word[3]};
}

// The known answers that the authors of Philox publish with Random123
TEST_CASE("Philox4x32-10 gives the published answers", "[core][random]") {
  CHECK(philox({0, 0}, {0, 0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("A stream is Philox keyed by the seed, counting blocks of four elements", "[core][random]") {
  std::uint64_t const seed = 0x0123456789abcdef, stream = 0xfedcba9876543210, element = 0x0000000700000005;
  Words const expected = philox({0x89abcdef, 0x01234567}, {std::uint32_t(element / 4), 1, 0x76543210, 0xfedcba98});
  Sporos::RandomStream const random(seed, stream);
  for (std::uint64_t j = 0; j < 4; ++j) CHECK(random.bits(element / 4 * 4 + j) == expected[j]);
  STATIC_REQUIRE(Sporos::RandomStream(1, 2).bits(3) == Sporos::RandomStream(1, 2).block(0).word[3]);
}

TEST_CASE("Many blocks at once are the blocks one after another", "[core][random]") {
  constexpr int count = 7;
  Sporos::RandomStream const random(0x0123456789abcdef, 0xfedcba9876543210);
  for (std::uint64_t first :
       {std::uint64_t(0), std::uint64_t(0xfffffffd)}) {  // the counter carries into its upper half
    std::uint32_t words[4 * count];
    random.blocks<count>(first, words);
    for (int i = 0; i < 4 * count; ++i) CHECK(words[i] == random.block(first + std::uint64_t(i / 4)).word[i % 4]);
  }
}

TEST_CASE("Streams and seeds draw different numbers", "[core][random]") {
  std::set<std::uint32_t> seen;
  for (std::uint64_t seed : {0ull, 1ull, 1ull << 32})
    for (std::uint64_t stream : {0ull, 1ull, 1ull << 32})
      for (std::uint64_t element : {0ull, 1ull, 4ull, 1ull << 34})
        seen.insert(Sporos::RandomStream(seed, stream).bits(element));
  CHECK(seen.size() == 36);
}

// Mean and variance of n uniform numbers, within four standard deviations of each
TEST_CASE("uniform() is uniform in the open unit interval", "[core][random]") {
  constexpr int n = 200000;
  Sporos::RandomStream const random(3, 4);
  double sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) {
    double const u = random.uniform(std::uint64_t(i));
    REQUIRE(u > 0);
    REQUIRE(u < 1);
    sum += u;
    squares += (u - 0.5) * (u - 0.5);
  }
  CHECK(std::abs(sum / n - 0.5) < 4 * std::sqrt(1.0 / 12 / n));
  CHECK(std::abs(squares / n - 1.0 / 12) < 4 * std::sqrt(1.0 / 180 / n));
}

TEST_CASE("Dropout keeps with probability 1 - p and scales by 1 / (1 - p)", "[core][random]") {
  constexpr int n = 100000;
  for (double p : {0.1, 0.37, 0.9}) {
    Sporos::Dropout const dropout{.probability = p, .seed = 5, .stream = 6};
    CHECK(dropout.active());
    CHECK(std::abs(dropout.scale() * (1 - p) - 1) < 1e-15);
    int kept = 0;
    for (int i = 0; i < n; ++i) kept += dropout.keeps(std::uint64_t(i));
    CHECK(std::abs(double(kept) / n - (1 - p)) < 4 * std::sqrt(p * (1 - p) / n));
  }
}

TEST_CASE("Dropout of a part is that part of the dropout", "[core][random]") {
  Sporos::Dropout const whole{.probability = 0.5, .seed = 5, .stream = 6};
  Sporos::Dropout const part{.probability = 0.5, .seed = 5, .stream = 6, .first_element = (1ull << 33) + 3};
  int same = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    CHECK(part.keeps(i) == whole.keeps(i + part.first_element));
    same += part.keeps(i) == whole.keeps(i);
  }
  CHECK(same < 100);
}

TEST_CASE("Dropout with probability 0 keeps everything", "[core][random]") {
  Sporos::Dropout const dropout;
  CHECK_FALSE(dropout.active());
  CHECK(dropout.scale() == 1);
  for (std::uint64_t i = 0; i < 1000; ++i) REQUIRE(dropout.keeps(i));
}

}  // namespace
