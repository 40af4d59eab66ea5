// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_CheckpointFormat.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "Sporos_Crc32c.hpp"
#include "Sporos_Error.hpp"

namespace Sporos::Impl {
namespace {

constexpr std::int64_t largest_piece_bytes = std::int64_t(1) << 28;
constexpr char const* format_name = "Sporos checkpoint";
constexpr int format_version = 1;
constexpr char const* unfinished_mark = ".unfinished-";

constexpr ElementType element_types[] = {ElementType::bfloat16, ElementType::float32, ElementType::float64};

std::string hexadecimal(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", unsigned(value));
  return text;
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// The first line is `{"crc32c": "0123abcd",`; the bytes after it are what is checked.
std::string first_line(std::string_view rest) {
  return "{\"crc32c\": \"" + hexadecimal(crc32c(rest.data(), rest.size())) + "\",\n";
}

ElementType element_type_of(std::string const& name) {
  for (ElementType const type : element_types)
    if (name == name_of(type)) return type;
  throw InputError("unknown element type " + name);
}

// What is true of every manifest that to_text() makes: the pieces of each array are its tensors, once.
void check_pieces(CheckpointManifest const& manifest) {
  std::size_t const tensors = manifest.layout.tensors().size();
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> intervals(manifest.arrays.size() * tensors);
  for (CheckpointPiece const& piece : manifest.pieces) {
    SPOROS_THROW_INPUT_ERROR_IF(piece.array >= manifest.arrays.size() || piece.tensor >= tensors || piece.count <= 0 ||
                                    piece.count > largest_piece_bytes,
                                "a piece of tensor ", piece.tensor, " in array ", piece.array, " with ", piece.count,
                                " elements");
    intervals[piece.array * tensors + piece.tensor].emplace_back(piece.first, piece.first + piece.count);
  }
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    TensorRange const& tensor = manifest.layout.tensors()[i % tensors];
    std::sort(intervals[i].begin(), intervals[i].end());
    std::int64_t end = 0;
    for (auto const& [first, last] : intervals[i]) {
      SPOROS_THROW_INPUT_ERROR_IF(first != end, manifest.arrays[i / tensors].group, "/", tensor.name,
                                  " has pieces that end at ", end, " and begin at ", first);
      end = last;
    }
    SPOROS_THROW_INPUT_ERROR_IF(end != tensor.size, "the pieces of ", manifest.arrays[i / tensors].group, "/",
                                tensor.name, " end at ", end, " of ", tensor.size, " elements");
  }
}

}  // namespace

char const* name_of(ElementType type) {
  return type == ElementType::bfloat16 ? "bfloat16" : type == ElementType::float32 ? "float32" : "float64";
}

std::int64_t bytes_of(ElementType type) {
  return type == ElementType::bfloat16 ? 2 : type == ElementType::float32 ? 4 : 8;
}

Hdf5Handle hdf5_type(ElementType type) {
  if (type == ElementType::bfloat16) return hdf5_bfloat16();
  return Hdf5Handle(H5Tcopy(type == ElementType::float32 ? H5T_IEEE_F32LE : H5T_IEEE_F64LE), H5Tclose, "copy a type");
}

std::vector<CheckpointPiece> checkpoint_pieces(StateLayout const& layout, std::vector<CheckpointArray> const& arrays,
                                               std::vector<OwnedPart> const& owned) {
  auto const& tensors = layout.tensors();
  std::vector<CheckpointPiece> pieces;
  for (std::size_t array = 0; array < arrays.size(); ++array) {
    std::int64_t const largest = largest_piece_bytes / bytes_of(arrays[array].type);
    for (auto const& [unit, range, offset] : owned) {
      auto const begin = std::partition_point(tensors.begin(), tensors.end(), [&](TensorRange const& tensor) {
        return tensor.offset + tensor.size <= range.first;
      });
      for (auto tensor = begin; tensor != tensors.end() && tensor->offset < range.last; ++tensor) {
        std::int64_t const end = std::min(range.last - tensor->offset, tensor->size);
        for (std::int64_t at = std::max<std::int64_t>(range.first - tensor->offset, 0); at < end; at += largest)
          pieces.push_back({array, std::size_t(tensor - tensors.begin()), at, std::min(largest, end - at)});
      }
    }
  }
  return pieces;
}

std::string CheckpointManifest::to_text() const {
  using Json = nlohmann::json;
  Json array_list = Json::array();
  Json tensor_list = Json::array();
  Json piece_list = Json::array();
  for (CheckpointArray const& array : arrays)
    array_list.push_back({{"group", array.group}, {"type", name_of(array.type)}});
  for (TensorRange const& tensor : layout.tensors())
    tensor_list.push_back({{"name", tensor.name}, {"shape", tensor.shape}, {"weight_decay", tensor.weight_decay}});
  for (CheckpointPiece const& piece : pieces)
    piece_list.push_back(Json::array({piece.array, piece.tensor, piece.first, piece.count, piece.crc32c}));
  // One line a member: readable, and the long lists take one line each.
  std::string const rest =
      "\"format\": " + Json(format_name).dump() + ",\n\"version\": " + std::to_string(format_version) +
      ",\n\"step\": " + std::to_string(step) + ",\n\"optimizer_step\": " + std::to_string(optimizer_step) +
      ",\n\"ranks\": " + std::to_string(ranks) + ",\n\"data_bytes\": " + std::to_string(data_bytes) +
      ",\n\"metadata\": " + metadata.dump() + ",\n\"arrays\": " + array_list.dump() +
      ",\n\"tensors\": " + tensor_list.dump() +
      ",\n\"piece_members\": [\"array\", \"tensor\", \"first\", \"count\", \"crc32c\"],\n\"pieces\": " +
      piece_list.dump() + "}\n";
  return first_line(rest) + rest;
}

CheckpointManifest CheckpointManifest::from_text(std::string const& text, std::string const& path) {
  std::size_t const line_end = text.find('\n');
  SPOROS_THROW_INPUT_ERROR_IF(line_end == std::string::npos, path, " is incomplete: it has ", text.size(),
                              " bytes and no line end");
  std::string const wanted = first_line(std::string_view(text).substr(line_end + 1));
  SPOROS_THROW_INPUT_ERROR_IF(text.compare(0, line_end + 1, wanted) != 0, path, " is damaged: its first line is ",
                              text.substr(0, std::min<std::size_t>(line_end, 40)), " and should be ",
                              wanted.substr(0, wanted.size() - 1));
  try {
    nlohmann::json const json = nlohmann::json::parse(text);
    SPOROS_THROW_INPUT_ERROR_IF(json.at("format") != format_name || json.at("version") != format_version,
                                "it has format ", json.at("format").dump(), " version ", json.at("version").dump(),
                                ", this program reads \"", format_name, "\" version ", format_version);
    CheckpointManifest manifest;
    manifest.step = json.at("step");
    manifest.optimizer_step = json.at("optimizer_step");
    manifest.ranks = json.at("ranks");
    manifest.data_bytes = json.at("data_bytes");
    manifest.metadata = json.at("metadata");
    for (auto const& array : json.at("arrays"))
      manifest.arrays.push_back({array.at("group"), element_type_of(array.at("type"))});
    for (auto const& tensor : json.at("tensors"))
      manifest.layout.add(tensor.at("name"), tensor.at("shape"), tensor.at("weight_decay"));
    for (auto const& piece : json.at("pieces"))
      manifest.pieces.push_back({piece.at(0), piece.at(1), piece.at(2), piece.at(3), piece.at(4)});
    check_pieces(manifest);
    return manifest;
  } catch (std::exception const& error) {
    throw InputError(path + ": " + error.what());
  }
}

std::string CheckpointName::text() const {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "step-%012lld", static_cast<long long>(step));
  return revision == 1 ? digits : digits + ("-" + std::to_string(revision));
}

std::optional<CheckpointName> CheckpointName::parse(std::string const& text) {
  if (!text.starts_with("step-")) return std::nullopt;
  std::size_t const dash = text.find('-', 5);
  auto const step = parse_number(std::string_view(text).substr(5, dash == std::string::npos ? dash : dash - 5));
  auto const revision = dash == std::string::npos ? 1 : parse_number(std::string_view(text).substr(dash + 1));
  if (!step || !revision) return std::nullopt;
  CheckpointName const name{*step, int(std::min<std::int64_t>(*revision, 1 << 30))};
  if (name.text() != text) return std::nullopt;  // "step-12" and the like are somebody else's
  return name;
}

std::vector<CheckpointName> list_checkpoints(std::string const& directory) {
  std::vector<CheckpointName> names;
  try {
    for (auto const& entry : std::filesystem::directory_iterator(directory))
      if (auto const name = CheckpointName::parse(entry.path().filename().string())) names.push_back(*name);
  } catch (std::filesystem::filesystem_error const& error) {
    throw InputError(concatenate("cannot list ", directory, ": ", error.code().message()));
  }
  std::sort(names.rbegin(), names.rend());
  return names;
}

void require_same_directory(Communicator const& communicator, std::string const& directory) {
  std::string of_root = directory;
  communicator.broadcast(of_root);
  communicator.run_agreed([&] {
    SPOROS_THROW_INPUT_ERROR_IF(directory != of_root, "the directory of checkpoints is \"", directory, "\" here and \"",
                                of_root, "\" on rank 0");
  });
}

std::string unfinished_prefix(std::int64_t step) { return CheckpointName{step}.text() + unfinished_mark; }

std::optional<std::int64_t> parse_unfinished(std::string const& name) {
  std::size_t const mark = name.find(unfinished_mark);
  auto const checkpoint = CheckpointName::parse(name.substr(0, mark));
  if (mark == std::string::npos || !checkpoint) return std::nullopt;
  return checkpoint->step;
}

}  // namespace Sporos::Impl
