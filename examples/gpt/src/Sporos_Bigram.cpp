// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Bigram.hpp"

#include <algorithm>
#include <cmath>

namespace Sporos::Gpt {
namespace {

/// f(a, b) for all neighbours of the range, in order
template <class Function>
void for_each_pair(TokenDataset const& dataset, TokenRange range, Function&& f) {
  constexpr std::int64_t piece = 1 << 20;
  std::vector<int> tokens(std::size_t(std::min(piece, range.size())));
  int last = -1;
  for (std::int64_t begin = range.first; begin < range.last; begin += piece) {
    std::int64_t const count = std::min(piece, range.last - begin);
    dataset.read(begin, count, tokens.data());
    for (std::int64_t i = 0; i < count; ++i) {
      int const token = tokens[std::size_t(i)];
      if (last >= 0) f(last, token);
      last = token;
    }
  }
}

}  // namespace

BigramModel::BigramModel(TokenDataset const& dataset, TokenRange range) : m_firsts(std::size_t(dataset.vocabulary())) {
  for_each_pair(dataset, range, [&](int a, int b) {
    ++m_pairs[pair(a, b)];
    ++m_firsts[std::size_t(a)];
  });
}

double BigramModel::loss(TokenDataset const& dataset, TokenRange range) const {
  double total = 0;
  std::int64_t pairs = 0;
  double const vocabulary = double(m_firsts.size());
  for_each_pair(dataset, range, [&](int a, int b) {
    auto const found = m_pairs.find(pair(a, b));
    double const count = found == m_pairs.end() ? 0 : double(found->second);
    total -= std::log((count + 1) / (double(m_firsts[std::size_t(a)]) + vocabulary));
    ++pairs;
  });
  return total / double(pairs);
}

}  // namespace Sporos::Gpt
