// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_CONTEXTSHARE_HPP
#define SPOROS_CONTEXTSHARE_HPP

#include <cstdint>

#include "Sporos_Error.hpp"

namespace Sporos {

/// Which part of every sequence a rank holds where `ranks` ranks share sequences out. A sequence is cut into 2 · ranks chunks, and
/// rank r has chunks r and 2 · ranks − 1 − r: an early one, whose queries see few keys, and a late one, so that under a causal
/// mask all ranks have the same work (zig-zag; Brandon et al., "Striped attention", arXiv:2311.09431, name the problem). One rank
/// alone has the whole sequence as one chunk.
class ContextShare {
 public:
  ContextShare() = default;
  ContextShare(int rank, int ranks) : m_rank(rank), m_ranks(ranks) {
    SPOROS_THROW_IF(ranks < 1 || rank < 0 || rank >= ranks, "rank ", rank, " of ", ranks, " that share sequences out");
  }

  int rank() const { return m_rank; }
  int ranks() const { return m_ranks; }

  /// Chunks of a sequence, on all ranks together
  int all_chunks() const { return m_ranks == 1 ? 1 : 2 * m_ranks; }
  /// Chunks that a rank holds, numbered 0 and 1
  int chunks() const { return m_ranks == 1 ? 1 : 2; }
  /// Which chunk of a sequence number `held` of `rank` is
  int chunk(int held, int rank) const { return held == 0 ? rank : 2 * m_ranks - 1 - rank; }
  int chunk(int held) const { return chunk(held, m_rank); }

  /// \throws InvalidArgument unless a sequence of this length can be cut
  std::int64_t chunk_length(std::int64_t sequence_length) const {
    SPOROS_THROW_IF(sequence_length < 1 || sequence_length % all_chunks() != 0, "a sequence of ", sequence_length,
                    " tokens does not divide into ", all_chunks(), " chunks for ", m_ranks, " ranks");
    return sequence_length / all_chunks();
  }
  /// Tokens of a sequence that a rank holds
  std::int64_t length(std::int64_t sequence_length) const { return chunks() * chunk_length(sequence_length); }

 private:
  int m_rank = 0, m_ranks = 1;
};

}  // namespace Sporos

#endif
