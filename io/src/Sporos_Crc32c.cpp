// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

// Clang compiles this file for the device too where HIP is on; the instruction exists on the host only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__CUDA_ARCH__) && !defined(__HIP_DEVICE_COMPILE__)
#define SPOROS_CRC32C_INSTRUCTION
#include <nmmintrin.h>
#endif

namespace Sporos {
namespace {

// tables[k][b]: the CRC of the byte b followed by k zero bytes. Eight of them take eight bytes a step.
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> result{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    result[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) result[k][b] = result[k - 1][b] >> 8 ^ result[0][result[k - 1][b] & 255];
  return result;
}();

std::uint32_t one_byte(std::uint32_t crc, unsigned char byte) { return crc >> 8 ^ tables[0][(crc ^ byte) & 255]; }

#ifdef SPOROS_CRC32C_INSTRUCTION
__attribute__((target("sse4.2"))) std::uint32_t crc32c_instruction(void const* data, std::size_t bytes,
                                                                   std::uint32_t before) {
  auto const* p = static_cast<unsigned char const*>(data);
  std::uint64_t crc = ~before;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = std::uint32_t(crc);
  for (; bytes > 0; --bytes) rest = _mm_crc32_u8(rest, *p++);
  return ~rest;
}
#endif

}  // namespace

std::uint32_t Impl::crc32c_portable(void const* data, std::size_t bytes, std::uint32_t before) {
  auto const* p = static_cast<unsigned char const*>(data);
  std::uint32_t crc = ~before;
  if constexpr (std::endian::native == std::endian::little) {
    for (; bytes >= 8; bytes -= 8, p += 8) {
      std::uint32_t low, high;
      std::memcpy(&low, p, 4);
      std::memcpy(&high, p + 4, 4);
      low ^= crc;
      crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^
            tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^ tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
    }
  }
  for (; bytes > 0; --bytes) crc = one_byte(crc, *p++);
  return ~crc;
}

std::uint32_t crc32c(void const* data, std::size_t bytes, std::uint32_t before) {
#ifdef SPOROS_CRC32C_INSTRUCTION
  static bool const has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_instruction(data, bytes, before);
#endif
  return Impl::crc32c_portable(data, bytes, before);
}

}  // namespace Sporos
