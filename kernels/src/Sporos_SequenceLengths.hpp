// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_SEQUENCELENGTHS_HPP
#define SPOROS_SEQUENCELENGTHS_HPP

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "Sporos_Error.hpp"

namespace Sporos {

/// Where the sequences of a batch lie in tensors that hold them one after another, without padding between: sequence b has
/// the queries cumulative_queries[b] ... cumulative_queries[b + 1] - 1, and keys likewise. It may have none of either.
///
/// Made from the host's numbers once and used for every layer, forward and backward: so they are checked before anything
/// runs, and no call has to wait for a device to read them.
template <class ExecutionSpace>
class SequenceLengths {
 public:
  /// No sequences: tensors are (batch, sequence, heads, head_dim)
  SequenceLengths() = default;

  /// \throws InvalidArgument  unless both are as long as each other, start with 0 and never decrease
  SequenceLengths(ExecutionSpace const& space, std::vector<int> const& cumulative_queries,
                  std::vector<int> const& cumulative_keys) {
    SPOROS_THROW_IF(cumulative_queries.size() != cumulative_keys.size() || cumulative_queries.empty(), "there are ",
                    cumulative_queries.size(), " cumulative lengths of queries and ", cumulative_keys.size(),
                    " of keys; both must be one more than there are sequences");
    m_longest_queries = checked_longest("queries", cumulative_queries);
    m_longest_keys = checked_longest("keys", cumulative_keys);
    m_total_queries = cumulative_queries.back();
    m_total_keys = cumulative_keys.back();

    std::size_t const count = cumulative_queries.size();
    m_device = Lengths(Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "Sporos::sequence_lengths"), 2, count);
    m_host = Kokkos::create_mirror_view(m_device);
    for (std::size_t b = 0; b < count; ++b) {
      m_host(0, b) = cumulative_queries[b];
      m_host(1, b) = cumulative_keys[b];
    }
    Kokkos::deep_copy(space, m_device, m_host);
  }

  bool empty() const { return m_device.extent(1) == 0; }
  int batch() const { return empty() ? 0 : int(m_device.extent(1)) - 1; }
  int longest_queries() const { return m_longest_queries; }
  int longest_keys() const { return m_longest_keys; }
  int total_queries() const { return m_total_queries; }
  int total_keys() const { return m_total_keys; }

  /// In the memory of the execution space
  int const* cumulative_queries() const { return m_device.data(); }
  int const* cumulative_keys() const { return m_device.data() + m_device.extent(1); }

 private:
  using Lengths = Kokkos::View<int**, Kokkos::LayoutRight, typename ExecutionSpace::memory_space>;

  static int checked_longest(char const* name, std::vector<int> const& cumulative) {
    SPOROS_THROW_IF(cumulative.front() != 0, "the cumulative lengths of ", name, " start with ", cumulative.front(),
                    "; it must be 0");
    int longest = 0;
    for (std::size_t b = 0; b + 1 < cumulative.size(); ++b) {
      SPOROS_THROW_IF(cumulative[b + 1] < cumulative[b], "the cumulative lengths of ", name, " decrease from ",
                      cumulative[b], " to ", cumulative[b + 1], " at sequence ", b);
      longest = std::max(longest, cumulative[b + 1] - cumulative[b]);
    }
    return longest;
  }

  Lengths m_device;
  decltype(Kokkos::create_mirror_view(std::declval<Lengths>())) m_host;  // may still be read by the copy
  int m_longest_queries = 0, m_longest_keys = 0, m_total_queries = 0, m_total_keys = 0;
};

}  // namespace Sporos

#endif
