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

/// Elements [first, last) of the flat index space
struct Interval {
  std::int64_t first = 0;
  std::int64_t last = 0;

  std::int64_t size() const { return last - first; }
  bool operator==(Interval const&) const = default;
};

/// What one rank owns of one unit
struct OwnedPart {
  std::size_t unit = 0;
  Interval range;
  std::int64_t offset = 0;  ///< where it begins in a buffer that holds this rank's parts alone, one after another
};

/// "(2, 3)", for error texts
std::string shape_text(std::vector<std::int64_t> const& shape);

/// The named tensors of a model, one after another in one flat index space. Tensors start at multiples of `alignment`; the
/// gaps are zero in every buffer and stay so.
///
/// Neighbours that are used together, such as those of a layer, form a unit: what is gathered, reduced and freed at a time.
/// Each rank owns a part of every unit (Zhao et al., "PyTorch FSDP", VLDB 2023, shards the same way), so all ranks share in
/// the communication of each layer.
class StateLayout {
 public:
  /// 64 elements are a cache line even of bfloat16 and FP8, so no two tensors share one.
  static constexpr std::int64_t alignment = 64;

  /// Parts begin at multiples of so many elements from the start of their unit. What is computed granule by granule, as the
  /// norm of the gradient, then has the same bits for every number of ranks.
  static constexpr std::int64_t granule = 1024;

  /// Appends a tensor and returns its index. A name is a path in a checkpoint file: printable ASCII without spaces, '/' between
  /// its components, none of which is empty, "." or "..". Throws InvalidArgument for any other name, for one that is taken,
  /// for one that is a group of another ("a" beside "a/b"), and for a negative extent or more than 2^63 - 1 elements.
  std::int64_t add(std::string const& name, std::vector<std::int64_t> shape, bool weight_decay);

  std::vector<TensorRange> const& tensors() const { return m_tensors; }

  /// Throws InvalidArgument, which lists the names, where there is no such tensor.
  TensorRange const& find(std::string const& name) const;

  /// The length of a flat buffer: a multiple of `alignment`
  std::int64_t size() const { return m_size; }

  /// The tensors added from now on form a new unit. Without a call all tensors are one.
  void begin_unit();

  /// The units in order; together they are the flat index space.
  std::vector<Interval> units() const;

  /// The part of a unit that `rank` of `ranks` owns: disjoint, in rank order, together all of it. The ranks have equal numbers of
  /// granules or one more, rank 0 as many as any; a unit may end with an incomplete one. Ranks beyond the number of granules
  /// own nothing.
  Interval owned(std::size_t unit, int rank, int ranks) const;

  /// All that a rank owns, unit by unit
  std::vector<OwnedPart> owned(int rank, int ranks) const;

 private:
  std::vector<TensorRange> m_tensors;
  std::map<std::string, std::int64_t> m_index;
  std::vector<std::int64_t> m_unit_begins{0};
  std::int64_t m_size = 0;
};

}  // namespace Sporos

#endif
