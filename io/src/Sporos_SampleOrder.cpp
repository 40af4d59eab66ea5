// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_SampleOrder.hpp"

#include <algorithm>
#include <bit>

#include "Sporos_Error.hpp"
#include "Sporos_Random.hpp"

namespace Sporos {
namespace {

// Four rounds make a Feistel network of ideal functions indistinguishable from a random permutation for an adversary that
// may ask both ways (Luby and Rackoff, 1988); the halves are as small as one bit here, so some more do not hurt.
constexpr int rounds = 8;

std::uint64_t feistel(std::uint64_t x, int half_bits, std::uint64_t seed, std::uint64_t epoch) {
  std::uint32_t const mask = half_bits == 32 ? ~0u : (1u << half_bits) - 1;
  std::uint32_t left = std::uint32_t(x >> half_bits), right = std::uint32_t(x) & mask;
  std::uint32_t const key[2] = {std::uint32_t(seed), std::uint32_t(seed >> 32)};
  for (std::uint32_t round = 0; round < rounds; ++round) {
    std::uint32_t const counter[4] = {right, round, std::uint32_t(epoch), std::uint32_t(epoch >> 32)};
    std::uint32_t const mixed = (left ^ philox4x32(key, counter).word[0]) & mask;
    left = right;
    right = mixed;
  }
  return std::uint64_t(left) << half_bits | right;
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t samples, std::uint64_t seed) : m_samples(samples), m_seed(seed) {
  SPOROS_THROW_IF(samples <= 0, "there are ", samples, " samples; at least one is needed");
  m_half_bits = std::max(1, (std::bit_width(std::uint64_t(samples - 1)) + 1) / 2);
}

SampleOrder SampleOrder::sequential(std::int64_t samples) {
  SampleOrder order(samples, 0);
  order.m_shuffle = false;
  return order;
}

std::int64_t SampleOrder::operator()(std::int64_t global_counter) const {
  SPOROS_THROW_IF(global_counter < 0, "the counter is ", global_counter, "; it must not be negative");
  std::uint64_t const samples = std::uint64_t(m_samples);
  std::uint64_t const epoch = std::uint64_t(global_counter) / samples;
  std::uint64_t sample = std::uint64_t(global_counter) % samples;
  if (!m_shuffle) return std::int64_t(sample);
  do sample = feistel(sample, m_half_bits, m_seed, epoch);
  while (sample >= samples);
  return std::int64_t(sample);
}

}  // namespace Sporos
