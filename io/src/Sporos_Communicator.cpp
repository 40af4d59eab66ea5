// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "Sporos_Communicator.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace Sporos {

MpiEnvironment::MpiEnvironment(int* argc, char*** argv) {
  int initialized = 0;
  int provided = 0;
  MPI_Initialized(&initialized);
  if (initialized) {
    MPI_Query_thread(&provided);
  } else {
    MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided);
    m_finalize = true;
  }
  m_thread_multiple = provided >= MPI_THREAD_MULTIPLE;
}

MpiEnvironment::~MpiEnvironment() {
  if (m_finalize) MPI_Finalize();
}

void MpiEnvironment::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

Share::Share(std::int64_t total, int rank, int size) {
  // rank · total could overflow; the quotient and the remainder apart cannot.
  std::int64_t const quotient = total / size, remainder = total % size;
  first = quotient * rank + remainder * rank / size;
  last = quotient * (rank + 1) + remainder * (rank + 1) / size;
}

Communicator::Communicator(MPI_Comm handle) : Communicator(std::make_shared<MPI_Comm const>(handle)) {}

Communicator::Communicator(std::shared_ptr<MPI_Comm const> handle) : m_handle(std::move(handle)) {
  MPI_Comm_rank(*m_handle, &m_rank);
  MPI_Comm_size(*m_handle, &m_size);
}

Communicator Communicator::duplicate() const {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(*m_handle, &copy);
  return owner_of(copy);
}

Communicator Communicator::split(int group) const {
  SPOROS_THROW_IF(group < 0, "rank ", m_rank, " is in group ", group, "; groups count from 0");
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(*m_handle, group, m_rank, &part);
  return owner_of(part);
}

Communicator Communicator::owner_of(MPI_Comm owned) {
  return Communicator(std::shared_ptr<MPI_Comm const>(new MPI_Comm(owned), [](MPI_Comm const* handle) {
    // An object that outlives MPI, a static one say, has nothing left to free.
    int finalized = 0;
    MPI_Finalized(&finalized);
    MPI_Comm freed = *handle;
    if (!finalized) MPI_Comm_free(&freed);
    delete handle;
  }));
}

void Communicator::barrier() const { MPI_Barrier(*m_handle); }

void Communicator::gather_bytes(void const* mine, void* all, std::size_t bytes) const {
  MPI_Allgather(mine, int(bytes), MPI_BYTE, all, int(bytes), MPI_BYTE, *m_handle);
}

void Communicator::gather_bytes(void const* mine, std::vector<std::uint64_t> const& bytes,
                                std::vector<void*> const& places) const {
  // MPI 3 counts in int, the displacements of MPI_Allgatherv too.
  std::uint64_t const all = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t(0));
  SPOROS_THROW_IF(all > std::uint64_t(std::numeric_limits<int>::max()), "all_gather of ", all, " bytes");
  std::vector<int> counts(bytes.begin(), bytes.end()), begins(bytes.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, begins.begin() + 1);
  std::vector<char> gathered(all);
  MPI_Allgatherv(mine, counts[std::size_t(m_rank)], MPI_BYTE, gathered.data(), counts.data(), begins.data(), MPI_BYTE,
                 *m_handle);
  for (std::size_t rank = 0; rank < places.size(); ++rank)
    std::copy_n(gathered.data() + begins[rank], counts[rank], static_cast<char*>(places[rank]));
}

void Communicator::broadcast_bytes(void* data, std::size_t bytes, int root) const {
  // MPI 3 counts in int.
  constexpr std::size_t piece = std::size_t(1) << 30;
  for (std::size_t begin = 0; begin < bytes; begin += piece)
    MPI_Bcast(static_cast<char*>(data) + begin, int(std::min(piece, bytes - begin)), MPI_BYTE, root, *m_handle);
}

double Communicator::all_reduce_sum(double value) const {
  double sum = 0;
  for (double const one : all_gather(value)) sum += one;
  return sum;
}

std::int64_t Communicator::all_reduce_sum(std::int64_t value) const {
  std::int64_t sum = 0;
  for (std::int64_t const one : all_gather(value)) sum += one;
  return sum;
}

double Communicator::all_reduce_max(double value) const {
  double largest = -std::numeric_limits<double>::infinity();
  for (double const one : all_gather(value)) {
    if (std::isnan(one)) return one;
    largest = std::max(largest, one);
  }
  return largest;
}

std::int64_t Communicator::all_reduce_max(std::int64_t value) const {
  auto const values = all_gather(value);
  return *std::max_element(values.begin(), values.end());
}

bool Communicator::all_agree(bool value) const {
  auto const values = all_gather(char(value));
  return std::all_of(values.begin(), values.end(), [](char one) { return one != 0; });
}

bool Communicator::all_equal(std::uint64_t value) const {
  auto const values = all_gather(value);
  return std::all_of(values.begin(), values.end(), [&](std::uint64_t one) { return one == values.front(); });
}

void Communicator::broadcast(std::string& text, int root) const {
  std::uint64_t length = text.size();
  broadcast(length, root);
  text.resize(length);
  broadcast_bytes(text.data(), text.size(), root);
}

void Communicator::agree_no_error(std::string const& my_error) const {
  auto const failed = all_gather(char(!my_error.empty()));
  auto const first = std::find(failed.begin(), failed.end(), char(1));
  if (first == failed.end()) return;
  int const root = int(first - failed.begin());
  std::string text = my_error;
  broadcast(text, root);
  throw AgreedError(m_size == 1 ? text : Impl::concatenate("(rank ", root, ") ", text));
}

}  // namespace Sporos
