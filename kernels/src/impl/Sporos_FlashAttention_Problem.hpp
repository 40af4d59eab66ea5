// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_PROBLEM_HPP
#define SPOROS_FLASHATTENTION_PROBLEM_HPP

#include <cstdint>

#include "Sporos_Random.hpp"
#include "Sporos_StorageTypes.hpp"
#include "tile/Sporos_Tile.hpp"

namespace Sporos::Impl {

/// (batch, sequence, heads, head_dim) with unit stride along head_dim
template <class T>
struct HeadTensor {
  T* data;
  std::int64_t batch_stride;
  std::int64_t sequence_stride;
  std::int64_t head_stride;
};

/// (batch, heads, sequence) with unit stride along the sequence
template <class C>
struct RowTensor {
  C* data;
  std::int64_t batch_stride;
  std::int64_t head_stride;
};

/// What one launch computes. Plain data: it crosses the border between instruction-set levels.
template <class T>
struct FlashAttentionArguments {
  using C = ComputeType<T>;

  HeadTensor<T const> q;  // (batch, queries, heads, head_dim)
  HeadTensor<T const> k;  // (batch, keys, kv_heads, head_dim)
  HeadTensor<T const> v;  // as k
  HeadTensor<T> o;        // as q
  RowTensor<C> lse;       // (batch, heads, queries)
  int batch, heads, kv_heads;
  int queries, keys, head_dim;  // lengths up to 2^30, so that sums and differences are numbers, too
  bool causal;
  int diagonal;  // causal: query i sees keys 0 ... i + diagonal
  C scale;       // of the scores, positive
  Dropout dropout;
};

/// How the backward pass cuts a head
struct FlashAttentionBackwardTiling {
  int queries;   // in a block
  int keys;      // in a tile
  int head_dim;  // of a tile, not less than the problem's
};

/// The gradients, and what the passes of the backward pass hand to each other in a workspace.
template <class T>
struct FlashAttentionBackwardArguments {
  using C = ComputeType<T>;

  FlashAttentionArguments<T> forward;
  HeadTensor<T const> d_o;  // as q
  HeadTensor<T> dq;         // as q
  HeadTensor<T> dk, dv;     // as k

  // A slot is the share of the key tiles of a head that one team works through, adding to a dQ of its own.
  int slots;
  int padded_queries;   // queries, rounded up to whole blocks
  int padded_head_dim;  // head_dim, rounded up to the width of the tiles
  C* dq_sums;           // (slots, batch, heads, padded_queries, padded_head_dim)
  C* lse_log2;  // (batch, heads, padded_queries): LSE log2 e; infinite where a row saw no key, and behind the end
  C* delta;     // as lse_log2: Σ over a row of dO ∘ O; 0 behind the end
};

}  // namespace Sporos::Impl

namespace Sporos::inline SPOROS_LEVEL {

using Impl::FlashAttentionArguments;
using Impl::FlashAttentionBackwardArguments;

/// Which elements of a tile dropout keeps: element (row, column) is number first + row · row_stride + column · column_stride,
/// counted modulo 2^64; one of the strides is 1.
struct DropoutMask {
  Dropout const& dropout;
  std::uint64_t first;
  std::int64_t row_stride, column_stride;

  SPOROS_FUNCTION bool keeps(int row, int column) const {
    std::uint64_t const element = first + std::uint64_t(row * row_stride + column * column_stride);
    return dropout.random().bits(element) >= dropout.threshold();
  }
};

/// One head of the problem: its matrices, and which keys a query may see. A sliding window changes allows() and the
/// ranges of blocks, varlen changes matrix(); the kernels stay as they are.
template <class T>
class FlashAttentionHead {
 public:
  using C = ComputeType<T>;

  SPOROS_FUNCTION FlashAttentionHead(FlashAttentionArguments<T> const& arguments, int batch, int head)
      : m_problem(arguments), m_batch(batch), m_head(head) {}

  SPOROS_FUNCTION Matrix<T const> q() const { return of_query_head(m_problem.q); }
  SPOROS_FUNCTION Matrix<T const> k() const { return of_kv_head(m_problem.k); }
  SPOROS_FUNCTION Matrix<T const> v() const { return of_kv_head(m_problem.v); }
  SPOROS_FUNCTION Matrix<T> o() const { return of_query_head(m_problem.o); }
  SPOROS_FUNCTION Matrix<C> lse() const {
    auto const& lse = m_problem.lse;
    return {lse.data + m_batch * lse.batch_stride + m_head * lse.head_stride, 1, m_problem.queries, 1};
  }
  SPOROS_FUNCTION C scale() const { return m_problem.scale; }

  SPOROS_FUNCTION bool allows(int query, int key) const {
    return key < m_problem.keys && (!m_problem.causal || key <= query + m_problem.diagonal);
  }

  /// What matters of the scores of queries from first_query on, as rows, and keys from first_key on; and turned around
  SPOROS_FUNCTION Band band_of_queries(int first_query, int first_key) const {
    return {-unbounded, m_problem.causal ? std::int64_t(first_query) + m_problem.diagonal - first_key : unbounded};
  }
  SPOROS_FUNCTION Band band_of_keys(int first_key, int first_query) const {
    return {m_problem.causal ? std::int64_t(first_key) - m_problem.diagonal - first_query : -unbounded, unbounded};
  }

  SPOROS_FUNCTION bool drops() const { return m_problem.dropout.active(); }
  SPOROS_FUNCTION C keep_scale() const { return C(m_problem.dropout.scale()); }

  /// Which probabilities are kept, of queries from first_query on, as rows, and keys from first_key on; and turned around
  SPOROS_FUNCTION DropoutMask mask_of_queries(int first_query, int first_key) const {
    return {m_problem.dropout, element(first_query, first_key), m_problem.keys, 1};
  }
  SPOROS_FUNCTION DropoutMask mask_of_keys(int first_key, int first_query) const {
    return {m_problem.dropout, element(first_query, first_key), 1, m_problem.keys};
  }

  /// Blocks of `keys` keys in which some of `queries` queries from `first_query` on see some key
  SPOROS_FUNCTION BlockRange visible_key_blocks(int first_query, int queries, int keys) const {
    int const left = m_problem.queries - first_query;
    int const last = first_query + (queries < left ? queries : left) - 1;
    return {0, blocks(visible_keys(last), keys)};
  }

  /// ... in which each of them sees every key
  SPOROS_FUNCTION BlockRange unmasked_key_blocks(int first_query, int /*queries*/, int keys) const {
    return {0, visible_keys(first_query) / keys};
  }

  /// Blocks of `queries` queries of which some see some of `keys` keys from `first_key` on
  SPOROS_FUNCTION BlockRange visible_query_blocks(int first_key, int /*keys*/, int queries) const {
    return {first_query_of(first_key) / queries, blocks(m_problem.queries, queries)};
  }

  /// ... of which each sees every one of them
  SPOROS_FUNCTION BlockRange unmasked_query_blocks(int first_key, int keys, int queries) const {
    int const end = blocks(m_problem.queries, queries);
    if (keys > m_problem.keys - first_key) return {end, end};
    return {blocks(first_query_of(first_key + keys - 1), queries), end};
  }

  template <class U>
  SPOROS_FUNCTION Matrix<U> of_query_head(Impl::HeadTensor<U> const& tensor) const {
    return matrix(tensor, m_problem.queries, m_head);
  }

  /// Grouped queries: heads / kv_heads neighbouring query heads share a head of K and V
  template <class U>
  SPOROS_FUNCTION Matrix<U> of_kv_head(Impl::HeadTensor<U> const& tensor) const {
    return matrix(tensor, m_problem.keys, m_head / (m_problem.heads / m_problem.kv_heads));
  }

 private:
  static constexpr std::int64_t unbounded = std::int64_t(1) << 40;

  SPOROS_FUNCTION std::uint64_t element(int query, int key) const {
    std::int64_t const row = (std::int64_t(m_batch) * m_problem.heads + m_head) * m_problem.queries + query;
    return m_problem.dropout.first_element + std::uint64_t(row * m_problem.keys + key);
  }

  SPOROS_FUNCTION static int blocks(int rows, int block) { return rows / block + (rows % block != 0); }

  /// Query i sees keys 0 ... visible_keys(i) - 1
  SPOROS_FUNCTION int visible_keys(int query) const {
    if (!m_problem.causal) return m_problem.keys;
    int const visible = query + 1 + m_problem.diagonal;
    return visible > m_problem.keys ? m_problem.keys : visible > 0 ? visible : 0;
  }

  /// Key j is seen by queries first_query_of(j) ..., which may lie behind the last
  SPOROS_FUNCTION int first_query_of(int key) const {
    if (!m_problem.causal) return 0;
    int const first = key - m_problem.diagonal;
    return first > m_problem.queries ? m_problem.queries : first > 0 ? first : 0;
  }

  template <class U>
  SPOROS_FUNCTION Matrix<U> matrix(Impl::HeadTensor<U> const& tensor, int rows, int head) const {
    return {tensor.data + m_batch * tensor.batch_stride + head * tensor.head_stride, tensor.sequence_stride, rows,
            m_problem.head_dim};
  }

  FlashAttentionArguments<T> const& m_problem;
  int m_batch;
  int m_head;
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
