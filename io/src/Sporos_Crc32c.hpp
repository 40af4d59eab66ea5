// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_CRC32C_HPP
#define SPOROS_CRC32C_HPP

#include <cstddef>
#include <cstdint>

namespace Sporos {

/// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, as in RFC 3720 appendix B.4) of `bytes` bytes. The CRC of a text in
/// parts: give that of the parts before as `before`.
std::uint32_t crc32c(void const* data, std::size_t bytes, std::uint32_t before = 0);

namespace Impl {
/// The same without the processor's own instruction
std::uint32_t crc32c_portable(void const* data, std::size_t bytes, std::uint32_t before);
}  // namespace Impl

}  // namespace Sporos

#endif
