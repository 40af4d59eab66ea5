// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_CheckpointCommands.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "Sporos_CheckpointFile.hpp"
#include "Sporos_ElementConversion.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_StateLayout.hpp"

namespace Sporos::Tool {
namespace {

using namespace Impl;

std::string name_at_end(std::string const& path) {
  std::filesystem::path const p(path);
  return p.has_filename() ? p.filename().string() : p.parent_path().filename().string();
}

std::string arrays_text(CheckpointManifest const& manifest) {
  std::string text;
  for (CheckpointArray const& array : manifest.arrays)
    text += (text.empty() ? "" : ", ") + array.group + " " + name_of(array.type);
  return text;
}

void list_line(std::string const& path, std::ostream& out) {
  out << std::left << std::setw(24) << name_at_end(path) << std::right;
  try {
    CheckpointFile const file(path);
    CheckpointManifest const& manifest = file.manifest();
    out << std::setw(5) << manifest.ranks << std::setw(16) << manifest.data_bytes << "  " << arrays_text(manifest)
        << "\n";
  } catch (InputError const& error) {
    out << "  not whole: " << error.what() << "\n";
  }
}

void list_contents(std::string const& path, std::ostream& out) {
  CheckpointFile const file(path);
  CheckpointManifest const& manifest = file.manifest();
  std::int64_t elements = 0;
  for (TensorRange const& tensor : manifest.layout.tensors()) elements += tensor.size;
  out << "checkpoint      " << path << "\nstep            " << manifest.step << "\noptimizer step  "
      << manifest.optimizer_step << "\nwritten by      " << manifest.ranks << " ranks\nbytes           "
      << manifest.data_bytes << "\nelements        " << elements << " in " << manifest.layout.tensors().size()
      << " tensors\narrays          " << arrays_text(manifest) << "\nmetadata        " << manifest.metadata.dump(2)
      << "\n\n";
  for (TensorRange const& tensor : manifest.layout.tensors())
    out << std::left << std::setw(32) << tensor.name << " " << shape_text(tensor.shape) << "\n";
}

/// Every value that a JSON has, by its path
std::map<std::string, std::string> leaves(nlohmann::json const& json) {
  std::map<std::string, std::string> result;
  if (!json.is_structured() || json.empty()) return {{"", json.dump()}};
  nlohmann::json const flat = json.flatten();
  for (auto const& [path, value] : flat.items()) result[path] = value.dump();
  return result;
}

/// Collects and prints what two checkpoints have different.
class Differences {
 public:
  Differences(CheckpointFile const& a, CheckpointFile const& b, std::ostream& out) : m_a(a), m_b(b), m_out(out) {}

  bool found() const { return m_found; }

  void compare() {
    values("step", m_a.manifest().step, m_b.manifest().step);
    values("optimizer step", m_a.manifest().optimizer_step, m_b.manifest().optimizer_step);
    maps("metadata ", leaves(m_a.manifest().metadata), leaves(m_b.manifest().metadata));
    maps("tensor ", shapes(m_a), shapes(m_b));
    maps("array ", types(m_a), types(m_b));
    for (std::size_t array = 0; array < m_a.manifest().arrays.size(); ++array)
      for (std::size_t tensor = 0; tensor < m_a.manifest().layout.tensors().size(); ++tensor) elements(array, tensor);
  }

 private:
  using Texts = std::map<std::string, std::string>;

  std::ostream& line() {
    m_found = true;
    return m_out;
  }

  template <class Value>
  void values(char const* what, Value const& a, Value const& b) {
    if (a != b) line() << what << ": " << a << " and " << b << "\n";
  }

  void maps(char const* what, Texts const& a, Texts const& b) {
    std::set<std::string> keys;
    for (auto const& side : {a, b})
      for (auto const& [key, value] : side) keys.insert(key);
    auto const text = [](Texts const& side, std::string const& key) {
      return side.count(key) ? side.at(key) : std::string("absent");
    };
    for (std::string const& key : keys)
      if (text(a, key) != text(b, key))
        line() << what << key << ": " << text(a, key) << " and " << text(b, key) << "\n";
  }

  static Texts shapes(CheckpointFile const& file) {
    Texts result;
    for (TensorRange const& tensor : file.manifest().layout.tensors()) result[tensor.name] = shape_text(tensor.shape);
    return result;
  }

  static Texts types(CheckpointFile const& file) {
    Texts result;
    for (CheckpointArray const& array : file.manifest().arrays) result[array.group] = name_of(array.type);
    return result;
  }

  /// Of what both have in the same shape; compared as numbers where the types differ, bit by bit where not
  void elements(std::size_t array_a, std::size_t tensor_a) {
    CheckpointArray const& group = m_a.manifest().arrays[array_a];
    TensorRange const& tensor = m_a.manifest().layout.tensors()[tensor_a];
    auto const array_b = m_b.find_array(group.group);
    auto const tensor_b = m_b.find_tensor(tensor.name);
    if (!array_b || !tensor_b || m_b.manifest().layout.tensors()[*tensor_b].shape != tensor.shape) return;
    ElementType const type_a = group.type, type_b = m_b.manifest().arrays[*array_b].type;
    std::vector<std::byte> const a = m_a.read(array_a, tensor_a), b = m_b.read(*array_b, *tensor_b);
    if (type_a == type_b && a == b) return;

    auto const size_a = std::size_t(bytes_of(type_a)), size_b = std::size_t(bytes_of(type_b));
    std::int64_t different = 0, first = -1;
    double largest = 0;
    for (std::int64_t i = 0; i < tensor.size; ++i) {
      std::byte const* const at_a = a.data() + std::size_t(i) * size_a;
      std::byte const* const at_b = b.data() + std::size_t(i) * size_b;
      double const x = element_value(type_a, at_a), y = element_value(type_b, at_b);
      if (type_a == type_b ? std::memcmp(at_a, at_b, size_a) == 0 : x == y) continue;
      ++different;
      if (first < 0) first = i;
      double const distance = std::abs(x - y);
      if (std::isnan(distance) || distance > largest) largest = distance;
    }
    if (different > 0)
      line() << group.group << "/" << tensor.name << ": " << different << " of " << tensor.size
             << " elements differ, the first is " << first << ", by at most " << largest << "\n";
  }

  CheckpointFile const& m_a;
  CheckpointFile const& m_b;
  std::ostream& m_out;
  bool m_found = false;
};

}  // namespace

int list(std::string const& path, std::ostream& out) {
  if (is_checkpoint(path)) {
    list_contents(path, out);
    return 0;
  }
  std::vector<std::string> const paths = checkpoints_at(path);
  out << "checkpoint              ranks           bytes  arrays\n";
  for (std::string const& one : paths) list_line(one, out);
  return 0;
}

int verify(std::vector<std::string> const& paths, std::ostream& out) {
  bool whole = true;
  for (std::string const& path : paths)
    for (std::string const& one : checkpoints_at(path)) {
      try {
        CheckpointFile const file(one);
        std::int64_t const bytes = file.verify();
        out << one << ": whole, " << bytes << " bytes in " << file.manifest().pieces.size() << " pieces" << std::endl;
      } catch (InputError const& error) {
        out << one << ": NOT whole: " << error.what() << std::endl;
        whole = false;
      }
    }
  return whole ? 0 : 1;
}

int diff(std::string const& path_a, std::string const& path_b, std::ostream& out) {
  CheckpointFile const a = open_checkpoint(path_a), b = open_checkpoint(path_b);
  Differences differences(a, b, out);
  differences.compare();
  return differences.found() ? 1 : 0;
}

}  // namespace Sporos::Tool
