// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_BPETOKENIZER_HPP
#define SPOROS_BPETOKENIZER_HPP

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace Sporos {

/// GPT-2's tokenizer: byte-level byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words with Subword
/// Units", 2016; Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.2). A text is cut into
/// words by
///
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// and in each word, which starts as single bytes, the pair that comes first in the list of merges becomes one token, until
/// none is left. A byte that is not part of valid UTF-8 counts as one character that is neither letter, number nor space.
class BpeTokenizer {
 public:
  /// \param vocabulary_path  JSON object {"token": id}, in which each byte of a token is one printable character
  ///                         (vocab.json, encoder.json)
  /// \param merges_path      one merge a line, "left right", the most important first (merges.txt, vocab.bpe); a first line that
  ///                         starts with #version is left out
  /// \throws InputError, which names the file and what is wrong: no JSON, ids that are not 0, 1, … each once, a byte without a
  ///         token, a merge of or to something that is no token, a line that is no merge
  BpeTokenizer(std::string const& vocabulary_path, std::string const& merges_path);

  int vocabulary() const { return int(m_bytes.size()); }

  /// The token of this name, such as "<|endoftext|>"; encode() never gives it
  std::optional<int> special(std::string const& name) const;

  std::vector<int> encode(std::string_view text) const;

  /// \throws InputError on a token outside [0, vocabulary())
  std::string decode(std::vector<int> const& tokens) const;

 private:
  struct Merge {
    int rank, token;
  };

  void read_vocabulary(std::string const& path);
  void read_merges(std::string const& path);
  std::vector<int> encode_word(std::string_view word) const;

  std::vector<std::string> m_bytes;              // of each token
  std::unordered_map<std::string, int> m_names;  // as they stand in the file
  std::vector<int> m_token_of_byte;
  std::unordered_map<std::uint64_t, Merge> m_merges;  // of a pair of tokens
};

namespace Impl {

/// The length in bytes of the word of GPT-2's pattern that begins a text, which is not empty
std::size_t gpt2_word_length(std::string_view text);

}  // namespace Impl
}  // namespace Sporos

#endif
