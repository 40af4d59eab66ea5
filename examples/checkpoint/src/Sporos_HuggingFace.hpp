// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_HUGGINGFACE_HPP
#define SPOROS_HUGGINGFACE_HPP

#include <cstdint>
#include <string>

#include "Sporos_Communicator.hpp"

// GPT-2 from and to Hugging Face's layout: safetensors files with matrices as (in, out) under the names that train_gpt uses
// too, and config.json.

namespace Sporos::Tool {

struct ExportOptions {
  std::string array = "parameters";  ///< or "master", "first_moment", "second_moment"
  std::string type = "stored";       ///< or "fp32", "fp16", "bf16", "fp64"
  std::int64_t shard_bytes = 5'000'000'000;
};

/// Writes one array of a checkpoint as a model directory. One tensor at a time is in memory.
/// Throws InputError where the checkpoint is damaged or the directory holds a model.
void export_model(std::string const& checkpoint, std::string const& directory, ExportOptions const& options);

struct ImportOptions {
  std::string precision = "fp32";  ///< or "bf16", "fp64"
  std::string tokenizer = "none";  ///< what train_gpt and generate are told of the tokens
  std::int64_t heads = 0;          ///< 0: as config.json says
};

/// Makes a checkpoint of step 0, from which train_gpt starts and generate reads: the model's weights, moments of zero.
/// A leading "transformer." of names goes, mask buffers are left out, and an output layer must be the token table.
/// \param path see SafetensorsModel. Collective.
/// Throws InputError, which names every tensor that is missing, unknown or of another shape than config.json demands.
void import_model(Communicator const& communicator, std::string const& path, std::string const& directory,
                  ImportOptions const& options);

}  // namespace Sporos::Tool

#endif
