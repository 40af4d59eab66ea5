// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_TextTokenizer.hpp"

#include "Sporos_Error.hpp"
#include "Sporos_Tokenizer.hpp"

namespace Sporos::Gpt {

TextTokenizer::TextTokenizer(std::string const& name, std::string const& vocabulary_path,
                             std::string const& merges_path) {
  if (name == "byte") return;
  SPOROS_THROW_INPUT_ERROR_IF(name != "gpt2", "--tokenizer ", name, " cannot turn text into tokens; byte and gpt2 can");
  SPOROS_THROW_INPUT_ERROR_IF(vocabulary_path.empty() || merges_path.empty(),
                              "--tokenizer gpt2 needs --tokenizer-vocabulary (vocab.json) and --tokenizer-merges "
                              "(merges.txt)");
  m_bpe.emplace(vocabulary_path, merges_path);
}

int TextTokenizer::vocabulary() const { return m_bpe ? m_bpe->vocabulary() : ByteTokenizer::vocabulary; }

std::vector<int> TextTokenizer::encode(std::string const& text) const {
  return m_bpe ? m_bpe->encode(text) : ByteTokenizer::encode(text);
}

std::string TextTokenizer::decode(std::vector<int> const& tokens) const {
  std::string text;
  for (int const token : tokens) {
    if (token < 0 || token >= vocabulary())
      text += '?';
    else
      text += m_bpe ? m_bpe->decode({token}) : ByteTokenizer::decode({token});
  }
  return text;
}

std::optional<int> TextTokenizer::end_of_text() const { return m_bpe ? m_bpe->special("<|endoftext|>") : std::nullopt; }

}  // namespace Sporos::Gpt
