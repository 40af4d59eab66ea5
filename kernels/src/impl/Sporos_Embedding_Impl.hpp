// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_EMBEDDING_IMPL_HPP
#define SPOROS_EMBEDDING_IMPL_HPP

#include <limits>

#include "impl/Sporos_RowTeam.hpp"
#include "impl/Sporos_Rows.hpp"

namespace Sporos::Impl {

template <class T>
struct EmbeddingForward {
  std::int64_t vocabulary;
  std::int64_t columns;
  std::int64_t sequence_length;
  int const* tokens;
  Rows<T const> token_table;
  Rows<T const> position_table;
  Rows<T> y;
};

template <class T>
struct EmbeddingTokenGradient {
  std::int64_t rows;
  std::int64_t vocabulary;
  std::int64_t columns;
  int const* tokens;
  Rows<T const> dy;
  Rows<ComputeType<T>> dtoken_table;
};

template <class T>
struct EmbeddingPositionGradient {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t sequence_length;
  Rows<T const> dy;
  Rows<ComputeType<T>> dposition_table;
};

inline namespace SPOROS_LEVEL {

/// One row
template <class Team, class T>
SPOROS_FUNCTION void run_item(Team const& team, EmbeddingForward<T> const& a, std::int64_t row) {
  using C = ComputeType<T>;
  int const token = a.tokens[row];
  T* const y = a.y[row];
  if (token < 0 || token >= a.vocabulary) {
    team.for_each(a.columns, [=](std::int64_t c) { y[c] = store_as<T>(std::numeric_limits<C>::quiet_NaN()); });
    return;
  }
  T const* const of_token = a.token_table[token];
  T const* const of_position = a.position_table[row % a.sequence_length];
  team.for_each(a.columns, [=](std::int64_t c) { y[c] = store_as<T>(C(of_token[c]) + C(of_position[c])); });
}

/// One row: the first one with its token adds up those of all rows with the token, in their order. So each sum belongs to
/// one team, without atomics; looking through the other rows' tokens costs little beside adding even one row up.
template <class Team, class T>
SPOROS_FUNCTION void run_item(Team const& team, EmbeddingTokenGradient<T> const& a, std::int64_t row) {
  using C = ComputeType<T>;
  int const* const tokens = a.tokens;
  int const token = tokens[row];
  if (token < 0 || token >= a.vocabulary) return;
  int const earlier = team.template sum<int>(row, [=](std::int64_t r) { return int(tokens[r] == token); });
  if (earlier != 0) return;

  C* const gradient = a.dtoken_table[token];
  for (std::int64_t r = row; r < a.rows; ++r) {
    if (tokens[r] != token) continue;
    T const* const dy = a.dy[r];
    team.for_each(a.columns, [=](std::int64_t c) { gradient[c] += C(dy[c]); });
  }
}

/// One position, over the sequences in their order
template <class Team, class T>
SPOROS_FUNCTION void run_item(Team const& team, EmbeddingPositionGradient<T> const& a, std::int64_t position) {
  using C = ComputeType<T>;
  C* const gradient = a.dposition_table[position];
  for (std::int64_t r = position; r < a.rows; r += a.sequence_length) {
    T const* const dy = a.dy[r];
    team.for_each(a.columns, [=](std::int64_t c) { gradient[c] += C(dy[c]); });
  }
}

}  // namespace SPOROS_LEVEL
}  // namespace Sporos::Impl

#endif
