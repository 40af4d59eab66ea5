// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_CHECKPOINT_HPP
#define SPOROS_CHECKPOINT_HPP

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "Sporos_Communicator.hpp"
#include "Sporos_ShardedState.hpp"
#include "Sporos_StorageTypes.hpp"

// A checkpoint is a directory `step-<12 digits>`, or `step-<12 digits>-<revision>` where that step was there already:
//   data.h5        one HDF5 file of all ranks: groups parameters, master (where there is one), first_moment and
//                  second_moment; in each a contiguous row-major dataset for every tensor, named and shaped like it.
//                  bfloat16 is a floating-point type of 16 bits, which h5py reads as float32.
//   manifest.json  step, metadata, tensors, size of data.h5, and the CRC-32C of every piece that a rank wrote. Its first
//                  line holds the CRC-32C of the bytes after that line. It is written last; without it there is no checkpoint.
// It comes into being by the renaming of a directory whose files are on the disk, so a crash leaves the previous checkpoint.
// `latest` beside the checkpoints names the newest one, for people and scripts; nothing here reads it.

namespace Sporos {

struct CheckpointOptions {
  /// Made if it is not there. It belongs to one job at a time: each save removes what unfinished ones have left there.
  std::string directory;

  /// So many of the newest checkpoints stay; 0: all
  int keep = 2;

  /// A save that takes longer counts as failed for ever.
  double deadline_seconds = 1800;

  /// Refuse to start without enough free space, and reserve the space before any data is written
  bool reserve = true;
};

namespace Impl {

enum class ElementType { bfloat16, float32, float64 };

template <class T>
constexpr ElementType element_type() {
  static_assert(std::is_same_v<T, bfloat16> || std::is_same_v<T, float> || std::is_same_v<T, double>);
  if constexpr (std::is_same_v<T, bfloat16>) return ElementType::bfloat16;
  return std::is_same_v<T, float> ? ElementType::float32 : ElementType::float64;
}

/// One buffer of a ShardedState: a group of the file with a dataset for every tensor
struct CheckpointArray {
  std::string group;
  ElementType type;
};

/// What one rank contributes to a checkpoint: for each array the elements of the parts that it owns, one after another
struct StagedCheckpoint {
  std::int64_t step = 0;
  std::int64_t optimizer_step = 0;
  std::string metadata;
  StateLayout layout;
  std::vector<OwnedPart> owned;
  std::vector<CheckpointArray> arrays;
  std::vector<std::byte const*> data;
};

/// Where an array of a checkpoint goes: copy(first element, count, the elements) is called for the pieces of which this rank
/// holds a part, as holds(first element, count) says. Unless it is shared out, every rank holds all.
struct CheckpointTarget {
  CheckpointArray array;
  bool is_shared;
  std::function<bool(std::int64_t, std::int64_t)> holds;
  std::function<void(std::int64_t, std::int64_t, std::byte const*)> copy;
};

/// Calls function(group, buffer) for every buffer that a checkpoint holds.
template <class State, class Function>
void for_each_checkpoint_array(State const& state, Function const& function) {
  function("parameters", state.parameters());
  if constexpr (State::has_own_master) function("master", state.master());
  function("first_moment", state.first_moment());
  function("second_moment", state.second_moment());
}

}  // namespace Impl

/// Writes checkpoints from all ranks of a communicator. All its functions but last_committed() and seconds_stalled() are
/// collective, and so are construction and destruction.
///
/// save() returns as soon as this rank's part is copied to the host; a thread writes it. Where MPI was not initialised with
/// MPI_THREAD_MULTIPLE the writing is done in save() itself. A failed save changes nothing in the directory and is thrown
/// as AgreedError by the next save() or wait(). Where the thread hangs in the file system beyond the deadline, they throw
/// too, and the destructor ends the process with exit code 75, because MPI_Finalize would not return.
class CheckpointWriter {
 public:
  /// Throws AgreedError if ranks name different directories, or if it cannot be made or written to.
  CheckpointWriter(Communicator const& communicator, CheckpointOptions options);
  ~CheckpointWriter();
  CheckpointWriter(CheckpointWriter const&) = delete;
  CheckpointWriter& operator=(CheckpointWriter const&) = delete;

  /// \param metadata what else the caller wants back; the same on all ranks (that of rank 0 is kept)
  /// \param step the name of the checkpoint, the same on all ranks
  /// The state may be shared out in any stage, over the ranks of the writer's communicator.
  /// Waits for the previous save first, and fences the state's execution space.
  template <class ExecutionSpace, class T>
  void save(ShardedState<ExecutionSpace, T> const& state, nlohmann::json const& metadata, std::int64_t step) {
    Kokkos::Profiling::ScopedRegion const region("Sporos::CheckpointWriter::save");
    Kokkos::Timer const timer;
    finish();  // only then is the memory free that it was staged in
    Impl::StagedCheckpoint staged;
    staged.step = step;
    staged.optimizer_step = state.step;
    staged.layout = state.layout();
    staged.owned = state.layout().owned(m_communicator.rank(), m_communicator.size());
    auto const count = std::size_t(staged.owned.back().offset + staged.owned.back().range.size());
    Impl::for_each_checkpoint_array(state, [&](char const* group, auto const& flat) {
      using Element = typename std::decay_t<decltype(flat)>::value_type;
      auto* const data = reinterpret_cast<Element*>(staging_memory(staged.arrays.size(), count * sizeof(Element)));
      for (OwnedPart const& owned : staged.owned)
        Kokkos::deep_copy(state.space(),
                          Kokkos::View<Element*, StagingSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
                              data + owned.offset, std::size_t(owned.range.size())),
                          state.part(flat, owned));
      staged.arrays.push_back({group, Impl::element_type<Element>()});
      staged.data.push_back(reinterpret_cast<std::byte const*>(data));
    });
    state.space().fence("Sporos::CheckpointWriter: staged on the host");
    start(std::move(staged), metadata);
    m_seconds_stalled += timer.seconds();
  }

  /// Returns when nothing is being written any more.
  void wait();

  /// The step of the newest checkpoint that this writer has made
  std::optional<std::int64_t> last_committed() const;

  /// How long the callers of save() and wait() have been kept, in all
  double seconds_stalled() const { return m_seconds_stalled; }

 private:
  using StagingSpace = Kokkos::SharedHostPinnedSpace;
  struct Background;

  std::byte* staging_memory(std::size_t array, std::size_t bytes);
  void start(Impl::StagedCheckpoint staged, nlohmann::json const& metadata);
  void finish();

  Communicator m_communicator;
  CheckpointOptions m_options;
  std::vector<Kokkos::View<std::byte*, StagingSpace>> m_staging;
  std::unique_ptr<Background> m_background;
  double m_seconds_stalled = 0;
};

/// What CheckpointReader throws where the files of a checkpoint are not what was written
class DamagedCheckpoint : public AgreedError {
  using AgreedError::AgreedError;
};

/// A checkpoint of which manifest and size of the data are right. Any number of ranks reads what any other has written.
class CheckpointReader {
 public:
  /// Fills a state from the newest whole checkpoint in the directory; nothing if there is none, or no directory. The data are
  /// read once and compared with their CRCs on the way. Where they are damaged the checkpoint before is loaded; where there is
  /// none the state is zero, as it was constructed. Collective; the state's execution space is fenced.
  /// \param accept called on every rank before a checkpoint's data are read; what it throws ends the search as AgreedError
  /// \param on_skipped called on rank 0 with the reason for every newer checkpoint that is not whole
  /// Throws AgreedError if ranks name different directories or do not see the same, if it cannot be read, and for a state
  /// of other tensors, as load() does.
  template <class ExecutionSpace, class T>
  static std::optional<CheckpointReader> load_newest(Communicator const& communicator, std::string const& directory,
                                                     ShardedState<ExecutionSpace, T>& state,
                                                     std::function<void(CheckpointReader const&)> const& accept,
                                                     std::function<void(std::string const&)> const& on_skipped) {
    bool touched = false;
    auto reader = find(
        communicator, directory,
        [&](CheckpointReader const& candidate) {
          communicator.run_agreed([&] { accept(candidate); });
          touched = true;
          candidate.load(state);
        },
        on_skipped);
    if (touched && !reader) {
      Impl::for_each_checkpoint_array(state, [&](char const*, auto const& flat) {
        using Element = typename std::decay_t<decltype(flat)>::value_type;
        Kokkos::deep_copy(state.space(), flat, Element(0.0f));
      });
      state.step = 0;
    }
    return reader;
  }

  /// The newest checkpoint in the directory whose files are complete and whose data have the CRCs that were taken before
  /// they were written; nothing if there is none, or no directory. Collective; every rank verifies a part.
  /// \param on_skipped called on rank 0 with the reason for every newer checkpoint that is not whole
  /// Throws AgreedError if ranks name different directories or do not see the same, or if it cannot be read.
  static std::optional<CheckpointReader> newest_valid(Communicator const& communicator, std::string const& directory,
                                                      std::function<void(std::string const&)> const& on_skipped);

  nlohmann::json const& metadata() const;
  std::int64_t step() const;
  std::string const& path() const;
  StateLayout const& layout() const;

  /// Fills parameters, master weights, moments and step of a state, shared out or not: what it holds of them. Collective; the
  /// state's execution space is fenced.
  /// Throws AgreedError, before anything is changed, for a state of other tensors (each that differs is named with both
  /// shapes) or of other element types; DamagedCheckpoint, when a part may be loaded, if the data are not what was written.
  template <class ExecutionSpace, class T>
  void load(ShardedState<ExecutionSpace, T>& state) const {
    Kokkos::Profiling::ScopedRegion const region("Sporos::CheckpointReader::load");
    std::vector<Impl::CheckpointTarget> targets;
    Impl::for_each_checkpoint_array(state, [&](char const* group, auto const& flat) {
      using Element = typename std::decay_t<decltype(flat)>::value_type;
      auto const copy = [&state, flat](std::int64_t first, std::int64_t count, std::byte const* data) {
        auto const* const elements = reinterpret_cast<Element const*>(data);
        state.for_each_held(flat, {first, first + count}, [&](Interval const& held, auto const& target) {
          using Source = Kokkos::View<Element const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
          Kokkos::deep_copy(state.space(), target, Source(elements + (held.first - first), std::size_t(held.size())));
        });
        state.space().fence("Sporos::CheckpointReader: the piece is used again");
      };
      auto const holds = [&state, flat](std::int64_t first, std::int64_t count) {
        bool any = false;
        state.for_each_held(flat, {first, first + count}, [&](Interval const&, auto const&) { any = true; });
        return any;
      };
      auto const kind = std::string_view(group) == "parameters" ? ZeroStage::parameters : ZeroStage::optimizer;
      targets.push_back({{group, Impl::element_type<Element>()}, state.is_shared(kind), holds, copy});
    });
    read(state.layout(), targets);
    state.step = optimizer_step();
  }

 private:
  struct Contents;
  /// The newest checkpoint that `use` does not find damaged
  static std::optional<CheckpointReader> find(Communicator const& communicator, std::string const& directory,
                                              std::function<void(CheckpointReader const&)> const& use,
                                              std::function<void(std::string const&)> const& on_skipped);
  void verify() const;
  CheckpointReader(Communicator const& communicator, std::shared_ptr<Contents const> contents);
  void read(StateLayout const& layout, std::vector<Impl::CheckpointTarget> const& targets) const;
  std::int64_t optimizer_step() const;

  Communicator m_communicator;
  std::shared_ptr<Contents const> m_contents;
};

}  // namespace Sporos

#endif
