// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_Crc32c.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"
#include "impl/Sporos_Files.hpp"
#include "impl/Sporos_Hdf5.hpp"

namespace Sporos {

using namespace Impl;

struct CheckpointReader::Contents {
  std::string path;
  CheckpointManifest manifest;
};

namespace {

/// The data of a checkpoint, opened by one rank for itself
class DataFile {
 public:
  explicit DataFile(std::string const& directory, CheckpointManifest const& manifest)
      : m_path(directory + "/" + checkpoint_data_file), m_manifest(manifest) {
    Hdf5Handle const access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list");
#if H5_VERSION_GE(1, 14, 0) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
    // Nobody writes to it any more, and some parallel file systems have no locks.
    hdf5_check(H5Pset_file_locking(access, 0, 1), "do without file locks");
#endif
    m_file = Hdf5Handle(H5Fopen(m_path.c_str(), H5F_ACC_RDONLY, access), H5Fclose, "open ", m_path);
  }

  /// Reads a piece and compares its CRC with the one that was taken before it was written.
  std::vector<std::byte> const& read(CheckpointPiece const& piece) {
    CheckpointArray const& array = m_manifest.arrays[piece.array];
    TensorRange const& tensor = m_manifest.layout.tensors()[piece.tensor];
    std::string const name = array.group + "/" + tensor.name;
    Hdf5Handle const dataset(H5Dopen2(m_file, name.c_str(), H5P_DEFAULT), H5Dclose, "open the dataset ", name, " of ",
                             m_path);
    Hdf5Handle const type = hdf5_type(array.type);
    check(dataset, type, name, tensor.shape);

    m_buffer.resize(std::size_t(piece.count * bytes_of(array.type)));
    for_each_selection(
        dataset, tensor.shape, piece.first, piece.count, [&](hid_t memory, hid_t file, std::int64_t done) {
          hdf5_check(H5Dread(dataset, type, memory, file, H5P_DEFAULT, m_buffer.data() + done * bytes_of(array.type)),
                     "read ", name, " of ", m_path);
        });
    SPOROS_THROW_INPUT_ERROR_IF(crc32c(m_buffer.data(), m_buffer.size()) != piece.crc32c, m_path,
                                " is damaged: elements ", piece.first, " to ", piece.first + piece.count, " of ", name,
                                " are not what was written");
    return m_buffer;
  }

 private:
  void check(hid_t dataset, hid_t type, std::string const& name, std::vector<std::int64_t> const& shape) const {
    Hdf5Handle const space(H5Dget_space(dataset), H5Sclose, "get the shape of ", name);
    std::vector<hsize_t> extents(std::size_t(hdf5_check(H5Sget_simple_extent_ndims(space), "get the shape of ", name)));
    hdf5_check(H5Sget_simple_extent_dims(space, extents.data(), nullptr), "get the shape of ", name);
    std::vector<std::int64_t> const found(extents.begin(), extents.end());
    SPOROS_THROW_INPUT_ERROR_IF(found != shape, m_path, " has ", name, " with shape ", shape_text(found),
                                ", the manifest with ", shape_text(shape));
    Hdf5Handle const found_type(H5Dget_type(dataset), H5Tclose, "get the type of ", name);
    SPOROS_THROW_INPUT_ERROR_IF(hdf5_check(H5Tequal(found_type, type), "compare types") == 0, m_path, " has ", name,
                                " with another element type than the manifest");
  }

  std::string m_path;
  CheckpointManifest const& m_manifest;
  Hdf5Handle m_file;
  std::vector<std::byte> m_buffer;
};

CheckpointManifest read_manifest(std::string const& text, std::string const& directory) {
  return CheckpointManifest::from_text(text, directory + "/" + checkpoint_manifest_file);
}

// What rank 0 sees at a glance; the others get the text.
std::string read_manifest_text(std::string const& directory) {
  std::string const text = read_file(directory + "/" + checkpoint_manifest_file);
  CheckpointManifest const manifest = read_manifest(text, directory);
  std::string const data = directory + "/" + checkpoint_data_file;
  std::int64_t const bytes = File(data, O_RDONLY).size();
  SPOROS_THROW_INPUT_ERROR_IF(bytes != manifest.data_bytes, data, " has ", bytes, " bytes and should have ",
                              manifest.data_bytes);
  return text;
}

/// What keeps the arrays of a checkpoint from a state with other tensors or types; empty if nothing does
std::string differences(CheckpointManifest const& manifest, StateLayout const& layout,
                        std::vector<CheckpointTarget> const& targets) {
  std::map<std::string, std::pair<std::string, std::string>> shapes;
  for (TensorRange const& tensor : manifest.layout.tensors())
    shapes[tensor.name] = {shape_text(tensor.shape), "absent"};
  for (TensorRange const& tensor : layout.tensors()) {
    auto& [here, wanted] = shapes.try_emplace(tensor.name, "absent", "").first->second;
    wanted = shape_text(tensor.shape);
  }
  std::string text;
  for (auto const& [name, both] : shapes)
    if (both.first != both.second)
      text += "\n  " + name + " is " + both.first + " in the checkpoint and " + both.second + " in the model";

  auto const types = [](auto const& arrays, auto const& array_of) {
    std::map<std::string, std::string> result;
    for (auto const& one : arrays) result[array_of(one).group] = name_of(array_of(one).type);
    return result;
  };
  auto const have = types(manifest.arrays, [](CheckpointArray const& array) { return array; });
  auto const want = types(targets, [](CheckpointTarget const& target) { return target.array; });
  if (have == want) return text;
  auto const list = [](std::map<std::string, std::string> const& all) {
    std::string result;
    for (auto const& [group, type] : all) result += (result.empty() ? "" : ", ") + group + " " + type;
    return result;
  };
  return text + "\n  the checkpoint holds " + list(have) + "; the model needs " + list(want);
}

}  // namespace

CheckpointReader::CheckpointReader(Communicator const& communicator, std::shared_ptr<Contents const> contents)
    : m_communicator(communicator), m_contents(std::move(contents)) {}

std::optional<CheckpointReader> CheckpointReader::newest_valid(
    Communicator const& communicator, std::string const& directory,
    std::function<void(std::string const&)> const& on_skipped) {
  std::vector<CheckpointName> names;  // of rank 0, which decides for all
  communicator.run_agreed([&] {
    if (communicator.rank() != 0) return;
    std::error_code error;
    bool const exists = std::filesystem::exists(directory, error);
    SPOROS_THROW_INPUT_ERROR_IF(error, "cannot look at ", directory, ": ", error.message());
    if (exists) names = list_checkpoints(directory);
  });
  std::uint64_t count = names.size();
  communicator.broadcast(count);

  for (std::uint64_t i = 0; i < count; ++i) {
    auto contents = std::make_shared<Contents>();
    try {
      std::string text;
      communicator.run_agreed([&] {
        if (communicator.rank() != 0) return;
        contents->path = directory + "/" + names[i].text();
        text = read_manifest_text(contents->path);
      });
      communicator.broadcast(contents->path);
      communicator.broadcast(text);
      communicator.run_agreed([&] {
        contents->manifest = read_manifest(text, contents->path);
        Hdf5Session const session;
        DataFile data(contents->path, contents->manifest);
        auto const& pieces = contents->manifest.pieces;
        for (std::size_t p = std::size_t(communicator.rank()); p < pieces.size(); p += std::size_t(communicator.size()))
          data.read(pieces[p]);
      });
      return CheckpointReader(communicator, std::move(contents));
    } catch (AgreedError const& error) {
      if (communicator.rank() == 0 && on_skipped) on_skipped(error.what());
    }
  }
  return std::nullopt;
}

void CheckpointReader::read(StateLayout const& layout, std::vector<CheckpointTarget> const& targets) const {
  CheckpointManifest const& manifest = m_contents->manifest;
  m_communicator.run_agreed([&] {
    std::string const text = differences(manifest, layout, targets);
    SPOROS_THROW_INPUT_ERROR_IF(!text.empty(), "the checkpoint ", m_contents->path, " is of another model:", text);
  });
  // By name, not by position: the tensors may stand in another order.
  std::vector<std::int64_t> offsets;
  for (TensorRange const& tensor : manifest.layout.tensors()) offsets.push_back(layout.find(tensor.name).offset);
  std::vector<CheckpointTarget const*> target_of;
  for (CheckpointArray const& array : manifest.arrays)
    target_of.push_back(&*std::find_if(targets.begin(), targets.end(), [&](CheckpointTarget const& target) {
      return target.array.group == array.group;
    }));

  // In each round every rank reads one piece, and all get all of them: the file is read once, by all together.
  std::size_t const size = std::size_t(m_communicator.size()), rank = std::size_t(m_communicator.rank());
  auto const& pieces = manifest.pieces;
  std::optional<DataFile> data;
  std::vector<std::byte> received;
  std::string error;
  for (std::size_t base = 0; base < pieces.size(); base += size) {
    std::vector<std::byte> const* mine = nullptr;
    if (base + rank < pieces.size() && error.empty()) {
      try {
        Hdf5Session const session;
        if (!data) data.emplace(m_contents->path, manifest);
        mine = &data->read(pieces[base + rank]);
      } catch (std::exception const& exception) {
        error = exception.what();
      }
    }
    m_communicator.agree_no_error(error);
    for (std::size_t root = 0; root < size && base + root < pieces.size(); ++root) {
      CheckpointPiece const& piece = pieces[base + root];
      received.resize(std::size_t(piece.count * bytes_of(manifest.arrays[piece.array].type)));
      std::byte* bytes = received.data();
      if (root == rank) bytes = const_cast<std::byte*>(mine->data());  // which MPI only reads at the root
      MPI_Bcast(bytes, int(received.size()), MPI_BYTE, int(root), m_communicator.handle());
      target_of[piece.array]->copy(offsets[piece.tensor] + piece.first, piece.count, bytes);
    }
  }
}

nlohmann::json const& CheckpointReader::metadata() const { return m_contents->manifest.metadata; }
std::int64_t CheckpointReader::step() const { return m_contents->manifest.step; }
std::int64_t CheckpointReader::optimizer_step() const { return m_contents->manifest.optimizer_step; }
std::string const& CheckpointReader::path() const { return m_contents->path; }
StateLayout const& CheckpointReader::layout() const { return m_contents->manifest.layout; }

}  // namespace Sporos
