// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Against tiktoken, on whole texts, it is tested in unit_tests/examples/tokenize_test.py.

#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "Sporos_BpeTokenizer.hpp"
#include "Sporos_Error.hpp"
#include "TokenFiles.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::BpeTokenizer;
using namespace Sporos::Testing;

std::string utf8(char32_t code) {
  if (code < 0x80) return std::string(1, char(code));
  return {char(0xc0 | code >> 6), char(0x80 | (code & 0x3f))};
}

/// The names of the 256 bytes, in GPT-2's order: those that print as themselves come first.
std::vector<std::string> byte_names() {
  std::vector<std::string> printable;
  for (char32_t b = 0; b < 256; ++b) {
    bool const prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    if (prints) printable.push_back(utf8(b));
  }
  for (std::size_t i = printable.size(); i < 256; ++i) printable.push_back(utf8(char32_t(256 + i - 188)));
  return printable;
}

nlohmann::json small_vocabulary() {
  nlohmann::json json;
  int id = 0;
  for (std::string const& name : byte_names()) json[name] = id++;
  for (char const* name : {"aa", "ab", "aab", "\u0120a", "<|endoftext|>"}) json[name] = id++;
  return json;
}

constexpr char const* small_merges = "#version: 0.2\na a\na b\naa b\n\u0120 a\n";

std::vector<std::string> words(std::string text) {
  std::vector<std::string> result;
  while (!text.empty()) {
    std::size_t const length = Sporos::Impl::gpt2_word_length(text);
    REQUIRE(length > 0);
    result.push_back(text.substr(0, length));
    text.erase(0, length);
  }
  return result;
}

using Words = std::vector<std::string>;

TEST_CASE("A text is cut into words as GPT-2's pattern does", "[io][tokenizer]") {
  CHECK(words("Hello world") == Words{"Hello", " world"});
  CHECK(words("don't we'll 'sure '") == Words{"don", "'t", " we", "'ll", " '", "sure", " '"});
  CHECK(words("'So") == Words{"'", "So"});
  CHECK(words("a  b   c") == Words{"a", " ", " b", "  ", " c"});
  CHECK(words("a\n\n  b \n") == Words{"a", "\n\n ", " b", " \n"});
  CHECK(words("a\tb\r\n") == Words{"a", "\t", "b", "\r\n"});
  CHECK(words("x12 34,,5.") == Words{"x", "12", " 34", ",,", "5", "."});
  CHECK(words(" ") == Words{" "});
  CHECK(words("   ") == Words{"   "});
  CHECK(words("na\u00efve \u00c4rger\u00bd") == Words{"na\u00efve", " \u00c4rger", "\u00bd"});
  CHECK(words("a\u00a0b\u3000\u3000c") == Words{"a", "\u00a0", "b", "\u3000", "\u3000", "c"});
  CHECK(words("\u4f60\u597d\U0001f600") == Words{"\u4f60\u597d", "\U0001f600"});
  // No UTF-8: a lone byte, an overlong slash, a surrogate, a character that is cut off
  CHECK(words("a\xff"
              "b") == Words{"a", "\xff", "b"});
  CHECK(words("\xc0\xaf/") == Words{"\xc0\xaf/"});
  CHECK(words("\xed\xa0\x80 x\xe4\xbd") == Words{"\xed\xa0\x80", " x", "\xe4\xbd"});
}

TEST_CASE("Pairs are merged in the order of the list, and decoding gives back any bytes", "[io][tokenizer]") {
  TemporaryFile const vocabulary("vocab.json", small_vocabulary().dump()), merges("merges.txt", small_merges);
  BpeTokenizer const tokenizer(vocabulary.path(), merges.path());
  REQUIRE(tokenizer.vocabulary() == 261);
  int const a = 'a' - '!', b = 'b' - '!', aa = 256, ab = 257, aab = 258, space_a = 259;
  CHECK(tokenizer.encode("a") == std::vector<int>{a});
  CHECK(tokenizer.encode("aab") == std::vector<int>{aab});
  CHECK(tokenizer.encode("abab") == std::vector<int>{ab, ab});
  CHECK(tokenizer.encode("aaab") == std::vector<int>{aa, ab});
  CHECK(tokenizer.encode("aaaab") == std::vector<int>{aa, aab});
  CHECK(tokenizer.encode("b a a") == std::vector<int>{b, space_a, space_a});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.special("<|endoftext|>") == 260);
  CHECK_FALSE(tokenizer.special("<|none|>"));
  CHECK(tokenizer.decode({260, a}) == "<|endoftext|>a");

  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += {char(byte), char(255 - byte)};
  CHECK(tokenizer.decode(tokenizer.encode(every_byte)) == every_byte);
  CHECK_THROWS_WITH(tokenizer.decode({261}), ContainsSubstring("token 261") && ContainsSubstring("261"));
  CHECK_THROWS_AS(tokenizer.decode({-1}), Sporos::InputError);
}

TEST_CASE("Vocabularies and merges that do not fit are refused by name and line", "[io][tokenizer]") {
  auto const message = [](std::string const& vocabulary_text, std::string const& merges_text) {
    TemporaryFile const vocabulary("vocab.json", vocabulary_text), merges("merges.txt", merges_text);
    try {
      BpeTokenizer(vocabulary.path(), merges.path());
    } catch (Sporos::InputError const& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  nlohmann::json const good = small_vocabulary();
  auto const with = [&](char const* name, nlohmann::json const& id) {
    nlohmann::json changed = good;
    changed[name] = id;
    return changed.dump();
  };
  nlohmann::json without_byte = good;
  without_byte.erase("A");
  without_byte["AA"] = good["A"];

  CHECK_THAT(message("{", small_merges), ContainsSubstring("vocab.json: "));
  CHECK_THAT(message("[]", small_merges), ContainsSubstring("vocab.json: is no JSON object"));
  CHECK_THAT(message(with("aab", 3), small_merges), ContainsSubstring("the id 3 is given twice"));
  CHECK_THAT(message(with("new", 262), small_merges),
             ContainsSubstring("token \"new\" has the id 262; there are 262 tokens"));
  CHECK_THAT(message(with("new", -1), small_merges), ContainsSubstring("token \"new\" has the id -1"));
  CHECK_THAT(message(with("new", "x"), small_merges), ContainsSubstring("token \"new\" has the id \"x\""));
  CHECK_THAT(message(without_byte.dump(), small_merges), ContainsSubstring("no token for the byte 65"));
  CHECK_THAT(message(good.dump(), "a a\na c\n"), ContainsSubstring("merges.txt:2: \"ac\" is not in the vocabulary"));
  CHECK_THAT(message(good.dump(), "a xyz\n"), ContainsSubstring("merges.txt:1: \"xyz\" is not in the vocabulary"));
  CHECK_THAT(message(good.dump(), "aa\n"), ContainsSubstring("merges.txt:1: \"aa\" is no merge"));
  CHECK_THAT(message(good.dump(), "a a b\n"), ContainsSubstring("is no merge"));
  CHECK_THROWS_WITH(BpeTokenizer("/nowhere/vocab.json", "/nowhere/merges.txt"),
                    ContainsSubstring("/nowhere/vocab.json"));
}

}  // namespace
