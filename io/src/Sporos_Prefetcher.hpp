// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_PREFETCHER_HPP
#define SPOROS_PREFETCHER_HPP

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_DataMixture.hpp"
#include "Sporos_Error.hpp"
#include "Sporos_SampleOrder.hpp"
#include "Sporos_TokenDataset.hpp"
#include "impl/Sporos_Event.hpp"

namespace Sporos {

/// How a training run consumes its samples. Sequence s of step t is sample number t · global_batch + s of the run, whatever the
/// number of ranks. In each step rank r of R works on a contiguous share of the sequences, in micro-batches of at most
/// `micro_batch`; all but its last one in a step are full.
///
/// With `interleaved` the global batch is cut into micro-batches first, which does not depend on the number of ranks, and rank
/// r takes the micro-batches r, r + R, r + 2R, …
struct BatchPlan {
  std::int64_t global_batch = 1;  ///< sequences per step over all ranks
  std::int64_t micro_batch = 1;   ///< sequences at a time on one rank
  int rank = 0;
  int ranks = 1;
  std::int64_t first_step = 0;  ///< steps already taken, when a run is resumed
  bool interleaved = false;

  Share share() const { return {global_batch, rank, ranks}; }
  /// Of all ranks together, in each step
  std::int64_t micro_batches() const { return (global_batch + micro_batch - 1) / micro_batch; }
  /// Micro-batches of this rank in each step; 0 on a rank without a share, where there are more ranks than sequences
  std::int64_t batches_per_step() const {
    if (interleaved) return (micro_batches() - rank + ranks - 1) / ranks;
    return (share().size() + micro_batch - 1) / micro_batch;
  }

  struct MicroBatch {
    std::int64_t first_sequence, count;  ///< in the global batch
  };
  /// Number `batch` of this rank's in a step
  MicroBatch operator[](std::int64_t batch) const {
    std::int64_t const first = interleaved ? (batch * ranks + rank) * micro_batch : share().first + batch * micro_batch;
    return {first, std::min(micro_batch, (interleaved ? global_batch : share().last) - first)};
  }

  /// The ranks that have a micro-batch in each round of a step. Interleaved ones come in order; else a rank with fewer of them
  /// than others has them in the last rounds, so that all are at work when the gradients are summed.
  std::vector<std::vector<int>> rounds() const;
};

namespace Impl {

/// The batches of a plan, read on demand
class BatchReader {
 public:
  struct Position {
    std::int64_t step = 0;
    std::int64_t first_sequence = 0;  ///< in the global batch
    std::int64_t count = 0;           ///< sequences
  };

  BatchReader(DataMixture data, BatchPlan const& plan);

  std::int64_t sequence_length() const { return m_data.sequence_length(); }
  BatchPlan const& plan() const { return m_plan; }

  /// Batch `number` of this rank since the plan's first step
  Position position(std::int64_t number) const;
  /// Its tokens, and those one further; each (count, sequence_length)
  void read(Position const& position, int* inputs, int* targets) const;

 private:
  DataMixture m_data;
  BatchPlan m_plan;
};

}  // namespace Impl

/// One micro-batch on the device
template <class ExecutionSpace>
struct Batch {
  using Tokens = Kokkos::View<int const*, typename ExecutionSpace::memory_space>;

  Tokens inputs;                    ///< (count · sequence_length), sequence after sequence
  Tokens targets;                   ///< the token that follows each input
  std::int64_t count = 0;           ///< sequences
  std::int64_t first_sequence = 0;  ///< index of the first one in the global batch of its step
  std::int64_t step = 0;
};

/// Reads the batches of a plan ahead of their use: a thread of its own fills two buffers in turn, in pinned memory where
/// there is a GPU. It calls neither Kokkos nor MPI.
template <class ExecutionSpace>
class Prefetcher {
 public:
  /// \param space  the batches are for kernels enqueued on this instance
  /// \throws InvalidArgument when the plan makes no sense
  Prefetcher(ExecutionSpace const& space, DataMixture data, BatchPlan const& plan)
      : m_space(space), m_reader(std::move(data), plan) {
    if (batches_per_step() == 0) return;
    std::int64_t const tokens = m_reader.plan().micro_batch * m_reader.sequence_length();
    using Kokkos::view_alloc, Kokkos::WithoutInitializing;
    for (Buffer& buffer : m_buffers)
      buffer.tokens = HostTokens(view_alloc(WithoutInitializing, "Sporos::Prefetcher::buffer"), 2, tokens);
    if constexpr (!Impl::executes_on_host<ExecutionSpace>)
      m_device_tokens = DeviceTokens(view_alloc(space, WithoutInitializing, "Sporos::Prefetcher::tokens"), 2, tokens);
    m_thread = std::thread([this] { read_ahead(); });
  }

  /// Of one source.
  /// \param range  which tokens of the dataset; its samples are numbered as TokenDataset::samples() counts them
  /// \throws InputError when the range holds no sample
  /// \throws InvalidArgument when the plan makes no sense or the order is one of another number of samples
  Prefetcher(ExecutionSpace const& space, TokenDataset dataset, TokenRange range, SampleOrder order,
             std::int64_t sequence_length, BatchPlan const& plan)
      : Prefetcher(space, DataMixture({{std::move(dataset), range, order}}, sequence_length), plan) {}

  ~Prefetcher() {
    {
      std::lock_guard lock(m_mutex);
      m_stop = true;
    }
    m_changed.notify_all();
    if (m_thread.joinable()) m_thread.join();
    for (Buffer& buffer : m_buffers) buffer.copied.wait();
  }
  Prefetcher(Prefetcher const&) = delete;
  Prefetcher& operator=(Prefetcher const&) = delete;

  std::int64_t batches_per_step() const { return m_reader.plan().batches_per_step(); }

  /// The next micro-batch of this rank. Its tokens are valid for kernels enqueued before the call after this one.
  /// Rethrows what the reading thread met, after the batches that came before it.
  /// \throws InvalidArgument on a rank without a share
  Batch<ExecutionSpace> next() {
    SPOROS_THROW_IF(batches_per_step() == 0, "rank ", m_reader.plan().rank, " of ", m_reader.plan().ranks,
                    " has no share of ", m_reader.plan().global_batch, " sequences");
    release_previous();
    Buffer& buffer = m_buffers[m_next];
    {
      auto const start = std::chrono::steady_clock::now();
      std::unique_lock lock(m_mutex);
      m_changed.wait(lock, [&] { return buffer.full || m_error; });
      m_seconds_waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (!buffer.full) std::rethrow_exception(m_error);
    }
    auto const [step, first_sequence, count] = buffer.position;
    auto const range = std::pair(std::int64_t(0), count * m_reader.sequence_length());
    auto const filled = Kokkos::subview(buffer.tokens, Kokkos::ALL, range);
    if constexpr (Impl::executes_on_host<ExecutionSpace>) {
      m_in_use = &buffer;
      m_next = 1 - m_next;
      return {Kokkos::subview(filled, 0, Kokkos::ALL), Kokkos::subview(filled, 1, Kokkos::ALL), count, first_sequence,
              step};
    } else {
      // The instance runs in order, so this copy starts after the last kernel that reads the batch before.
      Batch<ExecutionSpace> batch{Kokkos::subview(m_device_tokens, 0, range),
                                  Kokkos::subview(m_device_tokens, 1, range), count, first_sequence, step};
      for (int row = 0; row < 2; ++row)
        Kokkos::deep_copy(m_space, Kokkos::subview(m_device_tokens, row, range),
                          Kokkos::subview(buffer.tokens, row, range));
      buffer.copied.record(m_space);
      m_next = 1 - m_next;
      give_to_reader(buffer);
      return batch;
    }
  }

  /// How long next() has waited for the reading thread so far
  double seconds_waited() const { return m_seconds_waited; }

 private:
  using HostTokens = Kokkos::View<int**, Kokkos::LayoutRight, Impl::StagingSpace>;
  using DeviceTokens = Kokkos::View<int**, Kokkos::LayoutRight, typename ExecutionSpace::memory_space>;

  struct Buffer {
    HostTokens tokens;  // inputs, targets
    Impl::BatchReader::Position position;
    Impl::Event<ExecutionSpace> copied;
    bool full = false;  // whose turn it is: the caller's or the reading thread's
  };

  void read_ahead() {
    try {
      for (std::int64_t number = 0;; ++number) {
        Buffer& buffer = m_buffers[std::size_t(number % 2)];
        {
          std::unique_lock lock(m_mutex);
          m_changed.wait(lock, [&] { return !buffer.full || m_stop; });
          if (m_stop) return;
        }
        buffer.copied.wait();
        buffer.position = m_reader.position(number);
        m_reader.read(buffer.position, &buffer.tokens(0, 0), &buffer.tokens(1, 0));
        {
          std::lock_guard lock(m_mutex);
          buffer.full = true;
        }
        m_changed.notify_all();
      }
    } catch (...) {
      {
        std::lock_guard lock(m_mutex);
        m_error = std::current_exception();
      }
      m_changed.notify_all();
    }
  }

  void give_to_reader(Buffer& buffer) {
    {
      std::lock_guard lock(m_mutex);
      buffer.full = false;
    }
    m_changed.notify_all();
  }

  /// Where kernels read the buffer itself, the next call is the moment from which it may change.
  void release_previous() {
    if (!m_in_use) return;
    m_space.fence("Sporos::Prefetcher: the batch before has been used");
    give_to_reader(*std::exchange(m_in_use, nullptr));
  }

  ExecutionSpace m_space;
  Impl::BatchReader m_reader;
  std::array<Buffer, 2> m_buffers;
  DeviceTokens m_device_tokens;  // on GPUs only
  Buffer* m_in_use = nullptr;
  std::size_t m_next = 0;
  double m_seconds_waited = 0;

  std::mutex m_mutex;
  std::condition_variable m_changed;
  bool m_stop = false;
  std::exception_ptr m_error;
  std::thread m_thread;
};

}  // namespace Sporos

#endif
