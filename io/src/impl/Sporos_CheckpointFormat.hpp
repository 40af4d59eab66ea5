// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_IMPL_CHECKPOINTFORMAT_HPP
#define SPOROS_IMPL_CHECKPOINTFORMAT_HPP

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "Sporos_Checkpoint.hpp"
#include "impl/Sporos_Hdf5.hpp"

namespace Sporos::Impl {

inline constexpr char const* checkpoint_data_file = "data.h5";
inline constexpr char const* checkpoint_manifest_file = "manifest.json";

char const* name_of(ElementType type);
std::int64_t bytes_of(ElementType type);
Hdf5Handle hdf5_type(ElementType type);

/// Elements [first, first + count) of a tensor in one of the arrays, written by one rank in one go
struct CheckpointPiece {
  std::size_t array = 0;
  std::size_t tensor = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::uint32_t crc32c = 0;
};

/// The pieces of a rank that owns these parts of each array, array by array and in the order of the parts. None has more than
/// 2^28 bytes: a piece is a buffer when it is read, and far from the 2^31 bytes at which transfers of MPI and of HDF5 have
/// failed.
std::vector<CheckpointPiece> checkpoint_pieces(StateLayout const& layout, std::vector<CheckpointArray> const& arrays,
                                               std::vector<OwnedPart> const& owned);

/// The text of manifest.json
struct CheckpointManifest {
  std::int64_t step = 0;
  std::int64_t optimizer_step = 0;
  int ranks = 0;
  std::int64_t data_bytes = 0;  ///< the size of data.h5
  std::vector<CheckpointArray> arrays;
  StateLayout layout;
  std::vector<CheckpointPiece> pieces;
  nlohmann::json metadata;

  std::string to_text() const;
  /// Throws InputError that names `path`.
  static CheckpointManifest from_text(std::string const& text, std::string const& path);
};

/// A directory of a checkpoint by its name
struct CheckpointName {
  std::int64_t step = 0;
  int revision = 1;

  std::string text() const;
  static std::optional<CheckpointName> parse(std::string const& text);
  auto operator<=>(CheckpointName const&) const = default;
};

/// The directories in `directory` that are named like checkpoints, newest first. Throws InputError.
std::vector<CheckpointName> list_checkpoints(std::string const& directory);

/// "step-000000000012.unfinished-": what the directory of a save in progress is called, but for its last six characters
std::string unfinished_prefix(std::int64_t step);
/// The step of a directory named so
std::optional<std::int64_t> parse_unfinished(std::string const& name);

/// Throws AgreedError where ranks mean different directories, by their names.
void require_same_directory(Communicator const& communicator, std::string const& directory);

/// Called on the thread that writes a checkpoint as it comes to each of its places. Tests stop, slow down or kill it there.
inline void (*checkpoint_hook)(char const* place) = nullptr;

inline void at_checkpoint_place(char const* place) {
  if (checkpoint_hook) checkpoint_hook(place);
}

}  // namespace Sporos::Impl

#endif
