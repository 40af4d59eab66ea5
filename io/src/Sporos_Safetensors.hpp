// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_SAFETENSORS_HPP
#define SPOROS_SAFETENSORS_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "Sporos_Error.hpp"
#include "Sporos_StorageTypes.hpp"

namespace Sporos {
namespace Impl {
class File;
}

/// The name of T in a safetensors file
template <class T>
constexpr char const* safetensors_type() {
  if constexpr (std::is_same_v<T, double>) return "F64";
  if constexpr (std::is_same_v<T, float>) return "F32";
  if constexpr (std::is_same_v<T, float16>) return "F16";
  if constexpr (std::is_same_v<T, bfloat16>) return "BF16";
  if constexpr (std::is_same_v<T, float8_e4m3>) return "F8_E4M3";
  if constexpr (std::is_same_v<T, float8_e5m2>) return "F8_E5M2";
  if constexpr (std::is_same_v<T, float8_e4m3fnuz>) return "F8_E4M3FNUZ";
  if constexpr (std::is_same_v<T, float8_e5m2fnuz>) return "F8_E5M2FNUZ";
  if constexpr (std::is_same_v<T, std::int64_t>) return "I64";
  if constexpr (std::is_same_v<T, std::int32_t>) return "I32";
  if constexpr (std::is_same_v<T, std::uint8_t>) return "U8";
}

/// A tensor to be written: row-major elements in memory, or made when it is their turn
struct SafetensorsTensor {
  template <class T>
  SafetensorsTensor(std::string n, std::vector<std::int64_t> s, T const* d)
      : name(std::move(n)), type(safetensors_type<T>()), shape(std::move(s)), data(d) {}

  /// \param m called once, when the tensor is written: all its bytes. So a file may be larger than the memory.
  SafetensorsTensor(std::string n, std::string t, std::vector<std::int64_t> s,
                    std::function<std::vector<std::byte>()> m)
      : name(std::move(n)), type(std::move(t)), shape(std::move(s)), make(std::move(m)) {}

  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  void const* data = nullptr;
  std::function<std::vector<std::byte>()> make;
};

/// Writes a safetensors file: 8 bytes length, a JSON header, the tensors (https://huggingface.co/docs/safetensors). Tensors of
/// larger element types come first, so that each is aligned, then by name. The file appears whole or not at all.
/// Throws InvalidArgument for a name that is given twice or is "__metadata__", InputError if the file cannot be written.
void write_safetensors(std::string const& path, std::vector<SafetensorsTensor> const& tensors,
                       std::map<std::string, std::string> const& metadata = {});

/// Writes a model as Hugging Face's programs look for it: `model.safetensors`, or where the tensors have more than `shard_bytes`
/// in all, files `model-00001-of-0000N.safetensors` of at most so many (one tensor may be larger) in the given order, and
/// last `model.safetensors.index.json`, which says where each tensor is. Makes the directory.
/// Throws InputError where it holds a model already, or cannot be written to.
void write_safetensors_model(std::string const& directory, std::vector<SafetensorsTensor> const& tensors,
                             std::int64_t shard_bytes, std::map<std::string, std::string> const& metadata = {});

/// A safetensors file for reading, checked as its specification demands when it is opened
class SafetensorsFile {
 public:
  struct Tensor {
    std::string type;  ///< as in the file: "F32", "BF16", …
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0;  ///< in the file
    std::int64_t bytes = 0;
  };

  /// Throws InputError, which names the file and what is wrong with it.
  explicit SafetensorsFile(std::string path);

  std::string const& path() const { return m_path; }
  std::map<std::string, Tensor> const& tensors() const { return m_tensors; }
  std::map<std::string, std::string> const& metadata() const { return m_metadata; }

  /// Throws InputError where there is no such tensor.
  Tensor const& find(std::string const& name) const;

  /// All elements of a tensor, row-major. Throws InputError where it is of another type or shape.
  template <class T>
  std::vector<T> read(std::string const& name, std::vector<std::int64_t> const& shape) const {
    require(name, safetensors_type<T>(), shape);
    std::vector<T> values(std::size_t(find(name).bytes) / sizeof(T));
    read_bytes(name, values.data());
    return values;
  }

  /// The bytes of a tensor of any type
  void read_bytes(std::string const& name, void* data) const;

 private:
  void parse(std::string const& header, std::int64_t data_begin, std::int64_t file_bytes);
  void require(std::string const& name, std::string const& type, std::vector<std::int64_t> const& shape) const;

  std::string m_path;
  std::shared_ptr<Impl::File const> m_file;
  std::map<std::string, Tensor> m_tensors;
  std::map<std::string, std::string> m_metadata;
};

/// The safetensors files of one model, each tensor in one of them
class SafetensorsModel {
 public:
  /// \param path a .safetensors file, an index (.json), or a directory with `model.safetensors.index.json` or
  /// `model.safetensors`.
  /// Throws InputError where a file is missing or damaged, and where index and files do not have the same tensors.
  explicit SafetensorsModel(std::string const& path);
  SafetensorsModel(SafetensorsModel const&) = delete;
  SafetensorsModel& operator=(SafetensorsModel const&) = delete;

  /// Where the files lie
  std::string const& directory() const { return m_directory; }
  /// Which file has a tensor, by the tensor's name
  std::map<std::string, SafetensorsFile const*> const& tensors() const { return m_tensors; }

 private:
  std::string m_directory;
  std::map<std::string, SafetensorsFile> m_files;
  std::map<std::string, SafetensorsFile const*> m_tensors;
};

}  // namespace Sporos

#endif
