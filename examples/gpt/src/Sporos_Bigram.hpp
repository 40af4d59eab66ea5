// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_BIGRAM_HPP
#define SPOROS_BIGRAM_HPP

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "Sporos_TokenDataset.hpp"

namespace Sporos::Gpt {

/// The yardstick of a language model: p(b | a) = (count(ab) + 1) / (count(a·) + vocabulary), counted on training data. What
/// has learnt more than which token follows which lies below its loss.
class BigramModel {
 public:
  BigramModel(TokenDataset const& dataset, TokenRange range);

  /// Mean of −log p over all pairs of neighbours in the range
  double loss(TokenDataset const& dataset, TokenRange range) const;

 private:
  static std::uint64_t pair(int first, int second) { return std::uint64_t(first) << 32 | std::uint32_t(second); }

  std::unordered_map<std::uint64_t, std::int64_t> m_pairs;  // a table of vocabulary² would not fit for large ones
  std::vector<std::int64_t> m_firsts;
};

}  // namespace Sporos::Gpt

#endif
