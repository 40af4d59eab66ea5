// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "Sporos_Crc32c.hpp"

namespace {

using Sporos::crc32c, Sporos::Impl::crc32c_portable;

TEST_CASE("crc32c gives the published values", "[io][crc32c]") {
  // RFC 3720, appendix B.4, and the check value of the catalogues of CRCs
  std::string const digits = "123456789";
  std::vector<unsigned char> const zeros(32, 0), ones(32, 0xff);
  std::vector<unsigned char> ascending(32), descending(32);
  std::iota(ascending.begin(), ascending.end(), static_cast<unsigned char>(0));
  std::reverse_copy(ascending.begin(), ascending.end(), descending.begin());
  for (auto const& function : {crc32c, crc32c_portable}) {
    CHECK(function(digits.data(), digits.size(), 0) == 0xe3069283u);
    CHECK(function(zeros.data(), 32, 0) == 0x8a9136aau);
    CHECK(function(ones.data(), 32, 0) == 0x62a8ab43u);
    CHECK(function(ascending.data(), 32, 0) == 0x46dd794eu);
    CHECK(function(descending.data(), 32, 0) == 0x113fdb5cu);
    CHECK(function(nullptr, 0, 0) == 0u);
  }
}

TEST_CASE("crc32c of parts is that of the whole, at any alignment and with any processor", "[io][crc32c]") {
  std::vector<unsigned char> data(1000);
  std::uint32_t x = 1;
  for (auto& byte : data) byte = static_cast<unsigned char>((x = x * 1664525u + 1013904223u) >> 24);
  // Bit by bit, from the definition
  auto const reference = [&](std::size_t begin, std::size_t end) {
    std::uint32_t crc = ~0u;
    for (std::size_t i = begin; i < end; ++i)
      for (int bit = 0; bit < 8; ++bit) {
        bool const one = (crc ^ data[i] >> bit) & 1;
        crc = crc >> 1 ^ (one ? 0x82f63b78u : 0u);
      }
    return ~crc;
  };
  for (std::size_t begin = 0; begin < 9; ++begin)
    for (std::size_t end : {begin, begin + 1, begin + 7, begin + 8, begin + 9, begin + 63, std::size_t(1000)}) {
      CAPTURE(begin, end);
      std::uint32_t const expected = reference(begin, end);
      std::size_t const middle = begin + (end - begin) / 3;
      for (auto const& function : {crc32c, crc32c_portable}) {
        CHECK(function(data.data() + begin, end - begin, 0) == expected);
        CHECK(function(data.data() + middle, end - middle, function(data.data() + begin, middle - begin, 0)) ==
              expected);
      }
    }
}

TEST_CASE("crc32c of many blocks is the portable one's", "[io][crc32c]") {
  std::vector<unsigned char> data(100000);
  std::uint32_t x = 7;
  for (auto& byte : data) byte = static_cast<unsigned char>((x = x * 1664525u + 1013904223u) >> 24);
  for (std::size_t const bytes : {12287, 12288, 12289, 24575, 24576, 24577, 36864, 99999})
    for (std::uint32_t const before : {0u, 1u, 0xdeadbeefu}) {
      CAPTURE(bytes, before);
      CHECK(crc32c(data.data() + 1, bytes, before) == crc32c_portable(data.data() + 1, bytes, before));
    }
}

}  // namespace
