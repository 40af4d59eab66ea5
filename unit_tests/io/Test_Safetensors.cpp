// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "Sporos_Safetensors.hpp"
#include "TokenFiles.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using Sporos::bfloat16, Sporos::SafetensorsFile, Sporos::write_safetensors;
using Sporos::Testing::little_endian, Sporos::Testing::TemporaryFile;

std::string content(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string with_header(std::string const& header, std::string const& data) {
  return little_endian(header.size(), 8) + header + data;
}

TEST_CASE("What was written as safetensors is read back, bit for bit", "[io][safetensors]") {
  TemporaryFile const file("model.safetensors", "old content");
  std::vector<float> const weights{1.5f, -0.0f, 3.0f, 1e-40f, -2.0f, 7.25f};
  std::vector<bfloat16> const small{bfloat16(1.0f), bfloat16::from_bits(0x7f81), bfloat16(-3.0f)};
  std::vector<double> const scalar{0.1};
  std::vector<std::uint8_t> const bytes{1, 2, 255};
  std::string const name = "quote \" and \xc3\xa9";
  write_safetensors(file.path(),
                    {{"small", {3}, small.data()},
                     {"bytes", {3}, bytes.data()},
                     {"weights", {2, 3}, weights.data()},
                     {"empty", {4, 0}, weights.data()},
                     {name, {}, scalar.data()}},
                    {{"format", "pt"}, {"note", "x\ny"}});

  SafetensorsFile const read(file.path());
  CHECK(read.tensors().size() == 5);
  CHECK(read.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"note", "x\ny"}});
  auto const same = [](auto const& a, auto const& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
  };
  CHECK(same(read.read<float>("weights", {2, 3}), weights));
  CHECK(same(read.read<bfloat16>("small", {3}), small));
  CHECK(same(read.read<double>(name, {}), scalar));
  CHECK(same(read.read<std::uint8_t>("bytes", {3}), bytes));
  CHECK(read.read<float>("empty", {4, 0}).empty());
  for (auto const& [tensor_name, tensor] : read.tensors()) {
    CAPTURE(tensor_name);
    std::int64_t const alignment = tensor.type == "F64" ? 8 : tensor.type == "F32" ? 4 : tensor.type == "BF16" ? 2 : 1;
    CHECK(tensor.offset % alignment == 0);
  }
  std::string const text = content(file.path());
  CHECK((8 + std::uint64_t(static_cast<unsigned char>(text[0])) +
         256 * std::uint64_t(static_cast<unsigned char>(text[1]))) %
            8 ==
        0);
  CHECK(text[8] == '{');

  CHECK_THROWS_WITH(read.read<float>("small", {3}), ContainsSubstring(file.path()) &&
                                                        ContainsSubstring("small as BF16 of shape (3)") &&
                                                        ContainsSubstring("F32 of shape (3) is needed"));
  CHECK_THROWS_WITH(read.read<float>("weights", {3, 2}), ContainsSubstring("(2, 3)") && ContainsSubstring("(3, 2)"));
  CHECK_THROWS_WITH(read.read<float>("absent", {1}), ContainsSubstring("no tensor absent"));
}

TEST_CASE("A safetensors file without tensors is one", "[io][safetensors]") {
  TemporaryFile const file("empty.safetensors", "");
  write_safetensors(file.path(), {});
  CHECK(SafetensorsFile(file.path()).tensors().empty());
}

TEST_CASE("Names that clash are not written", "[io][safetensors]") {
  TemporaryFile const file("model.safetensors", "old content");
  float const x = 1;
  CHECK_THROWS_AS(write_safetensors(file.path(), {{"a", {1}, &x}, {"a", {1}, &x}}), Sporos::InvalidArgument);
  CHECK_THROWS_AS(write_safetensors(file.path(), {{"__metadata__", {1}, &x}}), Sporos::InvalidArgument);
  CHECK(content(file.path()) == "old content");
  CHECK_THROWS_WITH(write_safetensors(file.folder() + "/absent/model", {{"a", {1}, &x}}),
                    ContainsSubstring("absent/model"));
}

TEST_CASE("Files that the specification forbids are refused with the reason", "[io][safetensors]") {
  auto const tensor = [](std::string const& name, std::string const& type, std::string const& shape,
                         std::string const& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  auto const expect = [](std::string const& text, std::string const& message) {
    CAPTURE(message);
    TemporaryFile const file("bad.safetensors", text);
    CHECK_THROWS_AS(SafetensorsFile(file.path()), Sporos::InputError);
    CHECK_THROWS_WITH(SafetensorsFile(file.path()), ContainsSubstring(file.path()) && ContainsSubstring(message));
  };
  std::string const a = tensor("a", "F32", "[2]", "[0,8]"), b = tensor("b", "U8", "[3]", "[8,11]"), data(11, 'x');
  {
    TemporaryFile const file("good.safetensors", with_header("{" + b + "," + a + "}   ", data));
    CHECK(SafetensorsFile(file.path()).read<std::uint8_t>("b", {3}).size() == 3);
  }
  expect("", "at least 8");
  expect("1234567", "at least 8");
  expect(little_endian(100'000'001, 8), "100000001");
  expect(little_endian(~std::uint64_t(0), 8), "18446744073709551615");
  expect(little_endian(3, 8) + "{}", "should reach to 11");
  expect(with_header("", ""), "begin with {");
  expect(with_header(" {}", ""), "begin with {");
  expect(with_header("[]", ""), "begin with {");
  expect(with_header("{\"a\"", ""), "parse error");
  expect(with_header("{\"\xff\":1}", ""), "parse error");
  expect(with_header("{" + a + "," + a + "}", data.substr(0, 8)), "\"a\" twice");
  expect(with_header("{" + a + "," + b + "}", data + "x"), "end at byte");
  expect(with_header("{" + a + "," + b + "}", data.substr(1)), "tensor \"b\" ends at byte 11 of 10");
  expect(with_header("{" + a + "," + tensor("b", "U8", "[3]", "[9,12]") + "}", data + "x"), "begins at 9");
  expect(with_header("{" + a + "," + tensor("b", "U8", "[3]", "[7,10]") + "}", data), "begins at 7");
  expect(with_header("{" + tensor("a", "U8", "[3]", "[1,4]") + "}", "xxxx"), "begins at 1");
  expect(with_header("{" + tensor("a", "F33", "[2]", "[0,8]") + "}", "12345678"), "unknown type F33");
  expect(with_header("{" + tensor("a", "F32", "[3]", "[0,8]") + "}", "12345678"), "12 bytes");
  expect(with_header("{" + tensor("a", "F32", "[2]", "[8,0]") + "}", "12345678"), "data_offsets [8,0]");
  expect(with_header("{" + tensor("a", "F32", "[2]", "[0,8,9]") + "}", "12345678"), "data_offsets [0,8,9]");
  expect(with_header("{" + tensor("a", "F32", "[-2]", "[0,8]") + "}", "12345678"), "-2");
  expect(with_header("{" + tensor("a", "F32", "[2.0]", "[0,8]") + "}", "12345678"), "2.0");
  expect(with_header("{" + tensor("a", "F32", "[4294967296,4294967296]", "[0,0]") + "}", ""), "impossible shape");
  expect(with_header("{" + tensor("a", "F32", "[18446744073709551615]", "[0,0]") + "}", ""), "18446744073709551615");
  expect(with_header("{" + tensor("a", "F4", "[3]", "[0,1]") + "}", "x"), "whole bytes");
  expect(with_header("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "12345678"), "dtype");
  expect(with_header("{\"__metadata__\":{\"a\":1}}", ""), "string");
  CHECK_THROWS_WITH(SafetensorsFile("/absent/model.safetensors"), ContainsSubstring("/absent/model.safetensors"));
}

/// Three tensors of 24, 8 and 40 bytes
std::vector<Sporos::SafetensorsTensor> three_tensors() {
  static std::vector<float> const values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  auto const made = [] {
    std::vector<std::byte> bytes(40);
    std::memcpy(bytes.data(), values.data(), 40);
    return bytes;
  };
  return {{"z", {2, 3}, values.data()}, {"a", {2}, values.data() + 3}, {"m", "F32", {10}, made}};
}

TEST_CASE("A model in shards is found again by its index, its directory, or as one file", "[io][safetensors]") {
  for (auto const& [shard_bytes, files] :
       {std::pair(1000, 1), std::pair(72, 1), std::pair(71, 2), std::pair(32, 2), std::pair(31, 3), std::pair(1, 3)}) {
    CAPTURE(shard_bytes);
    TemporaryFile const place("x", "");
    std::string const directory = place.folder() + "/model";
    Sporos::write_safetensors_model(directory, three_tensors(), shard_bytes, {{"format", "pt"}});
    auto const entries = std::distance(std::filesystem::directory_iterator(directory), {});
    CHECK(entries == (files == 1 ? 1 : files + 1));
    std::string const one = directory + "/" + (files == 1 ? "model.safetensors" : "model.safetensors.index.json");
    for (std::string const& path : {directory, one}) {
      Sporos::SafetensorsModel const model(path);
      CHECK(model.directory() == directory);
      REQUIRE(model.tensors().size() == 3);
      CHECK(model.tensors().at("z")->read<float>("z", {2, 3}) == std::vector<float>{1, 2, 3, 4, 5, 6});
      CHECK(model.tensors().at("a")->read<float>("a", {2}) == std::vector<float>{4, 5});
      CHECK(model.tensors().at("m")->read<float>("m", {10}).back() == 10);
      CHECK(model.tensors().at("m")->metadata().at("format") == "pt");
    }
    CHECK_THROWS_WITH(Sporos::write_safetensors_model(directory, three_tensors(), shard_bytes),
                      ContainsSubstring(directory + " holds a model"));
  }
  TemporaryFile const file("short.safetensors", "");
  CHECK_THROWS_AS(write_safetensors(file.path(), {{"m", "F32", {2}, [] { return std::vector<std::byte>(7); }}}),
                  Sporos::InvalidArgument);
}

TEST_CASE("An index that does not fit its shards is refused", "[io][safetensors]") {
  TemporaryFile const place("x", "");
  std::string const directory = place.folder() + "/model", index = directory + "/model.safetensors.index.json";
  Sporos::write_safetensors_model(directory, three_tensors(), 32);
  auto const message = [&](std::string const& text) {
    Sporos::Testing::write_file(index, text);
    try {
      Sporos::SafetensorsModel const model(directory);
    } catch (Sporos::InputError const& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  std::string const first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
  auto const map = [&](std::string const& z, std::string const& a, std::string const& m) {
    return "{\"weight_map\": {\"z\": \"" + z + "\", \"a\": \"" + a + "\", \"m\": \"" + m + "\"}}";
  };
  CHECK(message(map(first, first, second)) == "accepted");
  CHECK_THAT(message(map(first, second, second)), ContainsSubstring("says that tensor \"a\" is in " + second));
  CHECK_THAT(message(map(first, first, "model-3.safetensors")), ContainsSubstring("model-3.safetensors"));
  CHECK_THAT(message(map(first, first, "../model.safetensors")), ContainsSubstring("\"../model.safetensors\""));
  CHECK_THAT(message(map(first, first, "")), ContainsSubstring("tensor \"m\" is said to be in \"\""));
  CHECK_THAT(message("{\"weight_map\": {\"z\": \"" + first + "\", \"m\": \"" + second + "\"}}"),
             ContainsSubstring("holds tensor \"a\", of which"));
  CHECK_THAT(message("{\"weight_map\": {\"z\": \"x\", \"z\": \"y\"}}"), ContainsSubstring("\"z\" twice"));
  CHECK_THAT(message("{}"), ContainsSubstring("weight_map"));
  CHECK_THAT(message("{\"weight_map\": 3}"), ContainsSubstring(index));
  CHECK_THAT(message("no JSON"), ContainsSubstring(index));
  CHECK_THROWS_WITH(Sporos::SafetensorsModel(place.folder()), ContainsSubstring("has neither model.safetensors nor"));
}

}  // namespace
