// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_StateLayout.hpp"

#include <algorithm>
#include <limits>

#include "Sporos_Error.hpp"

namespace Sporos {

std::string shape_text(std::vector<std::int64_t> const& shape) {
  std::string text = "(";
  for (std::size_t r = 0; r < shape.size(); ++r) text += (r ? ", " : "") + std::to_string(shape[r]);
  return text + ")";
}

namespace {

// HDF5 itself takes "..", "a/" and line breaks without a word.
void check_name(std::string const& name) {
  for (char const c : name)
    SPOROS_THROW_IF(c <= ' ' || c > '~', "tensor name \"", name, "\" has the character code ", int(c),
                    "; only printable ASCII without spaces is allowed");
  for (std::size_t begin = 0; begin <= name.size();) {
    std::size_t const end = std::min(name.find('/', begin), name.size());
    std::string const component = name.substr(begin, end - begin);
    SPOROS_THROW_IF(component.empty() || component == "." || component == "..", "tensor name \"", name,
                    "\" has the component \"", component, "\"");
    begin = end + 1;
  }
}

std::int64_t element_count(std::string const& name, std::vector<std::int64_t> const& shape) {
  std::int64_t count = 1;
  for (std::int64_t const extent : shape) {
    SPOROS_THROW_IF(extent < 0, "tensor \"", name, "\" has the shape ", shape_text(shape));
    SPOROS_THROW_IF(extent > 0 && count > std::numeric_limits<std::int64_t>::max() / extent, "tensor \"", name,
                    "\" of shape ", shape_text(shape), " has more than 2^63 - 1 elements");
    count *= extent;
  }
  return count;
}

}  // namespace

std::int64_t StateLayout::add(std::string const& name, std::vector<std::int64_t> shape, bool weight_decay) {
  check_name(name);
  SPOROS_THROW_IF(m_index.count(name) != 0, "tensor name \"", name, "\" is taken");
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
    SPOROS_THROW_IF(m_index.count(name.substr(0, slash)) != 0, "tensor name \"", name, "\": \"", name.substr(0, slash),
                    "\" is a tensor, it cannot be a group too");
  auto const next = m_index.lower_bound(name + "/");
  SPOROS_THROW_IF(next != m_index.end() && next->first.starts_with(name + "/"), "tensor name \"", name,
                  "\" is the group of \"", next->first, "\"");

  std::int64_t const size = element_count(name, shape);
  SPOROS_THROW_IF(size > std::numeric_limits<std::int64_t>::max() - alignment - m_size, "tensor \"", name,
                  "\" of shape ", shape_text(shape), " does not fit behind ", m_size,
                  " elements: over 2^63 - 1 in all");
  std::int64_t const index = std::int64_t(m_tensors.size());
  m_tensors.push_back({name, std::move(shape), m_size, size, weight_decay});
  m_index.emplace(name, index);
  m_size += (size + alignment - 1) / alignment * alignment;
  return index;
}

TensorRange const& StateLayout::find(std::string const& name) const {
  auto const found = m_index.find(name);
  if (found == m_index.end()) {
    std::string names;
    for (TensorRange const& tensor : m_tensors) names += " " + tensor.name;
    SPOROS_THROW_IF(true, "there is no tensor \"", name, "\" among", names.empty() ? " none" : names);
  }
  return m_tensors[std::size_t(found->second)];
}

void StateLayout::begin_unit() {
  if (m_unit_begins.back() != m_size) m_unit_begins.push_back(m_size);
}

std::vector<Interval> StateLayout::units() const {
  std::vector<Interval> units;
  for (std::size_t u = 0; u < m_unit_begins.size(); ++u)
    units.push_back({m_unit_begins[u], u + 1 < m_unit_begins.size() ? m_unit_begins[u + 1] : m_size});
  return units;
}

Interval StateLayout::owned(std::size_t unit, int rank, int ranks) const {
  SPOROS_THROW_IF(rank < 0 || rank >= ranks, "rank ", rank, " of ", ranks);
  SPOROS_THROW_IF(unit >= m_unit_begins.size(), "unit ", unit, " of ", m_unit_begins.size());
  std::int64_t const begin = m_unit_begins[unit];
  std::int64_t const end = unit + 1 < m_unit_begins.size() ? m_unit_begins[unit + 1] : m_size;
  // The first `longer` ranks have one granule more. Not granules·rank/ranks, which could overflow.
  std::int64_t const granules = (end - begin + granule - 1) / granule, share = granules / ranks,
                     longer = granules % ranks;
  auto const begin_of = [&](std::int64_t r) {
    return begin + std::min((share * r + std::min(r, longer)) * granule, end - begin);
  };
  return {begin_of(rank), begin_of(rank + 1)};
}

std::vector<OwnedPart> StateLayout::owned(int rank, int ranks) const {
  std::vector<OwnedPart> parts;
  std::int64_t offset = 0;
  for (std::size_t unit = 0; unit < m_unit_begins.size(); ++unit) {
    Interval const range = owned(unit, rank, ranks);
    parts.push_back({unit, range, offset});
    offset += range.size();
  }
  return parts;
}

}  // namespace Sporos
