// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_MegatronIndex.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <vector>

#include "Sporos_Error.hpp"
#include "impl/Sporos_Files.hpp"

namespace Sporos::Impl {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie in memory");

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::int64_t header_bytes = 9 + 8 + 1 + 8 + 8;

template <class T>
T number_at(std::vector<char> const& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

struct TokenType {
  std::int64_t bytes;
  bool is_signed;
};

TokenType token_type(int code, std::string const& path) {
  switch (code) {
    case 1:
      return {1, false};
    case 2:
      return {1, true};
    case 3:
      return {2, true};
    case 4:
      return {4, true};
    case 5:
      return {8, true};
    case 8:
      return {2, false};
    default:
      throw InputError(
          concatenate(path, ": has tokens of type ", code,
                      "; 1 (uint8), 2 (int8), 3 (int16), 4 (int32), 5 (int64) and 8 (uint16) can be read"));
  }
}

/// An array of numbers in a file, read piece by piece: an index may be larger than the memory.
template <class T>
class NumbersInFile {
 public:
  NumbersInFile(File const& file, std::int64_t offset, std::int64_t count)
      : m_file(file), m_offset(offset), m_left(count) {}

  T next() {
    if (m_at == m_piece.size()) {
      m_piece.resize(std::size_t(std::min<std::int64_t>(m_left, 1 << 15)));
      m_file.read(m_piece.data(), m_piece.size() * sizeof(T), m_offset);
      m_offset += std::int64_t(m_piece.size() * sizeof(T));
      m_left -= std::int64_t(m_piece.size());
      m_at = 0;
    }
    return m_piece[m_at++];
  }

 private:
  File const& m_file;
  std::int64_t m_offset, m_left;
  std::vector<T> m_piece;
  std::size_t m_at = 0;
};

}  // namespace

MegatronIndex read_megatron_index(std::string const& path, std::string const& data_path, std::int64_t data_bytes) {
  File const file(path, O_RDONLY);
  std::int64_t const bytes = file.size();
  SPOROS_THROW_INPUT_ERROR_IF(bytes < header_bytes, path, ": has ", bytes, " bytes; the header of an index has ",
                              header_bytes);
  std::vector<char> header(header_bytes);
  file.read(header.data(), header.size(), 0);
  SPOROS_THROW_INPUT_ERROR_IF(std::string_view(header.data(), magic.size()) != magic, path,
                              ": is no index of Megatron: it does not begin with MMIDIDX");
  auto const version = number_at<std::uint64_t>(header, 9);
  SPOROS_THROW_INPUT_ERROR_IF(version != 1, path, ": has version ", version, " of Megatron's index; 1 can be read");
  TokenType const type = token_type(header[17], path);
  auto const sequences = number_at<std::uint64_t>(header, 18), documents = number_at<std::uint64_t>(header, 26);

  // The counts come from the file; they are compared with its size before anything is multiplied.
  std::uint64_t const left = std::uint64_t(bytes - header_bytes);
  std::uint64_t const largest = left / 8;
  bool const fits = sequences <= largest && documents <= largest;
  std::uint64_t const wanted = fits ? 12 * sequences + 8 * documents : 0;
  SPOROS_THROW_INPUT_ERROR_IF(!fits || (left != wanted && left != wanted + sequences), path, ": its header says ",
                              sequences, " sequences and ", documents, " bounds of documents; it has ", left,
                              " bytes behind it");

  NumbersInFile<std::int32_t> lengths(file, header_bytes, std::int64_t(sequences));
  NumbersInFile<std::int64_t> pointers(file, header_bytes + 4 * std::int64_t(sequences), std::int64_t(sequences));
  std::int64_t end = 0;
  for (std::uint64_t s = 0; s < sequences; ++s) {
    std::int64_t const length = lengths.next(), begin = pointers.next();
    SPOROS_THROW_INPUT_ERROR_IF(length < 0, path, ": sequence ", s, " has ", length, " tokens");
    SPOROS_THROW_INPUT_ERROR_IF(begin < 0 || begin > data_bytes || length > (data_bytes - begin) / type.bytes, path,
                                ": sequence ", s, " begins at byte ", begin, " and has ", length, " tokens of ",
                                type.bytes, " bytes; ", data_path, " has ", data_bytes, " bytes");
    SPOROS_THROW_INPUT_ERROR_IF(begin != end, path, ": sequence ", s, " begins at byte ", begin,
                                ", the one before ends at ", end, "; only sequences without gaps can be read");
    end = begin + length * type.bytes;
  }
  SPOROS_THROW_INPUT_ERROR_IF(end != data_bytes, path, ": its sequences end at byte ", end, "; ", data_path, " has ",
                              data_bytes);

  NumbersInFile<std::int64_t> bounds(file, header_bytes + 12 * std::int64_t(sequences), std::int64_t(documents));
  std::int64_t before = 0;
  for (std::uint64_t d = 0; d < documents; ++d) {
    std::int64_t const bound = bounds.next();
    SPOROS_THROW_INPUT_ERROR_IF(bound < before || bound > std::int64_t(sequences), path, ": bound ", d,
                                " of documents is ", bound, "; the one before is ", before, ", there are ", sequences,
                                " sequences");
    before = bound;
  }
  return {type.bytes, type.is_signed, std::int64_t(sequences)};
}

}  // namespace Sporos::Impl
