// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TOKENDATASET_HPP
#define SPOROS_TOKENDATASET_HPP

#include <cstdint>
#include <memory>
#include <string>

namespace Sporos {

/// The tokens [first, last) of a dataset
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t last = 0;

  std::int64_t size() const { return last - first; }
};

/// A file of tokens. Copies share the open file; reading is thread safe and keeps nothing in memory.
///
///     text:PATH     each byte is a token
///     llmc:PATH     llm.c's .bin: 256 int32, the first three 20240520, 1 and the number of tokens, then uint16 tokens; or those
///                   of Llama 3: 20240801, 7 and the number of tokens, then uint32 tokens
///     nanogpt:PATH  nanoGPT's .bin: uint16 tokens and nothing else
///     megatron:PATH Megatron's PATH.bin and PATH.idx (PATH may end with either): tokens of any integer type, one sequence after
///                   another
///     PATH          the kind by name and content: a .idx, or a .bin beside which a .idx lies, is one of Megatron; a .bin that
///                   starts with llm.c's header is one of llm.c, any other .bin one of nanoGPT; everything else is text
///
/// All numbers are little-endian.
class TokenDataset {
 public:
  /// \param spec        a path, with or without the prefix of its kind
  /// \param vocabulary  number of token ids: read() refuses any id outside [0, vocabulary)
  /// \throws InputError naming the file when it is missing, unreadable, empty, or not of its kind
  static TokenDataset open(std::string const& spec, int vocabulary);

  std::int64_t size() const { return m_size; }
  TokenRange all() const { return {0, m_size}; }
  int vocabulary() const { return m_vocabulary; }
  std::string const& path() const { return m_path; }

  /// Copies tokens [first, first + count) to `out`.
  /// \throws InputError naming file, position and id when an id is outside the vocabulary, or when the file has become
  ///         shorter since it was opened
  void read(std::int64_t first, std::int64_t count, int* out) const;

  /// How many windows of sequence_length + 1 tokens at a stride of sequence_length lie in the range. (The extra token is
  /// the last target, and the first input of the next window.)
  /// \throws InputError naming the file when there is none
  std::int64_t samples(TokenRange range, std::int64_t sequence_length) const;

  /// Of kind, number of tokens and content: all of it up to 64 MiB, samples of what is larger. The same on every machine;
  /// another one means another dataset, or the same file changed.
  std::uint64_t fingerprint() const;

  /// For people: "data.txt (text, 4194304 tokens)"
  std::string description() const;

 private:
  enum class Kind { text, llmc, nanogpt, megatron };
  class File;

  TokenDataset() = default;
  bool has_llmc_header() const;
  void read_llmc_header();
  void read_index();

  std::string m_path;
  Kind m_kind = Kind::text;
  std::shared_ptr<File const> m_file;
  std::int64_t m_header_bytes = 0;
  std::int64_t m_token_bytes = 1;
  bool m_is_signed = false;
  std::int64_t m_size = 0;
  int m_vocabulary = 0;
};

/// Two ranges of one dataset: the model never sees the second one during training.
struct TrainValidationSplit {
  TokenRange train;
  TokenRange validation;

  /// The last `fraction` of the dataset is for validation.
  /// \throws InputError unless 0 <= fraction < 1
  static TrainValidationSplit by_fraction(TokenDataset const& dataset, double validation_fraction);
};

}  // namespace Sporos

#endif
