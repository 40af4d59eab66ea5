// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Turns texts into a file of tokens for train_gpt, in llm.c's format.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "Sporos_Error.hpp"
#include "Sporos_TextTokenizer.hpp"

namespace {

using namespace Sporos;

/// uint16 where the vocabulary allows it, else uint32 as for Llama 3
class TokenFile {
 public:
  TokenFile(std::string const& path, int vocabulary)
      : m_path(path), m_token_bytes(vocabulary <= 65536 ? 2 : 4), m_file(path, std::ios::binary | std::ios::trunc) {
    m_file.write(std::string(header_ints * 4, '\0').data(), header_ints * 4);
    check();
  }

  void append(std::vector<int> const& tokens) {
    std::string bytes;
    for (int const token : tokens) append_number(bytes, std::uint32_t(token), m_token_bytes);
    m_file.write(bytes.data(), std::streamsize(bytes.size()));
    m_count += std::int64_t(tokens.size());
    SPOROS_THROW_INPUT_ERROR_IF(m_count > std::numeric_limits<std::int32_t>::max(), m_path, ": over ", m_count,
                                " tokens; the format counts up to ", std::numeric_limits<std::int32_t>::max());
    check();
  }

  std::int64_t count() const { return m_count; }

  /// Only now the header is right: a file that was left half-way is refused.
  void close() {
    bool const is_wide = m_token_bytes == 4;
    std::string header;
    append_number(header, is_wide ? 20240801 : 20240520, 4);
    append_number(header, is_wide ? 7 : 1, 4);
    append_number(header, std::uint32_t(m_count), 4);
    m_file.seekp(0);
    m_file.write(header.data(), std::streamsize(header.size()));
    m_file.close();
    check();
  }

 private:
  static constexpr std::streamsize header_ints = 256;

  static void append_number(std::string& bytes, std::uint32_t value, int count) {
    for (int b = 0; b < count; ++b) bytes.push_back(char(value >> (8 * b)));
  }

  void check() const { SPOROS_THROW_INPUT_ERROR_IF(!m_file, "cannot write ", m_path); }

  std::string m_path;
  int m_token_bytes;
  std::ofstream m_file;
  std::int64_t m_count = 0;
};

/// Where a part of a text may end without changing how it is cut into words: a new line after a letter or the like begins a
/// word of its own, whatever stands around. 0 if there is none.
std::size_t last_cut(std::string const& text) {
  for (std::size_t at = text.size(); at-- > 1;)
    if (text[at] == '\n' && text[at - 1] > ' ' && text[at - 1] <= '~') return at;
  return 0;
}

void tokenize(Gpt::TextTokenizer const& tokenizer, std::string const& path, TokenFile& out) {
  std::ifstream file(path, std::ios::binary);
  SPOROS_THROW_INPUT_ERROR_IF(!file, "cannot read ", path);
  if (auto const end = tokenizer.end_of_text()) out.append({*end});
  std::string text;
  std::vector<char> piece(std::size_t(1) << 22);
  while (file.read(piece.data(), std::streamsize(piece.size())), file.gcount() > 0) {
    text.append(piece.data(), std::size_t(file.gcount()));
    std::size_t const cut = last_cut(text);
    out.append(tokenizer.encode(text.substr(0, cut)));
    text.erase(0, cut);
  }
  SPOROS_THROW_INPUT_ERROR_IF(file.bad(), "cannot read ", path);
  out.append(tokenizer.encode(text));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> texts;
  std::string output, name = "gpt2", vocabulary, merges;
  CLI::App app("Turns texts into tokens, in llm.c's .bin format, which train_gpt reads.", "tokenize");
  app.option_defaults()->always_capture_default();
  app.add_option("TEXT", texts, "Files; before each one <|endoftext|> is put, where the vocabulary has it")->required();
  app.add_option("--output", output, "The file of tokens")->required();
  app.add_option("--tokenizer", name, "gpt2 or byte");
  app.add_option("--tokenizer-vocabulary", vocabulary, "GPT-2's vocab.json (also called encoder.json)");
  app.add_option("--tokenizer-merges", merges, "GPT-2's merges.txt (also called vocab.bpe)");
  CLI11_PARSE(app, argc, argv);
  try {
    Gpt::TextTokenizer const tokenizer(name, vocabulary, merges);
    TokenFile file(output, tokenizer.vocabulary());
    for (std::string const& text : texts) tokenize(tokenizer, text, file);
    file.close();
    std::cout << file.count() << " tokens in " << output << std::endl;
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "tokenize: " << error.what() << std::endl;
    return 1;
  }
}
