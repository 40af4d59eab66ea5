// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_CheckpointData.hpp"

#include <fcntl.h>

#include "Sporos_Crc32c.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_Files.hpp"

namespace Sporos::Impl {

std::string read_checkpoint_manifest_text(std::string const& directory) {
  std::string const text = read_file(directory + "/" + checkpoint_manifest_file);
  CheckpointManifest const manifest = parse_checkpoint_manifest(text, directory);
  std::string const data = directory + "/" + checkpoint_data_file;
  std::int64_t const bytes = File(data, O_RDONLY).size();
  SPOROS_THROW_INPUT_ERROR_IF(bytes != manifest.data_bytes, data, " has ", bytes, " bytes and should have ",
                              manifest.data_bytes);
  return text;
}

CheckpointManifest parse_checkpoint_manifest(std::string const& text, std::string const& directory) {
  return CheckpointManifest::from_text(text, directory + "/" + checkpoint_manifest_file);
}

CheckpointData::CheckpointData(std::string const& directory, CheckpointManifest const& manifest)
    : m_path(directory + "/" + checkpoint_data_file), m_manifest(manifest), m_bytes(m_path, O_RDONLY) {
  Hdf5Handle const access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list");
#if H5_VERSION_GE(1, 14, 0) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  // Nobody writes to it any more, and some parallel file systems have no locks.
  hdf5_check(H5Pset_file_locking(access, 0, 1), "do without file locks");
#endif
  m_file = Hdf5Handle(H5Fopen(m_path.c_str(), H5F_ACC_RDONLY, access), H5Fclose, "open ", m_path);
}

void CheckpointData::announce(CheckpointPiece const& piece) const {
  CheckpointArray const& array = m_manifest.arrays[piece.array];
  std::string const name = array.group + "/" + m_manifest.layout.tensors()[piece.tensor].name;
  hid_t const dataset = H5Dopen2(m_file, name.c_str(), H5P_DEFAULT);
  if (dataset < 0) return;
  if (haddr_t const begin = H5Dget_offset(dataset); begin != HADDR_UNDEF)
    m_bytes.begin_read(std::int64_t(begin) + piece.first * bytes_of(array.type), piece.count * bytes_of(array.type));
  H5Dclose(dataset);
}

std::vector<std::byte> const& CheckpointData::read(CheckpointPiece const& piece) {
  CheckpointArray const& array = m_manifest.arrays[piece.array];
  TensorRange const& tensor = m_manifest.layout.tensors()[piece.tensor];
  std::string const name = array.group + "/" + tensor.name;
  Hdf5Handle const dataset(H5Dopen2(m_file, name.c_str(), H5P_DEFAULT), H5Dclose, "open the dataset ", name, " of ",
                           m_path);
  Hdf5Handle const type = hdf5_type(array.type);
  check(dataset, type, name, tensor.shape);

  m_buffer.resize(std::size_t(piece.count * bytes_of(array.type)));
  for_each_selection(dataset, tensor.shape, piece.first, piece.count, [&](hid_t memory, hid_t file, std::int64_t done) {
    hdf5_check(H5Dread(dataset, type, memory, file, H5P_DEFAULT, m_buffer.data() + done * bytes_of(array.type)),
               "read ", name, " of ", m_path);
  });
  SPOROS_THROW_INPUT_ERROR_IF(crc32c(m_buffer.data(), m_buffer.size()) != piece.crc32c, m_path,
                              " is damaged: elements ", piece.first, " to ", piece.first + piece.count, " of ", name,
                              " are not what was written");
  return m_buffer;
}

void CheckpointData::check(hid_t dataset, hid_t type, std::string const& name,
                           std::vector<std::int64_t> const& shape) const {
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

}  // namespace Sporos::Impl
