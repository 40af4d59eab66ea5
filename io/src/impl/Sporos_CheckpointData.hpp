// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_IMPL_CHECKPOINTDATA_HPP
#define SPOROS_IMPL_CHECKPOINTDATA_HPP

#include <cstddef>
#include <string>
#include <vector>

#include "impl/Sporos_CheckpointFormat.hpp"
#include "impl/Sporos_Files.hpp"
#include "impl/Sporos_Hdf5.hpp"

namespace Sporos::Impl {

/// The text of a checkpoint's manifest.json, after what can be said of it at a glance: that it is whole, and that data.h5 has
/// the size it should have. Throws InputError.
std::string read_checkpoint_manifest_text(std::string const& directory);

/// The same text, understood
CheckpointManifest parse_checkpoint_manifest(std::string const& text, std::string const& directory);

/// The data of a checkpoint, opened by one process for itself. Its caller holds a Hdf5Session for as long as it lives.
class CheckpointData {
 public:
  /// \param directory of the checkpoint
  CheckpointData(std::string const& directory, CheckpointManifest const& manifest);

  /// Tells the system that a piece will be read soon. Says nothing of errors: read() will.
  void announce(CheckpointPiece const& piece) const;

  /// Reads a piece of the manifest. Throws InputError where it is not what was written. The bytes stay until the next call.
  std::vector<std::byte> const& read(CheckpointPiece const& piece);

 private:
  void check(hid_t dataset, hid_t type, std::string const& name, std::vector<std::int64_t> const& shape) const;

  std::string m_path;
  CheckpointManifest const& m_manifest;
  Hdf5Handle m_file;
  File m_bytes;
  std::vector<std::byte> m_buffer;
};

}  // namespace Sporos::Impl

#endif
