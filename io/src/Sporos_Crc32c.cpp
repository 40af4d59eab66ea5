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
// The instruction takes three cycles and can start every cycle, so three blocks are worked on at once; measured on an EPYC
// with AVX2, 1 MiB: 4.2 GB/s with one, 11.8 GB/s with three.
constexpr std::size_t block_bytes = 4096;

// shift[k][b]: what becomes of the byte b at place k of a state after block_bytes zero bytes
using ShiftTables = std::array<std::array<std::uint32_t, 256>, 4>;

ShiftTables const& shift_tables() {
  static ShiftTables const tables_of_block = [] {
    ShiftTables result{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
      std::uint32_t state = std::uint32_t(1) << bit;
      for (std::size_t i = 0; i < block_bytes; ++i) state = one_byte(state, 0);
      for (std::size_t b = 0; b < 256; ++b)
        if (b >> bit % 8 & 1) result[bit / 8][b] ^= state;  // the CRC is linear
    }
    return result;
  }();
  return tables_of_block;
}

std::uint32_t shifted(ShiftTables const& shift, std::uint32_t state) {
  return shift[0][state & 255] ^ shift[1][state >> 8 & 255] ^ shift[2][state >> 16 & 255] ^ shift[3][state >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_instruction(void const* data, std::size_t bytes,
                                                                   std::uint32_t before) {
  auto const word = [](unsigned char const* at) {
    std::uint64_t value;
    std::memcpy(&value, at, 8);
    return value;
  };
  ShiftTables const& shift = shift_tables();
  auto const* p = static_cast<unsigned char const*>(data);
  std::uint64_t crc = std::uint32_t(~before);
  for (; bytes >= 3 * block_bytes; bytes -= 3 * block_bytes, p += 3 * block_bytes) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < block_bytes; i += 8) {
      crc = _mm_crc32_u64(crc, word(p + i));
      second = _mm_crc32_u64(second, word(p + block_bytes + i));
      third = _mm_crc32_u64(third, word(p + 2 * block_bytes + i));
    }
    crc = shifted(shift, shifted(shift, std::uint32_t(crc)) ^ std::uint32_t(second)) ^ std::uint32_t(third);
  }
  for (; bytes >= 8; bytes -= 8, p += 8) crc = _mm_crc32_u64(crc, word(p));
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
