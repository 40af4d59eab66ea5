// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_BpeTokenizer.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "Sporos_Error.hpp"
#include "impl/Sporos_Files.hpp"
#include "impl/Sporos_UnicodeTables.hpp"

namespace Sporos {
namespace {

using namespace Impl;

enum class Class { letter, number, space, other };

template <std::size_t N>
bool contains(CharacterRange const (&table)[N], char32_t code) {
  auto const after = std::upper_bound(std::begin(table), std::end(table), code,
                                      [](char32_t c, CharacterRange const& range) { return c < range.first; });
  return after != std::begin(table) && code <= std::prev(after)->last;
}

/// The property White_Space of Unicode
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

struct Character {
  Class kind = Class::other;
  std::size_t bytes = 1;
};

/// What stands at a place of a text. UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.
Character character_at(std::string_view text, std::size_t at) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  std::size_t const length = byte(0) < 0x80 ? 1 : byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : byte(0) >= 0xc0 ? 2 : 0;
  if (length == 0 || at + length > text.size()) return {};
  char32_t code = length == 1 ? byte(0) : byte(0) & (0x7f >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<char32_t, 5> smallest{0, 0, 0x80, 0x800, 0x10000};
  if (code < smallest[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  Class const kind = is_space(code)                    ? Class::space
                     : contains(unicode_letters, code) ? Class::letter
                     : contains(unicode_numbers, code) ? Class::number
                                                       : Class::other;
  return {kind, length};
}

/// The end of the run of characters of this kind that begins there
std::size_t end_of_run(std::string_view text, std::size_t at, Class kind) {
  while (at < text.size()) {
    Character const character = character_at(text, at);
    if (character.kind != kind) break;
    at += character.bytes;
  }
  return at;
}

/// GPT-2's files write each byte as a printable character: itself where it is one, else the next one from U+0100 on.
std::array<char32_t, 256> const& printable_of_byte() {
  static std::array<char32_t, 256> const table = [] {
    std::array<char32_t, 256> result{};
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      bool const is_printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      result[b] = is_printable ? b : next++;
    }
    return result;
  }();
  return table;
}

/// The bytes that a token of the files stands for; nothing where a character stands for none
std::optional<std::string> bytes_of_name(std::string const& name) {
  static std::unordered_map<char32_t, char> const byte_of_printable = [] {
    std::unordered_map<char32_t, char> result;
    for (std::size_t b = 0; b < 256; ++b) result[printable_of_byte()[b]] = char(b);
    return result;
  }();
  std::string bytes;
  for (std::size_t at = 0; at < name.size();) {
    auto const first = static_cast<unsigned char>(name[at]);
    char32_t code = first;
    if (first >= 0x80) {
      // None of the characters takes more than two bytes.
      if ((first & 0xe0) != 0xc0 || at + 1 >= name.size()) return std::nullopt;
      code = char32_t(first & 0x1f) << 6 | (static_cast<unsigned char>(name[++at]) & 0x3f);
    }
    ++at;
    auto const found = byte_of_printable.find(code);
    if (found == byte_of_printable.end()) return std::nullopt;
    bytes.push_back(found->second);
  }
  return bytes;
}

std::uint64_t pair_key(int left, int right) { return std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right); }

}  // namespace

std::size_t Impl::gpt2_word_length(std::string_view text) {
  if (text[0] == '\'')
    for (std::string_view const ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.starts_with(ending)) return ending.size();

  std::size_t const begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  if (Class const kind = character_at(text, begin).kind; kind != Class::space) return end_of_run(text, begin, kind);

  // Spaces: all at the end of a text; else all but the last, which belongs to the word behind, or stands alone.
  std::size_t before_last = 0, end = 0;
  while (end < text.size()) {
    Character const character = character_at(text, end);
    if (character.kind != Class::space) break;
    before_last = end;
    end += character.bytes;
  }
  return end == text.size() || before_last == 0 ? end : before_last;
}

BpeTokenizer::BpeTokenizer(std::string const& vocabulary_path, std::string const& merges_path) {
  read_vocabulary(vocabulary_path);
  read_merges(merges_path);
}

void BpeTokenizer::read_vocabulary(std::string const& path) {
  try {
    nlohmann::json const json = nlohmann::json::parse(read_file(path));
    SPOROS_THROW_INPUT_ERROR_IF(!json.is_object(), "is no JSON object");
    std::size_t const size = json.size();
    m_bytes.resize(size);
    std::vector<bool> taken(size, false);
    for (auto const& [name, value] : json.items()) {
      bool const is_id = value.is_number_integer() && value >= 0 && value < size;
      SPOROS_THROW_INPUT_ERROR_IF(!is_id, "token \"", name, "\" has the id ", value.dump(), "; there are ", size,
                                  " tokens, their ids are 0 to ", std::int64_t(size) - 1);
      std::size_t const id = value;
      SPOROS_THROW_INPUT_ERROR_IF(taken[id], "the id ", id, " is given twice, the second time to \"", name, "\"");
      taken[id] = true;
      m_names.emplace(name, int(id));
      m_bytes[id] = bytes_of_name(name).value_or(name);  // tokens with a meaning of their own are text as it stands
    }
    for (std::size_t b = 0; b < 256; ++b) {
      char32_t const code = printable_of_byte()[b];
      std::string const name =
          code < 0x80 ? std::string(1, char(code)) : std::string{char(0xc0 | code >> 6), char(0x80 | (code & 0x3f))};
      auto const found = m_names.find(name);
      SPOROS_THROW_INPUT_ERROR_IF(found == m_names.end(), "has no token for the byte ", b, ", which is written \"",
                                  name, "\"");
      m_token_of_byte.push_back(found->second);
    }
  } catch (std::exception const& error) {
    throw InputError(path + ": " + error.what());
  }
}

void BpeTokenizer::read_merges(std::string const& path) {
  std::string const text = read_file(path);
  int line_number = 0, rank = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    std::size_t const space = line.find(' ');
    SPOROS_THROW_INPUT_ERROR_IF(space == std::string::npos || line.find(' ', space + 1) != std::string::npos, path, ":",
                                line_number, ": \"", line, "\" is no merge of two tokens");
    auto const token = [&](std::string const& name) {
      auto const found = m_names.find(name);
      SPOROS_THROW_INPUT_ERROR_IF(found == m_names.end(), path, ":", line_number, ": \"", name,
                                  "\" is not in the vocabulary");
      return found->second;
    };
    std::string const left_name = line.substr(0, space), right_name = line.substr(space + 1);
    int const left = token(left_name);
    int const right = token(right_name);
    m_merges.try_emplace(pair_key(left, right), Merge{rank++, token(left_name + right_name)});
  }
}

std::optional<int> BpeTokenizer::special(std::string const& name) const {
  auto const found = m_names.find(name);
  if (found == m_names.end()) return std::nullopt;
  return found->second;
}

std::vector<int> BpeTokenizer::encode_word(std::string_view word) const {
  std::vector<int> tokens;
  for (char const c : word) tokens.push_back(m_token_of_byte[static_cast<unsigned char>(c)]);
  while (tokens.size() > 1) {
    Merge best{std::numeric_limits<int>::max(), -1};
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      auto const merge = m_merges.find(pair_key(tokens[i], tokens[i + 1]));
      if (merge == m_merges.end() || merge->second.rank >= best.rank) continue;
      best = merge->second;
      place = i;
    }
    if (best.token < 0) break;
    tokens[place] = best.token;
    tokens.erase(tokens.begin() + std::ptrdiff_t(place) + 1);
  }
  return tokens;
}

std::vector<int> BpeTokenizer::encode(std::string_view text) const {
  std::vector<int> tokens;
  std::unordered_map<std::string_view, std::vector<int>> known;  // few words make up most of a text
  while (!text.empty()) {
    std::string_view const word = text.substr(0, gpt2_word_length(text));
    auto found = known.find(word);
    if (found == known.end()) found = known.emplace(word, encode_word(word)).first;
    tokens.insert(tokens.end(), found->second.begin(), found->second.end());
    text.remove_prefix(word.size());
  }
  return tokens;
}

std::string BpeTokenizer::decode(std::vector<int> const& tokens) const {
  std::string text;
  for (int const token : tokens) {
    SPOROS_THROW_INPUT_ERROR_IF(token < 0 || token >= vocabulary(), "token ", token, " is outside the vocabulary of ",
                                vocabulary());
    text += m_bytes[std::size_t(token)];
  }
  return text;
}

}  // namespace Sporos
