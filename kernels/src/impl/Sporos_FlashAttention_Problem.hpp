// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_FLASHATTENTION_PROBLEM_HPP
#define SPOROS_FLASHATTENTION_PROBLEM_HPP

#include <cstdint>

#include "Sporos_Random.hpp"
#include "Sporos_StorageTypes.hpp"
#include "tile/Sporos_Tile.hpp"

namespace Sporos::Impl {

/// (batch, sequence, heads, width) with unit stride along the width; (all sequences one after another, heads, width) has a
/// batch_stride of 0.
template <class T>
struct HeadTensor {
  T* data;
  std::int64_t batch_stride;
  std::int64_t sequence_stride;
  std::int64_t head_stride;
  int width;
  int map = 0;  // the number by which a copy engine knows it, if at all
};

/// (batch, heads, sequence); (heads, all sequences one after another) has a batch_stride of 0.
template <class C>
struct RowTensor {
  C* data;
  std::int64_t batch_stride;
  std::int64_t head_stride;
  std::int64_t sequence_stride;
};

/// (batch, heads, queries, keys) with unit stride along the keys; a stride of 0 gives all the same.
template <class T>
struct ScoreTensor {
  T* data;
  std::int64_t batch_stride;
  std::int64_t head_stride;
  std::int64_t query_stride;
};

/// (batch, heads); a stride of 0 gives all the same.
template <class C>
struct PerHead {
  C* data;
  std::int64_t batch_stride;
};

/// What one launch computes. Plain data: it crosses the border between instruction-set levels. Where `data` is null a
/// feature is not asked for.
template <class T>
struct FlashAttentionArguments {
  using C = ComputeType<T>;

  HeadTensor<T const> q;  // (batch, queries, heads, width of keys)
  HeadTensor<T const> k;  // (batch, keys, kv_heads, width of keys)
  HeadTensor<T const> v;  // (batch, keys, kv_heads, width of values)
  HeadTensor<T> o;        // (batch, queries, heads, width of values)
  RowTensor<C> lse;       // (batch, heads, queries)
  int batch, heads, kv_heads;
  int queries, keys;  // lengths up to 2^30, so that sums and differences are numbers, too; of the longest sequences
  int head_dim;       // the larger of the two widths
  // Sequences one after another: sequence b has queries cumulative_queries[b] ... cumulative_queries[b + 1] - 1; or null
  int const* cumulative_queries;
  int const* cumulative_keys;

  // Query i stands at position i + (bottom_right ? keys - queries : 0), and sees keys position - left ... position + right.
  bool bottom_right;
  int left, right;  // up to `unbounded`

  C scale;    // of the scores, positive
  C softcap;  // scores s become softcap · tanh(s / softcap); 0 for none
  PerHead<C const> alibi_slopes;
  ScoreTensor<T const> bias;
  PerHead<C const> sink;  // the logit of a key without a value
  Dropout dropout;
  bool repeatable;  // the backward pass, bit for bit
  // Where queries and keys are parts of a whole, what dropout counts elements by is the whole's; 0: as queries and keys
  int dropout_queries, dropout_keys;

  // The key blocks of each query in `splits` shares, each with O and LSE of its own: (splits, ...)
  int splits;
  HeadTensor<C> partial_o;  // instead of o, where given
  std::int64_t partial_o_stride, partial_lse_stride;

  static constexpr int unbounded = 1 << 30;
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
  HeadTensor<T const> d_o;     // as o
  RowTensor<C const> d_lse;    // as lse, or null
  HeadTensor<T> dq;            // as q
  HeadTensor<T> dk, dv;        // as k, v
  ScoreTensor<T> d_bias;       // as bias, or null
  int bias_batch, bias_heads;  // of d_bias: those that it does not broadcast over, or 1
  C* d_sink;                   // (heads), or null

  // A slot is the share of the key tiles of a head that one team works through, adding to a dQ of its own.
  int slots;
  bool shared_sums;          // ... or all to one, atomically
  int padded_queries;        // of the longest sequence, rounded up to whole blocks
  int query_block;           // ... of so many
  int padded_head_dim;       // head_dim, rounded up to the width of the tiles
  std::int64_t padded_rows;  // of one head, over all sequences
  C* dq_sums;                // (slots or 1, heads, padded_rows, padded_head_dim)
  C* lse_log2;               // (heads, padded_rows): LSE log2 e; infinite where a row saw no key, and behind the end
  C* delta;                  // as lse_log2: Σ over a row of dO ∘ O, less dLSE; 0 behind the end
};

/// Results for parts of the keys, to become one
template <class T>
struct FlashAttentionMerge {
  using C = ComputeType<T>;

  int parts, batch, heads, queries;
  HeadTensor<C const> partial_o;                      // of each part (batch, queries, heads, width)
  RowTensor<C const> partial_lse;                     // of each part (batch, heads, queries)
  std::int64_t partial_o_stride, partial_lse_stride;  // from part to part
  HeadTensor<T> o;
  HeadTensor<C> wide_o;  // instead of o, where given
  RowTensor<C> lse;
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

/// One head of the problem, or one share of its keys: its matrices, which keys a query may see, and what becomes of scores.
template <class T>
class FlashAttentionHead {
 public:
  using C = ComputeType<T>;

  SPOROS_FUNCTION FlashAttentionHead(FlashAttentionArguments<T> const& arguments, int batch, int head, int split = 0)
      : m_problem(arguments), m_batch(batch), m_head(head), m_split(split) {
    if (arguments.cumulative_queries) {
      m_first_query = arguments.cumulative_queries[batch];
      m_first_key = arguments.cumulative_keys[batch];
      m_queries = arguments.cumulative_queries[batch + 1] - m_first_query;
      m_keys = arguments.cumulative_keys[batch + 1] - m_first_key;
    } else {
      m_first_query = m_first_key = 0;
      m_queries = arguments.queries;
      m_keys = arguments.keys;
    }
    int const offset = arguments.bottom_right ? m_keys - m_queries : 0;
    m_lower =
        arguments.left == unbounded || offset - arguments.left < -unbounded ? -unbounded : offset - arguments.left;
    m_upper =
        arguments.right == unbounded || offset > unbounded - arguments.right ? unbounded : offset + arguments.right;
  }

  SPOROS_FUNCTION int queries() const { return m_queries; }
  SPOROS_FUNCTION int keys() const { return m_keys; }

  SPOROS_FUNCTION Matrix<T const> q() const { return of_query_head(m_problem.q); }
  SPOROS_FUNCTION Matrix<T const> k() const { return of_kv_head(m_problem.k); }
  SPOROS_FUNCTION Matrix<T const> v() const { return of_kv_head(m_problem.v); }
  SPOROS_FUNCTION Matrix<T> o() const { return of_query_head(m_problem.o); }
  SPOROS_FUNCTION Matrix<C> lse() const {
    Matrix<C> rows = rows_of_head(m_problem.lse);
    rows.data += m_split * m_problem.partial_lse_stride;
    return rows;
  }
  SPOROS_FUNCTION bool stores_partial_o() const { return m_problem.partial_o.data != nullptr; }
  SPOROS_FUNCTION Matrix<C> partial_o() const {
    Matrix<C> partial = of_query_head(m_problem.partial_o);
    partial.data += m_split * m_problem.partial_o_stride;
    return partial;
  }

  // ---- Scores: s = scale · q k, or softcap · tanh(scale · q k / softcap); then ALiBi and bias are added

  SPOROS_FUNCTION C scale() const { return m_problem.scale; }
  SPOROS_FUNCTION C softcap() const { return m_problem.softcap; }
  SPOROS_FUNCTION bool adds_to_scores() const { return m_problem.alibi_slopes.data || m_problem.bias.data; }
  SPOROS_FUNCTION bool modifies_scores() const { return m_problem.softcap > C(0) || adds_to_scores(); }

  SPOROS_FUNCTION C added_to_score(int query, int key) const {
    C sum = 0;
    if (m_problem.alibi_slopes.data) {
      int const distance = query + m_keys - m_queries - key;
      sum -= of_head(m_problem.alibi_slopes) * C(distance < 0 ? -distance : distance);
    }
    if (m_problem.bias.data && query < m_queries && key < m_keys) sum += C(*at(m_problem.bias, query, key));
    return sum;
  }

  /// The natural logarithm of what is added to the sum of exponentials
  SPOROS_FUNCTION C sink() const {
    return m_problem.sink.data && m_split == 0 ? of_head(m_problem.sink) : -infinity<C>;
  }

  template <class U>
  SPOROS_FUNCTION U* at(Impl::ScoreTensor<U> const& tensor, int query, int key) const {
    return tensor.data + m_batch * tensor.batch_stride + m_head * tensor.head_stride + query * tensor.query_stride +
           key;
  }

  // ---- Masks

  SPOROS_FUNCTION bool allows(int query, int key) const {
    int const distance = key - query;
    return bool(int(key < m_keys) & int(distance <= m_upper) & int(distance >= m_lower));  // no branches
  }

  /// What matters of the scores of queries from first_query on, as rows, and keys from first_key on; and turned around
  SPOROS_FUNCTION Band band_of_queries(int first_query, int first_key) const {
    std::int64_t const shift = std::int64_t(first_query) - first_key;
    return {m_lower == -unbounded ? -everything : m_lower + shift, m_upper == unbounded ? everything : m_upper + shift};
  }
  SPOROS_FUNCTION Band band_of_keys(int first_key, int first_query) const {
    std::int64_t const shift = std::int64_t(first_key) - first_query;
    return {m_upper == unbounded ? -everything : shift - m_upper, m_lower == -unbounded ? everything : shift - m_lower};
  }

  SPOROS_FUNCTION bool drops() const { return m_problem.dropout.active(); }
  SPOROS_FUNCTION C keep_scale() const { return C(m_problem.dropout.scale()); }

  /// Which probabilities are kept, of queries from first_query on, as rows, and keys from first_key on; and turned around
  SPOROS_FUNCTION DropoutMask mask_of_queries(int first_query, int first_key) const {
    return {m_problem.dropout, element(first_query, first_key), dropout_keys(), 1};
  }
  SPOROS_FUNCTION DropoutMask mask_of_keys(int first_key, int first_query) const {
    return {m_problem.dropout, element(first_query, first_key), 1, dropout_keys()};
  }

  /// Blocks of `keys` keys in which some of `queries` queries from `first_query` on see some key; of the split's share
  SPOROS_FUNCTION BlockRange visible_key_blocks(int first_query, int queries, int keys) const {
    if (first_query >= m_queries) return {0, 0};
    int const left = m_queries - first_query;
    int const last = first_query + (queries < left ? queries : left) - 1;
    BlockRange const visible{first_key_of(first_query) / keys, blocks(end_key_of(last), keys)};
    std::int64_t const count = visible.end > visible.begin ? visible.end - visible.begin : 0;
    return {visible.begin + int(count * m_split / m_problem.splits),
            visible.begin + int(count * (m_split + 1) / m_problem.splits)};
  }

  /// ... in which each of them sees every key
  SPOROS_FUNCTION BlockRange unmasked_key_blocks(int first_query, int queries, int keys) const {
    return {blocks(first_key_of(first_query + queries - 1), keys), end_key_of(first_query) / keys};
  }

  /// Blocks of `queries` queries of which some see some of `keys` keys from `first_key` on
  SPOROS_FUNCTION BlockRange visible_query_blocks(int first_key, int keys, int queries) const {
    int const left = m_keys - first_key;
    int const last = first_key + (keys < left ? keys : left) - 1;
    return {first_query_of(first_key) / queries, blocks(end_query_of(last), queries)};
  }

  /// ... of which each sees every one of them. Queries behind the end do no harm.
  SPOROS_FUNCTION BlockRange unmasked_query_blocks(int first_key, int keys, int queries) const {
    int const end = end_query_of(first_key);
    if (keys > m_keys - first_key) return {0, 0};
    return {blocks(first_query_of(first_key + keys - 1), queries),
            end == m_queries ? blocks(m_queries, queries) : end / queries};
  }

  // ---- Matrices

  template <class U>
  SPOROS_FUNCTION Matrix<U> of_query_head(Impl::HeadTensor<U> const& tensor) const {
    return matrix(tensor, m_first_query, m_queries, m_head);
  }

  /// Grouped queries: heads / kv_heads neighbouring query heads share a head of K and V
  template <class U>
  SPOROS_FUNCTION Matrix<U> of_kv_head(Impl::HeadTensor<U> const& tensor) const {
    return matrix(tensor, m_first_key, m_keys, m_head / (m_problem.heads / m_problem.kv_heads));
  }

  template <class U>
  SPOROS_FUNCTION Matrix<U> rows_of_head(Impl::RowTensor<U> const& tensor) const {
    return {tensor.data + m_batch * tensor.batch_stride + m_head * tensor.head_stride +
                m_first_query * tensor.sequence_stride,
            tensor.sequence_stride, m_queries, 1};
  }

  /// The head's first row in the workspace of the backward pass: sequences start at whole blocks there.
  SPOROS_FUNCTION std::int64_t padded_row(FlashAttentionBackwardArguments<T> const& arguments) const {
    int const block = arguments.query_block;
    std::int64_t const row = m_problem.cumulative_queries
                                 ? (m_first_query + std::int64_t(m_batch) * block) / block * block
                                 : std::int64_t(m_batch) * arguments.padded_queries;
    return m_head * arguments.padded_rows + row;
  }

  /// The head's rows of lse_log2 or delta
  SPOROS_FUNCTION Matrix<C const> padded_rows(FlashAttentionBackwardArguments<T> const& arguments, C const* all) const {
    return {all + padded_row(arguments), 1, padded_queries(arguments), 1};
  }

  /// The sums of dQ of a slot
  SPOROS_FUNCTION Matrix<C> dq_sums(FlashAttentionBackwardArguments<T> const& arguments, int slot) const {
    int const own = arguments.shared_sums ? 0 : slot;
    std::int64_t const row = own * m_problem.heads * arguments.padded_rows + padded_row(arguments);
    int const width = arguments.padded_head_dim;
    return {arguments.dq_sums + row * width, width, padded_queries(arguments), width};
  }

  SPOROS_FUNCTION int padded_queries(FlashAttentionBackwardArguments<T> const& arguments) const {
    return blocks(m_queries, arguments.query_block) * arguments.query_block;
  }

 private:
  static constexpr int unbounded = FlashAttentionArguments<T>::unbounded;
  static constexpr std::int64_t everything = std::int64_t(1) << 40;

  SPOROS_FUNCTION std::uint64_t element(int query, int key) const {
    int const queries = m_problem.dropout_queries ? m_problem.dropout_queries : m_problem.queries;
    std::int64_t const row = (std::int64_t(m_batch) * m_problem.heads + m_head) * queries + query;
    return m_problem.dropout.first_element + std::uint64_t(row * dropout_keys() + key);
  }
  SPOROS_FUNCTION int dropout_keys() const { return m_problem.dropout_keys ? m_problem.dropout_keys : m_problem.keys; }

  SPOROS_FUNCTION static int blocks(int rows, int block) { return rows / block + (rows % block != 0); }

  SPOROS_FUNCTION static int clamped(std::int64_t x, int size) { return x < 0 ? 0 : x > size ? size : int(x); }

  /// Query i sees keys first_key_of(i) ... end_key_of(i) - 1, which may be none
  SPOROS_FUNCTION int first_key_of(int query) const { return clamped(std::int64_t(query) + m_lower, m_keys); }
  SPOROS_FUNCTION int end_key_of(int query) const { return clamped(std::int64_t(query) + m_upper + 1, m_keys); }

  /// Key j is seen by queries first_query_of(j) ... end_query_of(j) - 1, which may be none
  SPOROS_FUNCTION int first_query_of(int key) const { return clamped(std::int64_t(key) - m_upper, m_queries); }
  SPOROS_FUNCTION int end_query_of(int key) const { return clamped(std::int64_t(key) - m_lower + 1, m_queries); }

  SPOROS_FUNCTION C of_head(Impl::PerHead<C const> const& values) const {
    return values.data[m_batch * values.batch_stride + m_head];
  }

  template <class U>
  SPOROS_FUNCTION Matrix<U> matrix(Impl::HeadTensor<U> const& tensor, int first_row, int rows, int head) const {
    return {
        tensor.data + m_batch * tensor.batch_stride + first_row * tensor.sequence_stride + head * tensor.head_stride,
        tensor.sequence_stride,
        rows,
        tensor.width,
        {tensor.map, head, m_batch}};
  }

  FlashAttentionArguments<T> const& m_problem;
  int m_batch, m_head, m_split;
  int m_first_query, m_queries;  // of this sequence
  int m_first_key, m_keys;
  int m_lower, m_upper;  // query i sees keys i + m_lower ... i + m_upper
};

}  // namespace Sporos::inline SPOROS_LEVEL

#endif
