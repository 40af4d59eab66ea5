// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "Sporos_StateLayout.hpp"
#include "impl/Sporos_Files.hpp"

namespace Sporos {
namespace {

using Impl::File;

static_assert(std::endian::native == std::endian::little, "tensors are stored as they lie in memory");

constexpr std::uint64_t largest_header = 100'000'000;  // the specification's own bound
constexpr char const* metadata_key = "__metadata__";

/// 0 for an unknown type
std::int64_t bits_of(std::string const& type) {
  static std::map<std::string, std::int64_t> const bits{
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  auto const found = bits.find(type);
  return found == bits.end() ? 0 : found->second;
}

std::int64_t byte_count(std::string const& type, std::vector<std::int64_t> const& shape) {
  std::int64_t bits = bits_of(type);
  SPOROS_THROW_INPUT_ERROR_IF(bits == 0, "has the unknown type ", type);
  for (std::int64_t const extent : shape) {
    SPOROS_THROW_INPUT_ERROR_IF(extent < 0 || (extent > 0 && bits > std::numeric_limits<std::int64_t>::max() / extent),
                                "has the impossible shape ", shape_text(shape));
    bits *= extent;
  }
  SPOROS_THROW_INPUT_ERROR_IF(bits % 8 != 0, "of type ", type, " and shape ", shape_text(shape),
                              " does not fill whole bytes");
  return bits / 8;
}

std::int64_t natural(nlohmann::json const& value) {
  SPOROS_THROW_INPUT_ERROR_IF(!value.is_number_unsigned() ||
                                  value.get<std::uint64_t>() > std::uint64_t(std::numeric_limits<std::int64_t>::max()),
                              "has ", value.dump(), " where a natural number below 2^63 belongs");
  return value.get<std::int64_t>();
}

/// The parser itself keeps the last of two members of one name; the specification allows none twice.
nlohmann::json parse_without_duplicates(std::string const& text) {
  std::vector<std::set<std::string>> open_objects;
  return nlohmann::json::parse(text, [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(value.get<std::string>()).second)
      throw InputError("the header has " + value.dump() + " twice");
    return true;
  });
}

}  // namespace

void write_safetensors(std::string const& path, std::vector<SafetensorsTensor> const& tensors,
                       std::map<std::string, std::string> const& metadata) {
  std::vector<SafetensorsTensor const*> order;
  for (SafetensorsTensor const& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](SafetensorsTensor const* a, SafetensorsTensor const* b) {
    return std::pair(-bits_of(a->type), a->name) < std::pair(-bits_of(b->type), b->name);
  });

  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  std::vector<std::int64_t> bytes;
  std::int64_t end = 0;
  for (SafetensorsTensor const* tensor : order) {
    SPOROS_THROW_IF(header.contains(tensor->name) || tensor->name == metadata_key, "the name \"", tensor->name,
                    "\" is taken");
    bytes.push_back(byte_count(tensor->type, tensor->shape));
    header[tensor->name] = {
        {"dtype", tensor->type}, {"shape", tensor->shape}, {"data_offsets", {end, end + bytes.back()}}};
    end += bytes.back();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  SPOROS_THROW_IF(text.size() > largest_header, "a header of ", text.size(), " bytes; ", largest_header,
                  " are allowed");

  std::string const temporary = path + ".tmp";
  File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  std::uint64_t const length = text.size();
  file.write(&length, sizeof(length));
  file.write(text.data(), text.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!order[i]->make) {
      file.write(order[i]->data, std::size_t(bytes[i]));
      continue;
    }
    std::vector<std::byte> const made = order[i]->make();
    SPOROS_THROW_IF(std::int64_t(made.size()) != bytes[i], "tensor \"", order[i]->name, "\" has ", bytes[i],
                    " bytes and was made with ", made.size());
    file.write(made.data(), made.size());
  }
  file.sync();
  file.close();
  Impl::rename_path(temporary, path);
}

namespace {

constexpr char const* single_file = "model.safetensors";
constexpr char const* index_file = "model.safetensors.index.json";

std::string shard_name(std::size_t number, std::size_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", number, count);
  return text;
}

}  // namespace

void write_safetensors_model(std::string const& directory, std::vector<SafetensorsTensor> const& tensors,
                             std::int64_t shard_bytes, std::map<std::string, std::string> const& metadata) {
  SPOROS_THROW_IF(shard_bytes < 1, "shards of at most ", shard_bytes, " bytes");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  SPOROS_THROW_INPUT_ERROR_IF(error, "cannot make the directory ", directory, ": ", error.message());
  for (char const* const name : {single_file, index_file})
    SPOROS_THROW_INPUT_ERROR_IF(std::filesystem::exists(directory + "/" + name, error), directory, " holds a model, ",
                                name, ", already");

  std::vector<std::vector<SafetensorsTensor>> shards(1);
  std::int64_t total = 0, in_shard = 0;
  for (SafetensorsTensor const& tensor : tensors) {
    std::int64_t const bytes = byte_count(tensor.type, tensor.shape);
    if (in_shard > 0 && in_shard + bytes > shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += bytes;
    total += bytes;
  }
  if (shards.size() == 1) return write_safetensors(directory + "/" + single_file, tensors, metadata);

  nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::json::object()}};
  for (std::size_t s = 0; s < shards.size(); ++s) {
    std::string const name = shard_name(s + 1, shards.size());
    write_safetensors(directory + "/" + name, shards[s], metadata);
    for (SafetensorsTensor const& tensor : shards[s]) {
      SPOROS_THROW_IF(index["weight_map"].contains(tensor.name), "the name \"", tensor.name, "\" is taken");
      index["weight_map"][tensor.name] = name;
    }
  }
  Impl::replace_file(directory + "/" + index_file, index.dump(2) + "\n");
}

SafetensorsFile::SafetensorsFile(std::string path)
    : m_path(std::move(path)), m_file(std::make_shared<File>(m_path, O_RDONLY)) {
  std::int64_t const bytes = m_file->size();
  std::uint64_t length = 0;
  SPOROS_THROW_INPUT_ERROR_IF(bytes < std::int64_t(sizeof(length)), m_path, " has ", bytes,
                              " bytes; a safetensors file has at least 8");
  m_file->read(&length, sizeof(length), 0);
  SPOROS_THROW_INPUT_ERROR_IF(length > largest_header, m_path, " says its header has ", length, " bytes; ",
                              largest_header, " are allowed");
  auto const data_begin = std::int64_t(sizeof(length) + length);
  SPOROS_THROW_INPUT_ERROR_IF(data_begin > bytes, m_path, " has ", bytes, " bytes; its header alone should reach to ",
                              data_begin);
  std::string header(std::size_t(length), '\0');
  m_file->read(header.data(), header.size(), sizeof(length));
  try {
    parse(header, data_begin, bytes);
  } catch (std::exception const& error) {
    throw InputError(m_path + ": " + error.what());
  }
}

void SafetensorsFile::parse(std::string const& header, std::int64_t data_begin, std::int64_t file_bytes) {
  SPOROS_THROW_INPUT_ERROR_IF(header.empty() || header.front() != '{', "the header does not begin with {");
  auto const json = parse_without_duplicates(header);
  for (auto const& [name, value] : json.items()) {
    if (name == metadata_key) {
      m_metadata = value.get<std::map<std::string, std::string>>();
      continue;
    }
    try {
      Tensor tensor;
      tensor.type = value.at("dtype").get<std::string>();
      for (auto const& extent : value.at("shape")) tensor.shape.push_back(natural(extent));
      auto const& offsets = value.at("data_offsets");
      SPOROS_THROW_INPUT_ERROR_IF(offsets.size() != 2, "has data_offsets ", offsets.dump());
      std::int64_t const begin = natural(offsets.at(0)), end = natural(offsets.at(1));
      tensor.bytes = byte_count(tensor.type, tensor.shape);
      SPOROS_THROW_INPUT_ERROR_IF(end < begin || end - begin != tensor.bytes, "has data_offsets ", offsets.dump(),
                                  " but ", tensor.bytes, " bytes, being ", tensor.type, " of shape ",
                                  shape_text(tensor.shape));
      SPOROS_THROW_INPUT_ERROR_IF(end > file_bytes - data_begin, "ends at byte ", end, " of ", file_bytes - data_begin);
      tensor.offset = data_begin + begin;
      m_tensors.emplace(name, std::move(tensor));
    } catch (std::exception const& error) {
      throw InputError("tensor \"" + name + "\" " + error.what());
    }
  }

  std::vector<Tensor const*> order;
  for (auto const& [name, tensor] : m_tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](Tensor const* a, Tensor const* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  std::int64_t end = data_begin;
  for (Tensor const* tensor : order) {
    SPOROS_THROW_INPUT_ERROR_IF(tensor->offset != end, "one tensor ends at byte ", end - data_begin,
                                " and the next begins at ", tensor->offset - data_begin);
    end += tensor->bytes;
  }
  SPOROS_THROW_INPUT_ERROR_IF(end != file_bytes, "the tensors end at byte ", end, " of ", file_bytes);
}

SafetensorsFile::Tensor const& SafetensorsFile::find(std::string const& name) const {
  auto const found = m_tensors.find(name);
  SPOROS_THROW_INPUT_ERROR_IF(found == m_tensors.end(), m_path, " has no tensor ", name);
  return found->second;
}

void SafetensorsFile::require(std::string const& name, std::string const& type,
                              std::vector<std::int64_t> const& shape) const {
  Tensor const& tensor = find(name);
  SPOROS_THROW_INPUT_ERROR_IF(tensor.type != type || tensor.shape != shape, m_path, " has ", name, " as ", tensor.type,
                              " of shape ", shape_text(tensor.shape), "; ", type, " of shape ", shape_text(shape),
                              " is needed");
}

void SafetensorsFile::read_bytes(std::string const& name, void* data) const {
  Tensor const& tensor = find(name);
  m_file->read(data, std::size_t(tensor.bytes), tensor.offset);
}

namespace {

/// The weight_map of an index: tensor name to file name
std::map<std::string, std::string> read_index(std::string const& path) {
  try {
    auto const map =
        parse_without_duplicates(Impl::read_file(path)).at("weight_map").get<std::map<std::string, std::string>>();
    for (auto const& [tensor, file] : map)
      SPOROS_THROW_INPUT_ERROR_IF(file.empty() || file.find('/') != std::string::npos || file == "..", "tensor \"",
                                  tensor, "\" is said to be in \"", file, "\", which is no name of a file beside it");
    return map;
  } catch (nlohmann::json::exception const& error) {
    throw InputError(path + ": " + error.what());
  } catch (InputError const& error) {
    throw InputError(path + ": " + error.what());
  }
}

}  // namespace

SafetensorsModel::SafetensorsModel(std::string const& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string file = path;
  if (fs::is_directory(path, ignored)) {
    file = path + "/" + index_file;
    if (!fs::exists(file, ignored)) file = path + "/" + single_file;
    SPOROS_THROW_INPUT_ERROR_IF(!fs::exists(file, ignored), path, " has neither ", single_file, " nor ", index_file);
  }
  m_directory = fs::path(file).parent_path().string();
  if (m_directory.empty()) m_directory = ".";

  if (!file.ends_with(".json")) {
    SafetensorsFile const& only = m_files.try_emplace(file, file).first->second;
    for (auto const& [name, tensor] : only.tensors()) m_tensors.emplace(name, &only);
    return;
  }
  for (auto const& [name, shard] : read_index(file)) {
    std::string const shard_path = m_directory + "/" + shard;
    auto found = m_files.find(shard_path);
    if (found == m_files.end()) found = m_files.try_emplace(shard_path, shard_path).first;
    SPOROS_THROW_INPUT_ERROR_IF(found->second.tensors().count(name) == 0, file, " says that tensor \"", name,
                                "\" is in ", shard, "; it is not");
    m_tensors.emplace(name, &found->second);
  }
  for (auto const& [shard_path, shard] : m_files)
    for (auto const& [name, tensor] : shard.tensors())
      SPOROS_THROW_INPUT_ERROR_IF(m_tensors.count(name) == 0 || m_tensors.at(name) != &shard, shard_path,
                                  " holds tensor \"", name, "\", of which ", file, " does not know");
}

}  // namespace Sporos
