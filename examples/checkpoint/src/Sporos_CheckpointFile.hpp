// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_CHECKPOINTFILE_HPP
#define SPOROS_CHECKPOINTFILE_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "impl/Sporos_CheckpointData.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"

namespace Sporos::Tool {

/// One checkpoint, opened by one process
class CheckpointFile {
 public:
  /// Throws InputError where the manifest is not whole or the data have another size than it says.
  explicit CheckpointFile(std::string path);

  std::string const& path() const { return m_path; }
  Impl::CheckpointManifest const& manifest() const { return m_manifest; }

  std::optional<std::size_t> find_array(std::string const& group) const;
  std::optional<std::size_t> find_tensor(std::string const& name) const;

  /// The elements of a tensor, as they are stored. Throws InputError where they are not what was written.
  std::vector<std::byte> read(std::size_t array, std::size_t tensor) const;

  /// Reads everything; the number of bytes. Throws InputError where any is not what was written.
  std::int64_t verify() const;

 private:
  std::string m_path;
  Impl::CheckpointManifest m_manifest;
  std::vector<std::vector<std::size_t>> m_pieces;  // of array · tensors + tensor
};

/// Whether a path is a checkpoint itself, by what it holds
bool is_checkpoint(std::string const& path);

/// The checkpoints that a path means: itself, or those in it, oldest first. Throws InputError where there is none.
std::vector<std::string> checkpoints_at(std::string const& path);

/// The checkpoint that a path means: itself, or the newest in it whose manifest is whole. Throws InputError where there is none.
CheckpointFile open_checkpoint(std::string const& path);

}  // namespace Sporos::Tool

#endif
