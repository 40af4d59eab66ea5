// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_CheckpointData.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"
#include "impl/Sporos_Hdf5.hpp"

namespace Sporos {

using namespace Impl;

struct CheckpointReader::Contents {
  std::string path;
  CheckpointManifest manifest;
};

namespace {

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

std::optional<CheckpointReader> CheckpointReader::find(Communicator const& communicator, std::string const& directory,
                                                       std::function<void(CheckpointReader const&)> const& use,
                                                       std::function<void(std::string const&)> const& on_skipped) {
  require_same_directory(communicator, directory);
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
    if (communicator.rank() == 0) contents->path = directory + "/" + names[i].text();
    communicator.broadcast(contents->path);
    // On another file system all checkpoints would count as damaged, and the run would start anew without a word.
    communicator.run_agreed([&] {
      SPOROS_THROW_INPUT_ERROR_IF(!std::filesystem::exists(contents->path), contents->path,
                                  " is not there, but rank 0 sees it; all ranks must see the same directory");
    });
    try {
      std::string text;
      communicator.run_agreed([&] {
        if (communicator.rank() != 0) return;
        text = read_checkpoint_manifest_text(contents->path);
        std::int64_t const step = parse_checkpoint_manifest(text, contents->path).step;
        SPOROS_THROW_INPUT_ERROR_IF(step != names[i].step, contents->path, " is damaged: its manifest is of step ",
                                    step);
      });
      communicator.broadcast(text);
      communicator.run_agreed([&] { contents->manifest = parse_checkpoint_manifest(text, contents->path); });
    } catch (AgreedError const& error) {
      if (communicator.rank() == 0 && on_skipped) on_skipped(error.what());
      continue;
    }
    CheckpointReader const reader(communicator, std::move(contents));
    try {
      use(reader);
      return reader;
    } catch (DamagedCheckpoint const& error) {
      if (communicator.rank() == 0 && on_skipped) on_skipped(error.what());
    }
  }
  return std::nullopt;
}

std::optional<CheckpointReader> CheckpointReader::newest_valid(
    Communicator const& communicator, std::string const& directory,
    std::function<void(std::string const&)> const& on_skipped) {
  return find(communicator, directory, [](CheckpointReader const& reader) { reader.verify(); }, on_skipped);
}

void CheckpointReader::verify() const {
  try {
    m_communicator.run_agreed([&] {
      Hdf5Session const session;
      CheckpointData data(m_contents->path, m_contents->manifest);
      auto const& pieces = m_contents->manifest.pieces;
      for (auto p = std::size_t(m_communicator.rank()); p < pieces.size(); p += std::size_t(m_communicator.size()))
        data.read(pieces[p]);
    });
  } catch (AgreedError const& error) {
    throw DamagedCheckpoint(error.what());
  }
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

  std::vector<CheckpointPiece> for_all, mine;
  for (CheckpointPiece const& piece : manifest.pieces) {
    CheckpointTarget const& target = *target_of[piece.array];
    if (!target.is_shared)
      for_all.push_back(piece);
    else if (target.holds(offsets[piece.tensor] + piece.first, piece.count))
      mine.push_back(piece);
  }
  auto const copy = [&](CheckpointPiece const& piece, std::byte const* bytes) {
    target_of[piece.array]->copy(offsets[piece.tensor] + piece.first, piece.count, bytes);
  };
  auto const agree = [&](std::string const& error) {
    try {
      m_communicator.agree_no_error(error);
    } catch (AgreedError const& agreed) {
      throw DamagedCheckpoint(agreed.what());
    }
  };

  // What is shared out, each rank reads for itself. One that lies on the bound of two ranks is read by both.
  std::optional<CheckpointData> data;
  std::string error;
  try {
    Hdf5Session const session;
    data.emplace(m_contents->path, manifest);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (i + 1 < mine.size()) data->announce(mine[i + 1]);
      copy(mine[i], data->read(mine[i]).data());
    }
  } catch (std::exception const& exception) {
    error = exception.what();
  }
  agree(error);

  // Of what every rank holds, each reads one piece in a round, and all get all of them: the file is read once, by all together.
  std::size_t const size = std::size_t(m_communicator.size()), rank = std::size_t(m_communicator.rank());
  std::vector<std::byte> received;
  for (std::size_t base = 0; base < for_all.size(); base += size) {
    std::vector<std::byte> const* read = nullptr;
    if (base + rank < for_all.size()) {
      try {
        Hdf5Session const session;
        if (base + size + rank < for_all.size()) data->announce(for_all[base + size + rank]);
        read = &data->read(for_all[base + rank]);
      } catch (std::exception const& exception) {
        error = exception.what();
      }
    }
    agree(error);
    for (std::size_t root = 0; root < size && base + root < for_all.size(); ++root) {
      CheckpointPiece const& piece = for_all[base + root];
      received.resize(std::size_t(piece.count * bytes_of(manifest.arrays[piece.array].type)));
      std::byte* bytes = received.data();
      if (root == rank) bytes = const_cast<std::byte*>(read->data());  // which MPI only reads at the root
      MPI_Bcast(bytes, int(received.size()), MPI_BYTE, int(root), m_communicator.handle());
      copy(piece, bytes);
    }
  }
}

nlohmann::json const& CheckpointReader::metadata() const { return m_contents->manifest.metadata; }
std::int64_t CheckpointReader::step() const { return m_contents->manifest.step; }
std::int64_t CheckpointReader::optimizer_step() const { return m_contents->manifest.optimizer_step; }
std::string const& CheckpointReader::path() const { return m_contents->path; }
StateLayout const& CheckpointReader::layout() const { return m_contents->manifest.layout; }

}  // namespace Sporos
