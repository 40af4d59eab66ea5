// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_RANDOM_HPP
#define SPOROS_RANDOM_HPP

#include <cstdint>

#include "Sporos_Macros.hpp"

namespace Sporos {

/// Four words of random bits
struct Philox4x32Block {
  std::uint32_t word[4];
};

SPOROS_FUNCTION constexpr void philox4x32_round(std::uint32_t k0, std::uint32_t k1, std::uint32_t& c0,
                                                std::uint32_t& c1, std::uint32_t& c2, std::uint32_t& c3) {
  std::uint64_t const product0 = std::uint64_t(0xD2511F53u) * c0;
  std::uint64_t const product1 = std::uint64_t(0xCD9E8D57u) * c2;
  c0 = std::uint32_t(product1 >> 32) ^ c1 ^ k0;
  c1 = std::uint32_t(product1);
  c2 = std::uint32_t(product0 >> 32) ^ c3 ^ k1;
  c3 = std::uint32_t(product0);
}

SPOROS_FUNCTION constexpr void philox4x32_next_key(std::uint32_t& k0, std::uint32_t& k1) {
  k0 += 0x9E3779B9u;
  k1 += 0xBB67AE85u;
}

/// Philox4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a keyed bijection
/// of a 128-bit counter. No state: who knows (key, counter) knows the numbers, on any backend and in any order.
SPOROS_FUNCTION constexpr Philox4x32Block philox4x32(std::uint32_t const (&key)[2], std::uint32_t const (&counter)[4]) {
  std::uint32_t k0 = key[0], k1 = key[1];
  Philox4x32Block block{{counter[0], counter[1], counter[2], counter[3]}};
  for (int round = 0; round < 10; ++round) {
    philox4x32_round(k0, k1, block.word[0], block.word[1], block.word[2], block.word[3]);
    philox4x32_next_key(k0, k1);
  }
  return block;
}

/// The numbers of one purpose: keyed by seed and stream, indexed by the logical element they belong to. So a dropout mask
/// is the same for every tiling, backend and number of ranks, and in the backward pass.
class RandomStream {
 public:
  SPOROS_FUNCTION constexpr RandomStream(std::uint64_t seed, std::uint64_t stream) : m_seed(seed), m_stream(stream) {}

  /// The words of elements 4 · block ... 4 · block + 3
  SPOROS_FUNCTION constexpr Philox4x32Block block(std::uint64_t block) const {
    std::uint32_t const key[2] = {std::uint32_t(m_seed), std::uint32_t(m_seed >> 32)};
    std::uint32_t const counter[4] = {std::uint32_t(block), std::uint32_t(block >> 32), std::uint32_t(m_stream),
                                      std::uint32_t(m_stream >> 32)};
    return philox4x32(key, counter);
  }

  /// The words of `count` blocks one after another. All of them go through each round together, so that a compiler turns
  /// the rounds into vectors.
  template <int count>
  SPOROS_FUNCTION constexpr void blocks(std::uint64_t first, std::uint32_t (&words)[4 * count]) const {
    std::uint32_t c0[count] = {}, c1[count] = {}, c2[count] = {}, c3[count] = {};
    for (int b = 0; b < count; ++b) {
      c0[b] = std::uint32_t(first + std::uint64_t(b));
      c1[b] = std::uint32_t((first + std::uint64_t(b)) >> 32);
      c2[b] = std::uint32_t(m_stream);
      c3[b] = std::uint32_t(m_stream >> 32);
    }
    std::uint32_t k0 = std::uint32_t(m_seed), k1 = std::uint32_t(m_seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int b = 0; b < count; ++b) philox4x32_round(k0, k1, c0[b], c1[b], c2[b], c3[b]);
      philox4x32_next_key(k0, k1);
    }
    for (int b = 0; b < count; ++b) {
      words[4 * b] = c0[b];
      words[4 * b + 1] = c1[b];
      words[4 * b + 2] = c2[b];
      words[4 * b + 3] = c3[b];
    }
  }

  /// 32 uniform bits of one element
  SPOROS_FUNCTION constexpr std::uint32_t bits(std::uint64_t element) const {
    return block(element / 4).word[element % 4];
  }

  /// Uniform in (0, 1): never 0, so that its logarithm is finite
  SPOROS_FUNCTION constexpr double uniform(std::uint64_t element) const {
    return (double(bits(element)) + 0.5) * 0x1p-32;
  }

 private:
  std::uint64_t m_seed;
  std::uint64_t m_stream;
};

/// Dropout with probability p: element i becomes x[i] / (1 - p) if it is kept, else 0. Whether it is kept depends on
/// (seed, stream, first_element + i) alone.
struct Dropout {
  double probability = 0;  ///< in [0, 1); 0 draws no numbers and changes no bit
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;         ///< tells apart the places and steps at which one seed is used
  std::uint64_t first_element = 0;  ///< logical index of the first element, where a rank holds a part of the whole

  SPOROS_FUNCTION constexpr bool active() const { return probability > 0; }
  /// An element is dropped when its 32 bits are below this
  SPOROS_FUNCTION constexpr std::uint32_t threshold() const { return std::uint32_t(probability * 0x1p32); }
  SPOROS_FUNCTION constexpr double scale() const { return 1 / (1 - probability); }
  SPOROS_FUNCTION constexpr RandomStream random() const { return {seed, stream}; }
  SPOROS_FUNCTION constexpr bool keeps(std::uint64_t element) const {
    return random().bits(first_element + element) >= threshold();
  }
};

}  // namespace Sporos

#endif
