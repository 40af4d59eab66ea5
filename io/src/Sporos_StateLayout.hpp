// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_STATELAYOUT_HPP
#define SPOROS_STATELAYOUT_HPP

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace Sporos {

/// Where one named tensor lies in the flat buffers of a ShardedState, in elements
struct TensorRange {
  std::string name;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar
  std::int64_t offset = 0;
  std::int64_t size = 0;  ///< the product of shape
  bool weight_decay = false;
};

/// "(2, 3)", for error texts
std::string shape_text(std::vector<std::int64_t> const& shape);

/// The named tensors of a model, one after another in one flat index space. Tensors start at multiples of `alignment`; the
/// gaps are zero in every buffer and stay so.
class StateLayout {
 public:
  /// 64 elements are a cache line even of bfloat16 and FP8, so no two tensors share one.
  static constexpr std::int64_t alignment = 64;

  /// Appends a tensor and returns its index. A name is a path in a checkpoint file: printable ASCII without spaces, '/' between
  /// its components, none of which is empty, "." or "..". Throws InvalidArgument for any other name, for one that is taken,
  /// for one that is a group of another ("a" beside "a/b"), and for a negative extent or more than 2^63 - 1 elements.
  std::int64_t add(std::string const& name, std::vector<std::int64_t> shape, bool weight_decay);

  std::vector<TensorRange> const& tensors() const { return m_tensors; }

  /// Throws InvalidArgument, which lists the names, where there is no such tensor.
  TensorRange const& find(std::string const& name) const;

  /// The length of a flat buffer: a multiple of `alignment`
  std::int64_t size() const { return m_size; }

  /// The flat interval [first, second) that `rank` of `size` ranks is responsible for: disjoint, in order, together all of
  /// it, bounds at multiples of `alignment`, lengths that differ by at most `alignment`
  std::pair<std::int64_t, std::int64_t> owned(int rank, int size) const;

 private:
  std::vector<TensorRange> m_tensors;
  std::map<std::string, std::int64_t> m_index;
  std::int64_t m_size = 0;
};

}  // namespace Sporos

#endif
