// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_TOKENFILES_HPP
#define SPOROS_TESTING_TOKENFILES_HPP

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace Sporos::Testing {

/// A file that lives as long as the object, in a folder of its own
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string const& name, std::string_view content) {
    std::string folder = (std::filesystem::temp_directory_path() / "sporos-test-XXXXXX").string();
    if (!::mkdtemp(folder.data())) throw std::runtime_error("mkdtemp " + folder);
    m_folder = folder;
    m_path = m_folder / name;
    std::ofstream file(m_path, std::ios::binary);
    file.write(content.data(), std::streamsize(content.size()));
    if (!file.flush()) throw std::runtime_error("writing " + path());
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove_all(m_folder, ignored);
  }
  TemporaryFile(TemporaryFile const&) = delete;
  TemporaryFile& operator=(TemporaryFile const&) = delete;

  std::string path() const { return m_path.string(); }
  std::string folder() const { return m_folder.string(); }

 private:
  std::filesystem::path m_folder;
  std::filesystem::path m_path;
};

inline void write_file(std::string const& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), std::streamsize(content.size()));
  if (!file.flush()) throw std::runtime_error("writing " + path);
}

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int b = 0; b < bytes; ++b) text.push_back(char(value >> (8 * b)));
  return text;
}

inline std::string uint16_tokens(std::vector<int> const& tokens) {
  std::string text;
  for (int const token : tokens) text += little_endian(std::uint64_t(token), 2);
  return text;
}

inline std::string llmc_header(std::int64_t magic, std::int64_t version, std::int64_t tokens) {
  std::string text = little_endian(std::uint64_t(magic), 4) + little_endian(std::uint64_t(version), 4) +
                     little_endian(std::uint64_t(tokens), 4);
  text.resize(1024, '\0');
  return text;
}

}  // namespace Sporos::Testing

#endif
