// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_EMBEDDING_HPP
#define SPOROS_EMBEDDING_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "Sporos_StorageTypes.hpp"
#include "Sporos_ViewChecks.hpp"
#include "impl/Sporos_Embedding_Impl.hpp"

namespace Sporos {
namespace Impl {

template <class ExecutionSpace, class T>
void embedding(ExecutionSpace const& space, std::int64_t rows, EmbeddingForward<T> const& arguments);

template <class ExecutionSpace, class T>
void embedding_backward(ExecutionSpace const& space, EmbeddingTokenGradient<T> const& of_tokens,
                        EmbeddingPositionGradient<T> const& of_positions);

}  // namespace Impl

/// Learned token and position embeddings of whole sequences that lie one after another:
///
///     y[r] = token_table[tokens[r]] + position_table[r mod sequence_length]        added in C, rounded to T once
///
/// A token outside [0, V) gives a row of NaN.
///
/// \param space           where the kernel runs; the call returns before it has finished
/// \param tokens          [in] (rows) of int
/// \param token_table     [in] (V, width) of T = double, float or bfloat16, like every matrix here with unit stride in width
/// \param position_table  [in] (context, width) of T
/// \param sequence_length between 1 and the context
/// \param y              [out] (rows, width) of T
/// \throws InvalidArgument when extents differ, a stride is not 1 or the sequence does not fit into the context
template <class ExecutionSpace, class TokensView, class TokenTableView, class PositionTableView, class YView>
void embedding(ExecutionSpace const& space, TokensView const& tokens, TokenTableView const& token_table,
               PositionTableView const& position_table, std::int64_t sequence_length, YView const& y) {
  using T = typename YView::non_const_value_type;
  std::size_t const rows = tokens.extent(0);
  std::size_t const width = token_table.extent(1);
  Impl::require_vector("tokens", tokens, rows);
  Impl::require_rows("token_table", token_table, token_table.extent(0), width);
  Impl::require_rows("position_table", position_table, position_table.extent(0), width);
  Impl::require_accessible<ExecutionSpace>(tokens, token_table, position_table, y);
  Impl::require_rows("y", y, rows, width);
  SPOROS_THROW_IF(sequence_length < 1 || std::size_t(sequence_length) > position_table.extent(0),
                  "the sequence length is ", sequence_length, ", position_table is ", Impl::extents(position_table));

  Kokkos::Profiling::ScopedRegion region("Sporos::embedding");
  Impl::embedding(space, std::int64_t(rows),
                  Impl::EmbeddingForward<T>{.vocabulary = std::int64_t(token_table.extent(0)),
                                            .columns = std::int64_t(width),
                                            .sequence_length = sequence_length,
                                            .tokens = tokens.data(),
                                            .token_table = Impl::const_rows_of(token_table),
                                            .position_table = Impl::const_rows_of(position_table),
                                            .y = Impl::rows_of(y)});
}

/// The gradients of embedding:
///
///     dtoken_table[t]    += Σ dy[r] over the rows r with tokens[r] = t
///     dposition_table[p] += Σ dy[r] over the rows r with r mod sequence_length = p
///
/// in the order of the rows, one after another: bitwise repeatable, whatever the backend does at the same time. Rows with a
/// token outside [0, V) reach no token's gradient.
///
/// \param tokens               [in] (rows) of int
/// \param dy                   [in] (rows, width) of T
/// \param sequence_length      that of the forward pass
/// \param dtoken_table    [in, out] (V, width) of C = ComputeType<T>
/// \param dposition_table [in, out] (context, width) of C
/// \throws InvalidArgument as embedding
template <class ExecutionSpace, class TokensView, class DyView, class DtokenTableView, class DpositionTableView>
void embedding_backward(ExecutionSpace const& space, TokensView const& tokens, DyView const& dy,
                        std::int64_t sequence_length, DtokenTableView const& dtoken_table,
                        DpositionTableView const& dposition_table) {
  using T = typename DyView::non_const_value_type;
  std::size_t const rows = tokens.extent(0);
  std::size_t const width = dtoken_table.extent(1);
  Impl::require_vector("tokens", tokens, rows);
  Impl::require_accessible<ExecutionSpace>(tokens, dy, dtoken_table, dposition_table);
  Impl::require_rows("dy", dy, rows, width);
  Impl::require_rows("dtoken_table", dtoken_table, dtoken_table.extent(0), width);
  Impl::require_rows("dposition_table", dposition_table, dposition_table.extent(0), width);
  SPOROS_THROW_IF(sequence_length < 1 || std::size_t(sequence_length) > dposition_table.extent(0),
                  "the sequence length is ", sequence_length, ", dposition_table is ", Impl::extents(dposition_table));

  Kokkos::Profiling::ScopedRegion region("Sporos::embedding_backward");
  Impl::embedding_backward(space,
                           Impl::EmbeddingTokenGradient<T>{.rows = std::int64_t(rows),
                                                           .vocabulary = std::int64_t(dtoken_table.extent(0)),
                                                           .columns = std::int64_t(width),
                                                           .tokens = tokens.data(),
                                                           .dy = Impl::const_rows_of(dy),
                                                           .dtoken_table = Impl::rows_of(dtoken_table)},
                           Impl::EmbeddingPositionGradient<T>{.rows = std::int64_t(rows),
                                                              .columns = std::int64_t(width),
                                                              .sequence_length = sequence_length,
                                                              .dy = Impl::const_rows_of(dy),
                                                              .dposition_table = Impl::rows_of(dposition_table)});
}

}  // namespace Sporos

#endif
