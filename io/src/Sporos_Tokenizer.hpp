// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TOKENIZER_HPP
#define SPOROS_TOKENIZER_HPP

#include <string>
#include <string_view>
#include <vector>

#include "Sporos_Error.hpp"

namespace Sporos {

/// Each byte of a text is a token.
struct ByteTokenizer {
  static constexpr int vocabulary = 256;

  static std::vector<int> encode(std::string_view text) {
    std::vector<int> tokens;
    tokens.reserve(text.size());
    for (char const c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }

  /// \throws InputError on a token outside [0, 256)
  static std::string decode(std::vector<int> const& tokens) {
    std::string text;
    text.reserve(tokens.size());
    for (int const token : tokens) {
      SPOROS_THROW_INPUT_ERROR_IF(token < 0 || token >= vocabulary, "token ", token, " is no byte");
      text.push_back(static_cast<char>(token));
    }
    return text;
  }
};

}  // namespace Sporos

#endif
