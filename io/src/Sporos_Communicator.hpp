// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_COMMUNICATOR_HPP
#define SPOROS_COMMUNICATOR_HPP

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "Sporos_Error.hpp"

namespace Sporos {

/// An error that every rank of a communicator throws at the same place with the same text. A program that catches it may
/// leave in order, the text printed once; after any other exception the other ranks may be waiting in a collective call,
/// and MpiEnvironment::abort is the only way out.
class AgreedError : public InputError {
  using InputError::InputError;
};

/// MPI for the lifetime of the object: initialised with MPI_THREAD_MULTIPLE and finalised, unless it was initialised
/// already. Works without a launcher too, as one rank.
class MpiEnvironment {
 public:
  MpiEnvironment() : MpiEnvironment(nullptr, nullptr) {}
  MpiEnvironment(int& argc, char**& argv) : MpiEnvironment(&argc, &argv) {}
  ~MpiEnvironment();
  MpiEnvironment(MpiEnvironment const&) = delete;
  MpiEnvironment& operator=(MpiEnvironment const&) = delete;

  /// Whether several threads may call MPI at once. Without it a checkpoint cannot be written in the background.
  bool thread_multiple() const { return m_thread_multiple; }

  /// Ends every rank at once with this exit code
  [[noreturn]] static void abort(int exit_code);

 private:
  MpiEnvironment(int* argc, char*** argv);

  bool m_finalize = false;
  bool m_thread_multiple = false;
};

/// The part [first, last) of `total` items that belongs to `rank` of `size`: contiguous, in rank order, the shares differ
/// by at most one.
struct Share {
  std::int64_t first = 0;
  std::int64_t last = 0;

  Share() = default;
  Share(std::int64_t total, int rank, int size);
  std::int64_t size() const { return last - first; }
};

/// A group of ranks. Copies refer to the same MPI communicator. Every function but rank(), size() and handle() is
/// collective: all ranks call it, in the same order.
class Communicator {
 public:
  /// Refers to a communicator that somebody else frees
  explicit Communicator(MPI_Comm handle);
  static Communicator world() { return Communicator(MPI_COMM_WORLD); }

  /// The same ranks with messages of their own, so that another thread can communicate. Freed with its last copy.
  Communicator duplicate() const;

  /// The ranks that give the same `group`, at least 0, in their order. Freed with its last copy.
  Communicator split(int group) const;

  int rank() const { return m_rank; }
  int size() const { return m_size; }
  MPI_Comm handle() const { return *m_handle; }
  Share share(std::int64_t total) const { return {total, m_rank, m_size}; }

  void barrier() const;

  /// The value of every rank, in rank order
  template <class T>
  std::vector<T> all_gather(T const& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values(static_cast<std::size_t>(m_size));
    gather_bytes(&value, values.data(), sizeof(T));
    return values;
  }

  /// The values of every rank, of which each may have another number, in rank order
  template <class T>
  std::vector<std::vector<T>> all_gather(std::vector<T> const& mine) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<std::vector<T>> values;
    std::vector<std::uint64_t> bytes;
    for (std::uint64_t const count : all_gather(std::uint64_t(mine.size()))) {
      values.emplace_back(count);
      bytes.push_back(count * sizeof(T));
    }
    std::vector<void*> places;
    for (auto& one : values) places.push_back(one.data());
    gather_bytes(mine.data(), bytes, places);
    return values;
  }

  /// Sum in rank order: the same bits on all ranks and in every run
  double all_reduce_sum(double value) const;
  /// A NaN on any rank gives NaN
  double all_reduce_max(double value) const;
  std::int64_t all_reduce_max(std::int64_t value) const;
  std::int64_t all_reduce_sum(std::int64_t value) const;

  /// Whether all ranks say true
  bool all_agree(bool value) const;
  /// Whether all ranks have the same value
  bool all_equal(std::uint64_t value) const;

  /// The text of rank `root` on every rank
  void broadcast(std::string& text, int root = 0) const;
  template <class T>
  void broadcast(T& value, int root = 0) const {
    static_assert(std::is_trivially_copyable_v<T>);
    broadcast_bytes(&value, sizeof(T), root);
  }

  /// Throws AgreedError on every rank if any rank has a non-empty text: that of the lowest such rank
  void agree_no_error(std::string const& my_error) const;

  /// Runs `function` on every rank; an exception on any rank becomes an AgreedError on all. `function` must not
  /// communicate after the point where it may throw.
  template <class Function>
  void run_agreed(Function&& function) const {
    std::string error;
    try {
      std::forward<Function>(function)();
    } catch (std::exception const& exception) {
      error = exception.what();
      if (error.empty()) error = "unknown error";
    }
    agree_no_error(error);
  }

 private:
  explicit Communicator(std::shared_ptr<MPI_Comm const> handle);
  static Communicator owner_of(MPI_Comm handle);
  void gather_bytes(void const* mine, void* all, std::size_t bytes) const;
  void gather_bytes(void const* mine, std::vector<std::uint64_t> const& bytes, std::vector<void*> const& places) const;
  void broadcast_bytes(void* data, std::size_t bytes, int root) const;

  std::shared_ptr<MPI_Comm const> m_handle;
  int m_rank = 0;
  int m_size = 1;
};

}  // namespace Sporos

#endif
