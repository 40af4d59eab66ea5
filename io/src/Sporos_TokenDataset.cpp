// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_TokenDataset.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "Sporos_Crc32c.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_MegatronIndex.hpp"

namespace Sporos {
namespace {

constexpr std::int64_t llmc_header_bytes = 1024;
constexpr std::int32_t llmc_magic = 20240520;
constexpr std::int32_t llmc_version = 1;
constexpr std::int32_t llama3_magic = 20240801;
constexpr std::int32_t llama3_version = 7;

using Header = std::array<unsigned char, llmc_header_bytes>;

std::int32_t header_int(Header const& header, std::size_t index) {
  unsigned char const* const b = header.data() + 4 * index;
  return std::int32_t(std::uint32_t(b[0]) | std::uint32_t(b[1]) << 8 | std::uint32_t(b[2]) << 16 |
                      std::uint32_t(b[3]) << 24);
}

/// llm.c's other files have headers of the same size; reading one as raw tokens would train on noise.
char const* other_llmc_file(std::int32_t magic) {
  switch (magic) {
    case 20240522:
      return "an evaluation set";
    case 20240326:
      return "a model checkpoint";
    case 20240527:
      return "an optimizer state";
    default:
      return nullptr;
  }
}

std::string without_ending(std::string const& path, std::string_view ending) {
  return path.ends_with(ending) ? path.substr(0, path.size() - ending.size()) : path;
}

/// Little-endian
std::int64_t token_at(unsigned char const* bytes, std::int64_t count, bool is_signed) {
  std::uint64_t value = 0;
  for (std::int64_t b = 0; b < count; ++b) value |= std::uint64_t(bytes[b]) << (8 * b);
  if (is_signed && count < 8 && (bytes[count - 1] & 0x80) != 0) value |= ~std::uint64_t(0) << (8 * count);
  return std::int64_t(value);
}

}  // namespace

/// A regular file, opened for reading. pread instead of mmap: a file that shrinks gives an error instead of a signal.
class TokenDataset::File {
 public:
  explicit File(std::string const& path) : m_path(path) {
    m_descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    SPOROS_THROW_INPUT_ERROR_IF(m_descriptor < 0, path, ": cannot be opened: ", std::strerror(errno));
    struct stat status{};
    int const error = ::fstat(m_descriptor, &status) == 0 ? 0 : errno;
    if (error != 0 || !S_ISREG(status.st_mode)) {
      ::close(m_descriptor);
      throw InputError(path + ": " + (error != 0 ? std::strerror(error) : "is not a regular file"));
    }
    m_bytes = std::int64_t(status.st_size);
  }
  ~File() { ::close(m_descriptor); }
  File(File const&) = delete;
  File& operator=(File const&) = delete;

  std::int64_t bytes() const { return m_bytes; }

  void read(std::int64_t offset, std::int64_t count, unsigned char* out) const {
    while (count > 0) {
      ssize_t const got = ::pread(m_descriptor, out, std::size_t(count), off_t(offset));
      if (got < 0 && errno == EINTR) continue;
      SPOROS_THROW_INPUT_ERROR_IF(got < 0, m_path, ": reading ", count, " bytes at byte ", offset,
                                  " failed: ", std::strerror(errno));
      SPOROS_THROW_INPUT_ERROR_IF(got == 0, m_path, ": ends at byte ", offset, "; it had ", m_bytes,
                                  " bytes when it was opened");
      out += got;
      offset += got;
      count -= got;
    }
  }

 private:
  std::string m_path;
  int m_descriptor = -1;
  std::int64_t m_bytes = 0;
};

TokenDataset TokenDataset::open(std::string const& spec, int vocabulary) {
  SPOROS_THROW_IF(vocabulary <= 0, "the vocabulary has ", vocabulary, " tokens; at least one is needed");
  TokenDataset dataset;
  dataset.m_vocabulary = vocabulary;
  dataset.m_path = spec;

  bool named = false;
  for (auto const& [prefix, kind] :
       {std::pair(std::string_view("text:"), Kind::text), std::pair(std::string_view("llmc:"), Kind::llmc),
        std::pair(std::string_view("nanogpt:"), Kind::nanogpt),
        std::pair(std::string_view("megatron:"), Kind::megatron)})
    if (spec.starts_with(prefix)) {
      named = true;
      dataset.m_path = spec.substr(prefix.size());
      dataset.m_kind = kind;
    }
  SPOROS_THROW_INPUT_ERROR_IF(dataset.m_path.empty(), "the data's path is empty (\"", spec, "\")");

  std::string const& path = dataset.m_path;
  bool const has_index = path.ends_with(".bin") && std::filesystem::exists(without_ending(path, ".bin") + ".idx");
  if (!named && (has_index || path.ends_with(".idx"))) {
    named = true;
    dataset.m_kind = Kind::megatron;
  }
  if (dataset.m_kind == Kind::megatron) dataset.m_path = without_ending(without_ending(path, ".bin"), ".idx") + ".bin";
  dataset.m_file = std::make_shared<File const>(dataset.m_path);

  if (!named && dataset.m_path.ends_with(".bin"))
    dataset.m_kind = dataset.has_llmc_header() ? Kind::llmc : Kind::nanogpt;
  if (dataset.m_kind != Kind::text) dataset.m_token_bytes = 2;
  if (dataset.m_kind == Kind::llmc) dataset.read_llmc_header();
  if (dataset.m_kind == Kind::megatron) dataset.read_index();
  std::int64_t const bytes = dataset.m_file->bytes();
  SPOROS_THROW_INPUT_ERROR_IF(dataset.m_kind == Kind::nanogpt && bytes % 2 != 0, dataset.m_path, ": has ", bytes,
                              " bytes, an odd number; uint16 tokens have two each");
  dataset.m_size = (bytes - dataset.m_header_bytes) / dataset.m_token_bytes;
  SPOROS_THROW_INPUT_ERROR_IF(dataset.m_size == 0, dataset.m_path, ": holds no tokens");
  return dataset;
}

bool TokenDataset::has_llmc_header() const {
  if (m_file->bytes() < llmc_header_bytes) return false;
  Header header{};
  m_file->read(0, llmc_header_bytes, header.data());
  std::int32_t const magic = header_int(header, 0);
  // Tokens are not zero 506 times in a row: a header, whatever its magic.
  bool const looks_like_one = std::all_of(header.begin() + 12, header.end(), [](unsigned char b) { return b == 0; });
  return magic == llmc_magic || magic == llama3_magic || looks_like_one || other_llmc_file(magic);
}

void TokenDataset::read_llmc_header() {
  std::int64_t const bytes = m_file->bytes();
  SPOROS_THROW_INPUT_ERROR_IF(bytes < llmc_header_bytes, m_path, ": has ", bytes,
                              " bytes; the header of llm.c's tokens has ", llmc_header_bytes);
  Header header{};
  m_file->read(0, llmc_header_bytes, header.data());
  std::int32_t const magic = header_int(header, 0), version = header_int(header, 1), tokens = header_int(header, 2);
  char const* const other = other_llmc_file(magic);
  SPOROS_THROW_INPUT_ERROR_IF(magic != llmc_magic && magic != llama3_magic, m_path, ": has the magic number ", magic,
                              other ? std::string(" (") + other + ")" : std::string(), "; llm.c's tokens have ",
                              llmc_magic, ", for Llama 3 ", llama3_magic,
                              ". (Raw uint16 tokens are read as nanogpt:", m_path, ")");
  bool const is_llama3 = magic == llama3_magic;
  std::int32_t const known_version = is_llama3 ? llama3_version : llmc_version;
  SPOROS_THROW_INPUT_ERROR_IF(version != known_version, m_path, ": has version ", version,
                              " of llm.c's token format; version ", known_version, " can be read");
  m_token_bytes = is_llama3 ? 4 : 2;
  m_header_bytes = llmc_header_bytes;
  std::int64_t const expected = llmc_header_bytes + m_token_bytes * std::int64_t(tokens);
  SPOROS_THROW_INPUT_ERROR_IF(tokens < 0 || bytes != expected, m_path, ": its header says ", tokens,
                              " tokens, which would be ", expected, " bytes; it has ", bytes);
}

void TokenDataset::read_index() {
  Impl::MegatronIndex const index =
      Impl::read_megatron_index(without_ending(m_path, ".bin") + ".idx", m_path, m_file->bytes());
  m_token_bytes = index.token_bytes;
  m_is_signed = index.is_signed;
}

void TokenDataset::read(std::int64_t first, std::int64_t count, int* out) const {
  SPOROS_THROW_IF(first < 0 || count < 0 || first > m_size - count, count, " tokens from number ", first, " on of ",
                  m_path, ", which has ", m_size);
  // Piece by piece, so that a long read needs no second copy of itself
  constexpr std::int64_t piece = 1 << 15;
  std::vector<unsigned char> bytes(std::size_t(std::min(piece, count) * m_token_bytes));
  for (std::int64_t done = 0; done < count; done += piece) {
    std::int64_t const here = std::min(piece, count - done);
    m_file->read(m_header_bytes + (first + done) * m_token_bytes, here * m_token_bytes, bytes.data());
    for (std::int64_t i = 0; i < here; ++i) {
      std::int64_t const token = token_at(bytes.data() + i * m_token_bytes, m_token_bytes, m_is_signed);
      SPOROS_THROW_INPUT_ERROR_IF(token < 0 || token >= m_vocabulary, m_path, ": token ", first + done + i, " is ",
                                  token, "; the vocabulary has ", m_vocabulary, " tokens");
      out[done + i] = int(token);
    }
  }
}

std::int64_t TokenDataset::samples(TokenRange range, std::int64_t sequence_length) const {
  SPOROS_THROW_IF(sequence_length <= 0, "the sequence length is ", sequence_length);
  SPOROS_THROW_IF(range.first < 0 || range.last < range.first || range.last > m_size, "tokens [", range.first, ", ",
                  range.last, ") of ", m_path, ", which has ", m_size);
  SPOROS_THROW_INPUT_ERROR_IF(range.size() <= sequence_length, m_path, ": tokens [", range.first, ", ", range.last,
                              ") are ", range.size(), "; one sequence of ", sequence_length, " tokens needs ",
                              sequence_length + 1);
  return (range.size() - 1) / sequence_length;
}

std::uint64_t TokenDataset::fingerprint() const {
  // FNV-1a over kind, length, and 256 pieces of 4 KiB that always include both ends: milliseconds for a file of any size
  std::uint64_t hash = 14695981039346656037u;
  auto const mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 1099511628211u; };
  for (std::uint64_t value : {std::uint64_t(m_kind), std::uint64_t(m_size)})
    for (int shift = 0; shift < 64; shift += 8) mix((unsigned char)(value >> shift));

  constexpr std::int64_t pieces = 256, piece_bytes = 4096;
  std::int64_t const bytes = m_size * m_token_bytes;
  std::int64_t const here = std::min(bytes, piece_bytes);
  std::vector<unsigned char> content(static_cast<std::size_t>(here));
  std::int64_t const last = bytes - here;
  for (std::int64_t p = 0; p < pieces; ++p) {
    m_file->read(m_header_bytes + last / (pieces - 1) * p + last % (pieces - 1) * p / (pieces - 1), here,
                 content.data());
    for (unsigned char const byte : content) mix(byte);
  }

  // The pieces leave gaps in what is larger than all of them together.
  constexpr std::int64_t largest_read_whole = std::int64_t(64) << 20;
  if (bytes > pieces * piece_bytes && bytes <= largest_read_whole) {
    std::uint32_t crc = 0;
    content.resize(1 << 20);
    for (std::int64_t at = 0; at < bytes; at += std::int64_t(content.size())) {
      std::int64_t const count = std::min<std::int64_t>(bytes - at, std::int64_t(content.size()));
      m_file->read(m_header_bytes + at, count, content.data());
      crc = crc32c(content.data(), std::size_t(count), crc);
    }
    for (int shift = 0; shift < 32; shift += 8) mix((unsigned char)(crc >> shift));
  }
  return hash;
}

std::string TokenDataset::description() const {
  char const* const kind = m_kind == Kind::text      ? "text"
                           : m_kind == Kind::llmc    ? "llm.c"
                           : m_kind == Kind::nanogpt ? "nanoGPT"
                                                     : "Megatron";
  return Impl::concatenate(m_path, " (", kind, ", ", m_size, " tokens)");
}

TrainValidationSplit TrainValidationSplit::by_fraction(TokenDataset const& dataset, double validation_fraction) {
  SPOROS_THROW_INPUT_ERROR_IF(!(validation_fraction >= 0 && validation_fraction < 1), "the validation fraction is ",
                              validation_fraction, "; it must lie in [0, 1)");
  std::int64_t const boundary =
      dataset.size() - std::int64_t(std::llround(double(dataset.size()) * validation_fraction));
  return {{0, boundary}, {boundary, dataset.size()}};
}

}  // namespace Sporos
