// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_CheckpointFile.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "Sporos_Error.hpp"

namespace Sporos::Tool {

using namespace Impl;

CheckpointFile::CheckpointFile(std::string path)
    : m_path(std::move(path)), m_manifest(parse_checkpoint_manifest(read_checkpoint_manifest_text(m_path), m_path)) {
  std::size_t const tensors = m_manifest.layout.tensors().size();
  m_pieces.resize(m_manifest.arrays.size() * tensors);
  for (std::size_t p = 0; p < m_manifest.pieces.size(); ++p)
    m_pieces[m_manifest.pieces[p].array * tensors + m_manifest.pieces[p].tensor].push_back(p);
}

std::optional<std::size_t> CheckpointFile::find_array(std::string const& group) const {
  auto const& arrays = m_manifest.arrays;
  auto const found =
      std::find_if(arrays.begin(), arrays.end(), [&](CheckpointArray const& array) { return array.group == group; });
  if (found == arrays.end()) return std::nullopt;
  return std::size_t(found - arrays.begin());
}

std::optional<std::size_t> CheckpointFile::find_tensor(std::string const& name) const {
  auto const& tensors = m_manifest.layout.tensors();
  auto const found =
      std::find_if(tensors.begin(), tensors.end(), [&](TensorRange const& tensor) { return tensor.name == name; });
  if (found == tensors.end()) return std::nullopt;
  return std::size_t(found - tensors.begin());
}

std::vector<std::byte> CheckpointFile::read(std::size_t array, std::size_t tensor) const {
  auto const& tensors = m_manifest.layout.tensors();
  std::int64_t const element = bytes_of(m_manifest.arrays[array].type);
  std::vector<std::byte> all(std::size_t(tensors[tensor].size * element));
  Hdf5Session const session;
  CheckpointData data(m_path, m_manifest);
  for (std::size_t const p : m_pieces[array * tensors.size() + tensor]) {
    std::vector<std::byte> const& piece = data.read(m_manifest.pieces[p]);
    std::memcpy(all.data() + m_manifest.pieces[p].first * element, piece.data(), piece.size());
  }
  return all;
}

std::int64_t CheckpointFile::verify() const {
  Hdf5Session const session;
  CheckpointData data(m_path, m_manifest);
  std::int64_t bytes = 0;
  for (CheckpointPiece const& piece : m_manifest.pieces) bytes += std::int64_t(data.read(piece).size());
  return bytes;
}

bool is_checkpoint(std::string const& path) {
  std::error_code ignored;
  return std::filesystem::exists(path + "/" + checkpoint_manifest_file, ignored) ||
         std::filesystem::exists(path + "/" + checkpoint_data_file, ignored);
}

std::vector<std::string> checkpoints_at(std::string const& path) {
  if (is_checkpoint(path)) return {path};
  std::vector<std::string> paths;
  auto const names = list_checkpoints(path);
  for (auto name = names.rbegin(); name != names.rend(); ++name) paths.push_back(path + "/" + name->text());
  SPOROS_THROW_INPUT_ERROR_IF(paths.empty(), path, " is no checkpoint and holds none");
  return paths;
}

CheckpointFile open_checkpoint(std::string const& path) {
  std::vector<std::string> const paths = checkpoints_at(path);
  std::string reasons;
  for (auto candidate = paths.rbegin(); candidate != paths.rend(); ++candidate) {
    try {
      return CheckpointFile(*candidate);
    } catch (InputError const& error) {
      if (paths.size() == 1) throw;
      reasons += std::string("\n  ") + error.what();
    }
  }
  throw InputError(path + " holds no whole checkpoint:" + reasons);
}

}  // namespace Sporos::Tool
