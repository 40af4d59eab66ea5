// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_IMPL_FILES_HPP
#define SPOROS_IMPL_FILES_HPP

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "Sporos_Error.hpp"

namespace Sporos::Impl {

/// Throws InputError "cannot <action> <path>: <the system's reason>" for the current errno.
[[noreturn]] inline void throw_system_error(char const* action, std::string const& path) {
  throw InputError(concatenate("cannot ", action, " ", path, ": ", std::strerror(errno)));
}

/// An open file. The calls of the system with their return codes checked, short transfers continued.
class File {
 public:
  File(std::string path, int flags)
      : m_path(std::move(path)), m_descriptor(::open(m_path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (m_descriptor < 0) throw_system_error("open", m_path);
  }
  ~File() {
    if (m_descriptor >= 0) ::close(m_descriptor);
  }
  File(File const&) = delete;
  File& operator=(File const&) = delete;

  int descriptor() const { return m_descriptor; }

  std::int64_t size() const {
    struct stat status;
    if (::fstat(m_descriptor, &status) != 0) throw_system_error("look at", m_path);
    return std::int64_t(status.st_size);
  }

  void write(void const* data, std::size_t bytes) const {
    for (auto const* p = static_cast<char const*>(data); bytes > 0;) {
      ssize_t const written = ::write(m_descriptor, p, std::min(bytes, largest_transfer));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_system_error("write", m_path);
      p += written;
      bytes -= std::size_t(written);
    }
  }

  void read(void* data, std::size_t bytes, std::int64_t offset) const {
    for (auto* p = static_cast<char*>(data); bytes > 0;) {
      ssize_t const got = ::pread(m_descriptor, p, std::min(bytes, largest_transfer), off_t(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_system_error("read", m_path);
      SPOROS_THROW_INPUT_ERROR_IF(got == 0, m_path, " ends at byte ", offset, ", ", bytes, " bytes before it should");
      p += got;
      bytes -= std::size_t(got);
      offset += got;
    }
  }

  /// Tells the system to begin with the writing of these bytes to the disk, where it can be told. Only sync() waits for them.
  void begin_sync(std::int64_t offset, std::int64_t bytes) const {
#ifdef SYNC_FILE_RANGE_WRITE
    ::sync_file_range(m_descriptor, off_t(offset), off_t(bytes), SYNC_FILE_RANGE_WRITE);
#else
    static_cast<void>(offset);
    static_cast<void>(bytes);
#endif
  }

  /// Tells the system that these bytes will be read soon, where it can be told.
  void begin_read(std::int64_t offset, std::int64_t bytes) const {
#ifdef POSIX_FADV_WILLNEED
    ::posix_fadvise(m_descriptor, off_t(offset), off_t(bytes), POSIX_FADV_WILLNEED);
#else
    static_cast<void>(offset);
    static_cast<void>(bytes);
#endif
  }

  void sync() const {
    if (::fsync(m_descriptor) != 0) throw_system_error("sync", m_path);
  }

  /// Closes now and reports what a destructor could not: some file systems tell of a full disk only here.
  void close() {
    if (::close(std::exchange(m_descriptor, -1)) != 0) throw_system_error("close", m_path);
  }

 private:
  static constexpr std::size_t largest_transfer = std::size_t(1) << 30;  // Linux moves less than 2 GiB a call anyway

  std::string m_path;
  int m_descriptor;
};

/// What an unprivileged user may still write there; nothing where the file system does not say
inline std::optional<std::int64_t> free_bytes(std::string const& directory) {
  struct statvfs status;
  if (::statvfs(directory.c_str(), &status) != 0) throw_system_error("look at", directory);
  if (status.f_blocks == 0) return std::nullopt;
  return std::int64_t(status.f_bavail) * std::int64_t(status.f_frsize);
}

/// Makes new, renamed and removed entries of a directory durable.
inline void sync_directory(std::string const& path) { File(path, O_RDONLY | O_DIRECTORY).sync(); }

inline void rename_path(std::string const& from, std::string const& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_system_error(("rename " + from + " to").c_str(), to);
}

/// After a crash at any time the file has its old content or all of the new.
inline void replace_file(std::string const& path, std::string const& text) {
  std::string const temporary = path + ".tmp";
  File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  file.write(text.data(), text.size());
  file.sync();
  file.close();
  rename_path(temporary, path);
  sync_directory(std::filesystem::path(path).parent_path().string());
}

inline std::string read_file(std::string const& path) {
  File const file(path, O_RDONLY);
  std::string text(std::size_t(file.size()), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

}  // namespace Sporos::Impl

#endif
