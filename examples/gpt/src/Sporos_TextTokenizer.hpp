// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TEXTTOKENIZER_HPP
#define SPOROS_TEXTTOKENIZER_HPP

#include <optional>
#include <string>
#include <vector>

#include "Sporos_BpeTokenizer.hpp"

namespace Sporos::Gpt {

/// What turns text into tokens and back: "byte", or "gpt2" with the files that its user gives
class TextTokenizer {
 public:
  /// \throws InputError for any other name, for gpt2 without its files, and for files that are not as they must be
  TextTokenizer(std::string const& name, std::string const& vocabulary_path, std::string const& merges_path);

  int vocabulary() const;
  std::vector<int> encode(std::string const& text) const;
  /// A model may have more tokens than the tokenizer; those are written as '?'.
  std::string decode(std::vector<int> const& tokens) const;
  std::optional<int> end_of_text() const;

 private:
  std::optional<BpeTokenizer> m_bpe;  // else bytes
};

}  // namespace Sporos::Gpt

#endif
