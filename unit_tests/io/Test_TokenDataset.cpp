// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <unistd.h>

#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "Sporos_Error.hpp"
#include "Sporos_TokenDataset.hpp"
#include "Sporos_Tokenizer.hpp"
#include "TokenFiles.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::InputError;
using Sporos::InvalidArgument;
using Sporos::TokenDataset;
using namespace Sporos::Testing;

std::vector<int> read(TokenDataset const& dataset, std::int64_t first, std::int64_t count) {
  std::vector<int> tokens(std::size_t(count), -1);
  dataset.read(first, count, tokens.data());
  return tokens;
}

/// `count` tokens below 50000, no two neighbours alike
std::vector<int> many_tokens(int count) {
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(int(std::int64_t(i) * 7919 % 50000));
  return tokens;
}

template <class Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (InputError const& error) {
    return error.what();
  }
  return "no InputError";
}

TEST_CASE("Text is read byte by byte", "[io][dataset]") {
  std::string text = "A line.\n\r\n\tUmlauts: \xc3\xa4, a zero: ";
  text.push_back('\0');
  text += "\xff.";
  TemporaryFile const file("input.txt", text);
  for (std::string const& spec : {file.path(), "text:" + file.path()}) {
    TokenDataset const dataset = TokenDataset::open(spec, 256);
    REQUIRE(dataset.size() == std::int64_t(text.size()));
    REQUIRE(dataset.path() == file.path());
    REQUIRE(dataset.description() == file.path() + " (text, " + std::to_string(text.size()) + " tokens)");
    REQUIRE(read(dataset, 0, dataset.size()) == Sporos::ByteTokenizer::encode(text));
    REQUIRE(Sporos::ByteTokenizer::decode(read(dataset, 2, 4)) == text.substr(2, 4));
    REQUIRE(read(dataset, dataset.size(), 0).empty());
  }
}

TEST_CASE("The byte tokenizer gives back what it took, and refuses what is no byte", "[io][tokenizer]") {
  std::string every_byte;
  for (int b = 0; b < 256; ++b) every_byte.push_back(char(b));
  std::vector<int> const tokens = Sporos::ByteTokenizer::encode(every_byte);
  for (int b = 0; b < 256; ++b) REQUIRE(tokens[std::size_t(b)] == b);
  REQUIRE(Sporos::ByteTokenizer::decode(tokens) == every_byte);
  REQUIRE_THROWS_WITH(Sporos::ByteTokenizer::decode({65, 256}), ContainsSubstring("256"));
  REQUIRE_THROWS_WITH(Sporos::ByteTokenizer::decode({-1}), ContainsSubstring("-1"));
}

// 100003 tokens: more than one of the pieces that a long read is made of
TEST_CASE("Both .bin formats give the tokens, recognised or named", "[io][dataset]") {
  std::vector<int> const tokens = many_tokens(100003);
  TemporaryFile const raw("train.bin", uint16_tokens(tokens));
  TemporaryFile const headed("train.bin", llmc_header(20240520, 1, 100003) + uint16_tokens(tokens));
  for (auto const& [spec, kind] : {std::pair(raw.path(), "nanoGPT"), std::pair("nanogpt:" + raw.path(), "nanoGPT"),
                                   std::pair(headed.path(), "llm.c"), std::pair("llmc:" + headed.path(), "llm.c")}) {
    CAPTURE(spec);
    TokenDataset const dataset = TokenDataset::open(spec, 50000);
    REQUIRE_THAT(dataset.description(), ContainsSubstring(kind));
    REQUIRE(dataset.size() == 100003);
    REQUIRE(read(dataset, 0, 100003) == tokens);
    REQUIRE(read(dataset, 99990, 13) == std::vector<int>(tokens.end() - 13, tokens.end()));
  }
}

TEST_CASE("A file that is not there or no file is refused by its name", "[io][dataset]") {
  TemporaryFile const file("input.txt", "text");
  std::string const loop = file.folder() + "/loop";
  std::filesystem::create_symlink(loop, loop);
  for (std::string const& path : {file.folder() + "/missing.txt", file.path() + "/inside", loop}) {
    std::string const message = message_of([&] { TokenDataset::open(path, 256); });
    REQUIRE_THAT(message, ContainsSubstring(path + ": cannot be opened: "));
  }
  REQUIRE(message_of([&] { TokenDataset::open(file.folder(), 256); }) == file.folder() + ": is not a regular file");
  REQUIRE_THAT(message_of([] { TokenDataset::open("llmc:", 256); }), ContainsSubstring("path is empty (\"llmc:\")"));
  REQUIRE_THROWS_AS(TokenDataset::open(file.path(), 0), InvalidArgument);
}

TEST_CASE("A file that breaks its format is refused with both values", "[io][dataset]") {
  struct Case {
    std::string content, prefix, message;
  };
  std::string const ten = uint16_tokens(many_tokens(10));
  for (Case const& c : {
           Case{"", "text:", "holds no tokens"},
           Case{"", "nanogpt:", "holds no tokens"},
           Case{llmc_header(20240520, 1, 0), "llmc:", "holds no tokens"},
           Case{ten + "x", "nanogpt:", "has 21 bytes, an odd number"},
           Case{ten + "x", "", "has 21 bytes, an odd number"},
           Case{ten, "llmc:", "has 20 bytes; the header of llm.c's tokens has 1024"},
           Case{llmc_header(20240519, 1, 10) + ten,
                "llmc:", "has the magic number 20240519; llm.c's tokens have 20240520"},
           Case{llmc_header(20240519, 1, 10) + ten, "", "has the magic number 20240519; llm.c's tokens have 20240520"},
           Case{llmc_header(20240801, 1, 5) + ten, "", "has version 1 of llm.c's token format; version 7"},
           Case{llmc_header(20240801, 7, 10) + ten, "", "says 10 tokens, which would be 1064 bytes; it has 1044"},
           Case{llmc_header(20240522, 1, 10) + ten, "", "20240522 (an evaluation set)"},
           Case{llmc_header(20240326, 3, 1024) + ten, "", "20240326 (a model checkpoint)"},
           Case{llmc_header(20240327 + 200, 1, 10) + ten, "", "20240527 (an optimizer state)"},
           Case{llmc_header(20240520, 2, 10) + ten, "", "has version 2 of llm.c's token format; version 1"},
           Case{llmc_header(20240520, 1, 11) + ten, "", "says 11 tokens, which would be 1046 bytes; it has 1044"},
           Case{llmc_header(20240520, 1, 9) + ten, "", "says 9 tokens, which would be 1042 bytes; it has 1044"},
           Case{llmc_header(20240520, 1, 10) + ten + "x", "", "says 10 tokens, which would be 1044 bytes; it has 1045"},
           Case{llmc_header(20240520, 1, -10) + ten, "", "says -10 tokens"},
       }) {
    TemporaryFile const file("tokens.bin", c.content);
    CAPTURE(c.prefix, c.message);
    std::string const message = message_of([&] { TokenDataset::open(c.prefix + file.path(), 50257); });
    REQUIRE_THAT(message, ContainsSubstring(c.message));
    REQUIRE_THAT(message, ContainsSubstring(file.path() + ": "));
  }
}

TEST_CASE("llm.c's files for Llama 3 hold tokens of four bytes", "[io][dataset]") {
  std::vector<int> const tokens{0, 128255, 65536, 7, 2147483646};
  std::string content;
  for (int const token : tokens) content += little_endian(std::uint64_t(token), 4);
  TemporaryFile const file("train.bin", llmc_header(20240801, 7, 5) + content);
  TokenDataset const dataset = TokenDataset::open(file.path(), 2147483647);
  REQUIRE(dataset.size() == 5);
  REQUIRE(read(dataset, 0, 5) == tokens);
  REQUIRE(read(dataset, 2, 2) == std::vector<int>{65536, 7});

  // As a signed number it would be below any vocabulary.
  TemporaryFile const large("train.bin", llmc_header(20240801, 7, 1) + little_endian(0xffffffff, 4));
  REQUIRE(message_of([&] { read(TokenDataset::open(large.path(), 128256), 0, 1); }) ==
          large.path() + ": token 0 is 4294967295; the vocabulary has 128256 tokens");
}

/// A Megatron dataset of sequences of these lengths, with every number as in the format unless it is changed afterwards
struct Megatron {
  std::uint64_t version = 1;
  int type = 4;
  int token_bytes = 4;
  std::vector<std::int64_t> lengths{3, 0, 4};
  std::vector<std::int64_t> begins{0, 12, 12};
  std::vector<std::int64_t> documents{0, 2, 3};
  std::vector<std::int64_t> tokens{1, 2, 3, 4, 5, 6, 7};
  std::optional<std::uint64_t> sequence_count{}, document_count{};
  std::string tail{};

  std::string index() const {
    std::string text("MMIDIDX\0\0", 9);
    text += little_endian(version, 8) + char(type) + little_endian(sequence_count.value_or(lengths.size()), 8) +
            little_endian(document_count.value_or(documents.size()), 8);
    for (auto const length : lengths) text += little_endian(std::uint64_t(length), 4);
    for (auto const begin : begins) text += little_endian(std::uint64_t(begin), 8);
    for (auto const document : documents) text += little_endian(std::uint64_t(document), 8);
    return text + tail;
  }
  std::string data() const {
    std::string text;
    for (auto const token : tokens) text += little_endian(std::uint64_t(token), token_bytes);
    return text;
  }
};

TEST_CASE("Megatron's datasets are read in every integer type, by every name", "[io][dataset]") {
  for (auto const& [type, bytes] :
       {std::pair(1, 1), std::pair(2, 1), std::pair(3, 2), std::pair(4, 4), std::pair(5, 8), std::pair(8, 2)}) {
    CAPTURE(type);
    Megatron const megatron{
        .type = type, .token_bytes = bytes, .begins = {0, 3 * bytes, 3 * bytes}, .tail = type == 8 ? "abc" : ""};
    TemporaryFile const data("corpus_text_document.bin", megatron.data());
    std::string const prefix = data.folder() + "/corpus_text_document";
    write_file(prefix + ".idx", megatron.index());
    for (std::string const& spec : {prefix + ".bin", prefix + ".idx", "megatron:" + prefix,
                                    "megatron:" + prefix + ".bin", "megatron:" + prefix + ".idx"}) {
      CAPTURE(spec);
      TokenDataset const dataset = TokenDataset::open(spec, 8);
      REQUIRE(dataset.description() == prefix + ".bin (Megatron, 7 tokens)");
      REQUIRE(read(dataset, 0, 7) == std::vector<int>{1, 2, 3, 4, 5, 6, 7});
      REQUIRE(read(dataset, 3, 2) == std::vector<int>{4, 5});
    }
    REQUIRE(message_of([&] { read(TokenDataset::open(prefix + ".bin", 5), 0, 7); }) ==
            prefix + ".bin: token 4 is 5; the vocabulary has 5 tokens");
  }
}

TEST_CASE("A Megatron index that does not fit its file is refused with both values", "[io][dataset]") {
  struct Case {
    Megatron megatron;
    std::string message;
  };
  std::uint64_t const huge = ~std::uint64_t(0);
  for (Case const& c : {
           Case{{.version = 2}, "has version 2 of Megatron's index; 1 can be read"},
           Case{{.type = 7}, "has tokens of type 7"},
           Case{{.type = 0}, "has tokens of type 0"},
           Case{{.sequence_count = huge}, "its header says 18446744073709551615 sequences and 3 bounds"},
           Case{{.document_count = huge}, "and 18446744073709551615 bounds of documents; it has 60 bytes behind it"},
           Case{{.sequence_count = 4},
                "its header says 4 sequences and 3 bounds of documents; it has 60 bytes behind it"},
           Case{{.tail = "ab"}, "it has 62 bytes behind it"},
           Case{{.lengths = {3, 0, 5}}, "sequence 2 begins at byte 12 and has 5 tokens of 4 bytes; "},
           Case{{.lengths = {3, 0, 3}}, "its sequences end at byte 24; "},
           Case{{.lengths = {3, -1, 4}}, "sequence 1 has -1 tokens"},
           Case{{.begins = {0, 12, 29}}, "sequence 2 begins at byte 29 and has 4 tokens"},
           Case{{.begins = {0, 12, -12}}, "sequence 2 begins at byte -12"},
           Case{{.begins = {0, 8, 12}}, "sequence 1 begins at byte 8, the one before ends at 12"},
           Case{{.documents = {0, 2, 4}}, "bound 2 of documents is 4; the one before is 2, there are 3 sequences"},
           Case{{.documents = {0, 2, 1}}, "bound 2 of documents is 1; the one before is 2"},
       }) {
    TemporaryFile const data("corpus.bin", c.megatron.data());
    write_file(data.folder() + "/corpus.idx", c.megatron.index());
    CAPTURE(c.message);
    std::string const message = message_of([&] { TokenDataset::open(data.path(), 100); });
    REQUIRE_THAT(message, ContainsSubstring(c.message));
    REQUIRE_THAT(message, ContainsSubstring(data.folder() + "/corpus.idx: "));
  }
  TemporaryFile const data("corpus.bin", Megatron().data());
  REQUIRE_THAT(message_of([&] { TokenDataset::open("megatron:" + data.path(), 100); }),
               ContainsSubstring("corpus.idx"));
  for (std::string const& index : {std::string(), std::string(20, 'x'), std::string(100, 'x')}) {
    write_file(data.folder() + "/corpus.idx", index);
    REQUIRE_THAT(message_of([&] { TokenDataset::open(data.path(), 100); }),
                 ContainsSubstring(data.folder() + "/corpus.idx: "));
  }
}

TEST_CASE("A token outside the vocabulary is refused by file, position and id", "[io][dataset]") {
  std::vector<int> tokens = many_tokens(70000);
  tokens[65537] = 50000;
  TemporaryFile const file("tokens.bin", uint16_tokens(tokens));
  TokenDataset const dataset = TokenDataset::open(file.path(), 50000);
  REQUIRE_NOTHROW(read(dataset, 0, 65537));
  REQUIRE_NOTHROW(read(dataset, 65538, 4462));
  for (std::int64_t const first : {std::int64_t(0), std::int64_t(65000), std::int64_t(65537)})
    REQUIRE(message_of([&] { read(dataset, first, 65538 - first); }) ==
            file.path() + ": token 65537 is 50000; the vocabulary has 50000 tokens");
  REQUIRE_NOTHROW(read(TokenDataset::open(file.path(), 50001), 0, 70000));

  TemporaryFile const text("input.txt", "abc\xe9");
  REQUIRE(message_of([&] { read(TokenDataset::open(text.path(), 128), 0, 4); }) ==
          text.path() + ": token 3 is 233; the vocabulary has 128 tokens");
}

TEST_CASE("A read outside the dataset is refused", "[io][dataset]") {
  TemporaryFile const file("input.txt", "0123456789");
  TokenDataset const dataset = TokenDataset::open(file.path(), 256);
  int out[16];
  REQUIRE_THROWS_AS(dataset.read(-1, 2, out), InvalidArgument);
  REQUIRE_THROWS_AS(dataset.read(0, -1, out), InvalidArgument);
  REQUIRE_THROWS_WITH(dataset.read(5, 6, out),
                      ContainsSubstring("6 tokens from number 5 on of " + file.path() + ", which has 10"));
  REQUIRE_THROWS_AS(dataset.read(1, std::numeric_limits<std::int64_t>::max(), out), InvalidArgument);
}

TEST_CASE("A file that became shorter gives an error, not a signal", "[io][dataset]") {
  TemporaryFile const file("input.txt", std::string(10000, 'x'));
  TokenDataset const dataset = TokenDataset::open(file.path(), 256);
  REQUIRE(::truncate(file.path().c_str(), 4000) == 0);
  REQUIRE_NOTHROW(read(dataset, 0, 4000));
  REQUIRE(message_of([&] { read(dataset, 3000, 2000); }) ==
          file.path() + ": ends at byte 4000; it had 10000 bytes when it was opened");
}

TEST_CASE("Samples are the windows that fit, and a text shorter than one is refused", "[io][dataset]") {
  TemporaryFile const file("input.txt", std::string(100, 'x'));
  TokenDataset const dataset = TokenDataset::open(file.path(), 256);
  REQUIRE(dataset.samples(dataset.all(), 99) == 1);
  REQUIRE(dataset.samples(dataset.all(), 50) == 1);
  REQUIRE(dataset.samples(dataset.all(), 33) == 3);
  REQUIRE(dataset.samples(dataset.all(), 1) == 99);
  REQUIRE(dataset.samples({10, 21}, 5) == 2);
  REQUIRE(dataset.samples({10, 20}, 5) == 1);
  REQUIRE(message_of([&] { dataset.samples(dataset.all(), 100); }) ==
          file.path() + ": tokens [0, 100) are 100; one sequence of 100 tokens needs 101");
  REQUIRE_THROWS_AS(dataset.samples({7, 7}, 5), InputError);
  REQUIRE_THROWS_AS(dataset.samples(dataset.all(), 0), InvalidArgument);
  REQUIRE_THROWS_AS(dataset.samples({0, 101}, 5), InvalidArgument);
  REQUIRE_THROWS_AS(dataset.samples({-1, 50}, 5), InvalidArgument);
  REQUIRE_THROWS_AS(dataset.samples({50, 40}, 5), InvalidArgument);
}

TEST_CASE("A split leaves nothing out and nothing twice", "[io][dataset]") {
  TemporaryFile const file("input.txt", std::string(1001, 'x'));
  TokenDataset const dataset = TokenDataset::open(file.path(), 256);
  for (double const fraction : {0.0, 0.1, 0.25, 0.9999}) {
    auto const split = Sporos::TrainValidationSplit::by_fraction(dataset, fraction);
    CAPTURE(fraction);
    REQUIRE(split.train.first == 0);
    REQUIRE(split.train.last == split.validation.first);
    REQUIRE(split.validation.last == 1001);
    REQUIRE(std::abs(double(split.validation.size()) - 1001 * fraction) <= 0.5);
  }
  for (double const fraction : {-0.1, 1.0, 2.0, std::nan("")})
    REQUIRE_THROWS_AS(Sporos::TrainValidationSplit::by_fraction(dataset, fraction), InputError);
}

TEST_CASE("The fingerprint is one of the content", "[io][dataset]") {
  auto const fingerprint = [](std::string const& spec) { return TokenDataset::open(spec, 65536).fingerprint(); };
  std::string text;
  for (int i = 0; i < 600000; ++i) text.push_back(char(i * 31 % 251));
  TemporaryFile const one("one.txt", text), same("another_name.txt", text);
  REQUIRE(fingerprint(one.path()) == fingerprint(same.path()));
  REQUIRE(fingerprint("nanogpt:" + one.path()) != fingerprint("text:" + one.path()));

  // 600000 bytes are covered without gaps by 256 pieces of 4 KiB, so that any byte shows.
  for (std::size_t const position : {std::size_t(0), std::size_t(123456), text.size() - 1}) {
    std::string changed = text;
    changed[position] = char(changed[position] + 1);
    TemporaryFile const other("one.txt", changed);
    CAPTURE(position);
    REQUIRE(fingerprint(one.path()) != fingerprint(other.path()));
  }
  TemporaryFile const shorter("one.txt", text.substr(0, text.size() - 1)), tiny("tiny.txt", "x");
  REQUIRE(fingerprint(one.path()) != fingerprint(shorter.path()));
  REQUIRE(fingerprint(tiny.path()) != 0);

  // Between the pieces of a larger file too.
  std::string large(3 << 20, 'x');
  TemporaryFile const before("large.txt", large);
  large[1234567] = 'y';
  TemporaryFile const after("large.txt", large);
  REQUIRE(fingerprint(before.path()) != fingerprint(after.path()));

  // Known answer: it is stored in checkpoints, so it must not depend on version or machine.
  TemporaryFile const known("known.txt", "The seed is the beginning.");
  REQUIRE(fingerprint(known.path()) == 7646359009793779647u);
}

TEST_CASE("Copies read the same file from several threads", "[io][dataset]") {
  std::vector<int> const tokens = many_tokens(40000);
  TemporaryFile const file("tokens.bin", uint16_tokens(tokens));
  TokenDataset const dataset = TokenDataset::open(file.path(), 50000);
  std::vector<int> mistakes(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&mistakes, &tokens, t, copy = dataset] {
      for (int i = 0; i < 500; ++i) {
        int const first = (i * 971 + t * 7001) % 39000;
        std::vector<int> out(1000);
        copy.read(first, 1000, out.data());
        if (!std::equal(out.begin(), out.end(), tokens.begin() + first)) ++mistakes[std::size_t(t)];
      }
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE(mistakes == std::vector<int>(4, 0));
}

}  // namespace
