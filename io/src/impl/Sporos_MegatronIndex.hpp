// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_IMPL_MEGATRONINDEX_HPP
#define SPOROS_IMPL_MEGATRONINDEX_HPP

#include <cstdint>
#include <string>

namespace Sporos::Impl {

/// What the .idx file of a Megatron dataset says of its .bin file
struct MegatronIndex {
  std::int64_t token_bytes = 0;
  bool is_signed = false;
  std::int64_t sequences = 0;
};

/// Reads and checks an index: "MMIDIDX\0\0", then little-endian uint64 version 1, uint8 type of a token, uint64 number of
/// sequences, uint64 number of document bounds, int32 length of each sequence in tokens, int64 byte in the .bin file where each
/// begins, int64 sequence at which each document begins (and an end), perhaps int8 mode of each sequence.
/// \throws InputError, which names the file and both values, where it is not so, where a sequence lies outside the .bin file of
///         `data_bytes` bytes, and where the sequences do not follow each other without gaps
MegatronIndex read_megatron_index(std::string const& path, std::string const& data_path, std::int64_t data_bytes);

}  // namespace Sporos::Impl

#endif
