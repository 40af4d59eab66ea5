// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_Crc32c.hpp"
#include "Sporos_Error.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"
#include "impl/Sporos_Files.hpp"
#include "impl/Sporos_Hdf5.hpp"

namespace Sporos {
namespace {

using namespace Impl;

/// One save. Everything that can fail on one rank alone runs under run_agreed, so that all ranks take the same way out.
class Save {
 public:
  Save(Communicator const& communicator, bool syncs_for_its_node, CheckpointOptions const& options,
       StagedCheckpoint const& staged)
      : m_communicator(communicator), m_syncs_for_its_node(syncs_for_its_node), m_options(options), m_staged(staged) {}

  void run() {
    at_checkpoint_place("start");
    on_rank_0([&] { make_directory(); });
    m_communicator.broadcast(m_directory);
    at_checkpoint_place("directory made");
    m_data_path = m_directory + "/" + checkpoint_data_file;
    try {
      // Another file system at the same path on another node shows here.
      m_communicator.run_agreed([&] {
        if (::access(m_directory.c_str(), W_OK) != 0) throw_system_error("write to", m_directory);
      });
      write_data();
      at_checkpoint_place("data closed");
      m_communicator.run_agreed([&] {
        if (m_syncs_for_its_node) File(m_data_path, O_RDWR).sync();
      });
      gather_crcs();
      m_communicator.run_agreed([&] { verify_pieces_of_next_rank(); });
      at_checkpoint_place("data verified");
      on_rank_0([&] { commit(); });
    } catch (AgreedError const&) {
      if (m_communicator.rank() == 0) remove_quietly(m_directory);
      throw;
    }
    at_checkpoint_place("committed");
    if (m_communicator.rank() == 0) remove_old();
    at_checkpoint_place("old ones removed");
  }

 private:
  template <class Function>
  void on_rank_0(Function const& function) const {
    m_communicator.run_agreed([&] {
      if (m_communicator.rank() == 0) function();
    });
  }

  static void remove_quietly(std::string const& path) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

  void make_directory() {
    if (m_options.reserve) require_free_space();
    // A name of its own, so that a rank which outlived a killed job cannot write into the files of the next.
    m_directory = m_options.directory + "/" + unfinished_prefix(m_staged.step) + "XXXXXX";
    if (::mkdtemp(m_directory.data()) == nullptr) throw_system_error("make the directory", m_directory);
    std::error_code ignored;  // where the file system has no such permissions, it has its own
    std::filesystem::permissions(m_directory, std::filesystem::perms(0755), ignored);
  }

  void require_free_space() const {
    std::int64_t bytes = 0;
    for (CheckpointArray const& array : m_staged.arrays) bytes += m_staged.layout.size() * bytes_of(array.type);
    // 1/16 for the alignment of large datasets, 64 KiB and 1 KiB a dataset for the file's own tables
    double const needed =
        1.0625 * double(bytes) + 65536.0 + 1024.0 * double(m_staged.arrays.size() * m_staged.layout.tensors().size());
    auto const free = free_bytes(m_options.directory);
    SPOROS_THROW_INPUT_ERROR_IF(free && double(*free) < needed, "not enough space for a checkpoint in ",
                                m_options.directory, ": ", *free, " bytes are free, ", std::int64_t(needed),
                                " are needed");
  }

  // Transfers are independent: collective ones have returned success on a full disk with bytes missing (Open MPI 5.0, three
  // ranks and more), and hung.
  void write_data() {
    Hdf5Session const session;
    m_communicator.run_agreed([&] { create_file(); });
    try {
      m_communicator.run_agreed([&] { create_datasets(); });
      on_rank_0([&] {
        if (m_options.reserve) reserve_space();
      });
      at_checkpoint_place("space reserved");
      m_communicator.run_agreed([&] { write_pieces(); });
      at_checkpoint_place("pieces written");
    } catch (AgreedError const&) {
      // First the space must come back: HDF5 writes its tables when it closes the file, and may not return on a full disk.
      if (m_communicator.rank() == 0 && ::truncate(m_data_path.c_str(), 0) != 0)
        std::fprintf(stderr, "Sporos: cannot truncate %s\n", m_data_path.c_str());
      m_communicator.barrier();
      m_datasets.clear();
      m_file.close();
      throw;
    }
    m_communicator.run_agreed([&] {
      std::string error;
      auto const note = [&](herr_t result, char const* action) {
        if (result < 0 && error.empty())
          error = concatenate("HDF5 cannot ", action, " ", m_data_path, ": ", hdf5_error_text());
      };
      note(H5Fflush(m_file, H5F_SCOPE_GLOBAL), "flush");
      for (Hdf5Handle& dataset : m_datasets) note(dataset.close(), "close a dataset of");
      note(m_file.close(), "close");  // on every rank, for it is collective, whatever happened before
      if (!error.empty()) throw InputError(error);
    });
  }

  void create_file() {
    Hdf5Handle const access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "make a property list");
    hdf5_check(H5Pset_fapl_mpio(access, m_communicator.handle(), MPI_INFO_NULL), "use MPI");
    // 1.8: checksums on the file's own tables, and attributes of more than 64 KiB. 1.10: what old readers know.
    hdf5_check(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V110), "choose the file format");
    // Whole blocks of the file system for datasets that are so large that the gaps are at most 1/16
    hdf5_check(H5Pset_alignment(access, hsize_t(1) << 24, hsize_t(1) << 20), "align datasets");
    m_file =
        Hdf5Handle(H5Fcreate(m_data_path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access), H5Fclose, "create ", m_data_path);
  }

  // Every rank makes all of it, for it is collective. It is all on the disk before the first data: what can only fail later
  // are transfers into space that is there.
  void create_datasets() {
    write_attributes();
    Hdf5Handle const creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "make a property list");
    hdf5_check(H5Pset_layout(creation, H5D_CONTIGUOUS), "make contiguous datasets");
    hdf5_check(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), "allocate datasets early");
    hdf5_check(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), "leave datasets unfilled");
    Hdf5Handle const links(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "make a property list");
    hdf5_check(H5Pset_create_intermediate_group(links, 1), "make groups");
    hdf5_check(H5Pset_char_encoding(links, H5T_CSET_UTF8), "name groups");

    for (CheckpointArray const& array : m_staged.arrays) {
      Hdf5Handle const group(H5Gcreate2(m_file, array.group.c_str(), links, H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
                             "create the group ", array.group, " of ", m_data_path);
      Hdf5Handle const type = hdf5_type(array.type);
      for (TensorRange const& tensor : m_staged.layout.tensors()) {
        std::vector<hsize_t> const shape(tensor.shape.begin(), tensor.shape.end());
        Hdf5Handle const space(
            shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(int(shape.size()), shape.data(), nullptr),
            H5Sclose, "describe the shape ", shape_text(tensor.shape));
        m_datasets.emplace_back(H5Dcreate2(group, tensor.name.c_str(), type, space, links, creation, H5P_DEFAULT),
                                H5Dclose, "create the dataset ", array.group, "/", tensor.name, " of ", m_data_path);
      }
    }
    hdf5_check(H5Fflush(m_file, H5F_SCOPE_GLOBAL), "flush ", m_data_path);
    for (Hdf5Handle const& dataset : m_datasets) m_offsets.push_back(H5Dget_offset(dataset));
  }

  void write_attributes() const {
    Hdf5Handle const space(H5Screate(H5S_SCALAR), H5Sclose, "describe a scalar");
    auto const attribute = [&](char const* name, hid_t type, void const* value) {
      Hdf5Handle const id(H5Acreate2(m_file, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                          "create the attribute ", name);
      hdf5_check(H5Awrite(id, type, value), "write the attribute ", name);
    };
    std::int64_t const step = m_staged.step;
    attribute("step", H5T_STD_I64LE, &step);
    Hdf5Handle const text(H5Tcopy(H5T_C_S1), H5Tclose, "copy a type");
    hdf5_check(H5Tset_size(text, m_staged.metadata.size() + 1), "describe a text");
    hdf5_check(H5Tset_cset(text, H5T_CSET_UTF8), "describe a text");
    attribute("metadata", text, m_staged.metadata.c_str());
  }

  void reserve_space() const {
    File const file(m_data_path, O_WRONLY);
#ifdef __linux__
    // Not posix_fallocate: the C library's stand-in for file systems without the call writes all of the file.
    while (::fallocate(file.descriptor(), 0, 0, off_t(file.size())) != 0) {
      if (errno == EOPNOTSUPP || errno == ENOSYS) return;
      if (errno != EINTR) throw_system_error("reserve the space of", m_data_path);
    }
#endif
  }

  void write_pieces() {
    Hdf5Handle const transfer(H5Pcreate(H5P_DATASET_XFER), H5Pclose, "make a property list");
    hdf5_check(H5Pset_dxpl_mpio(transfer, H5FD_MPIO_INDEPENDENT), "transfer independently");
    m_pieces = checkpoint_pieces(m_staged.layout, m_staged.arrays, m_staged.owned);
    File const file(m_data_path, O_RDWR);
    for (CheckpointPiece& piece : m_pieces) {
      TensorRange const& tensor = m_staged.layout.tensors()[piece.tensor];
      CheckpointArray const& array = m_staged.arrays[piece.array];
      std::int64_t const element = bytes_of(array.type);
      std::byte const* const data = m_staged.data[piece.array] + staged_offset(tensor.offset + piece.first) * element;
      piece.crc32c = crc32c(data, std::size_t(piece.count * element));
      at_checkpoint_place("piece");
      hid_t const dataset = m_datasets[dataset_index(piece)];
      Hdf5Handle const type = hdf5_type(array.type);  // of the memory as of the file, so nothing is converted
      auto const write = [&](hid_t memory, hid_t file, std::int64_t done) {
        if (H5Dwrite(dataset, type, memory, file, transfer, data + done * element) >= 0) return;
        std::string const reason = hdf5_error_text();  // in which MPI does not tell a full disk from other errors
        throw InputError(concatenate("HDF5 cannot write ", array.group, "/", tensor.name, " to ", m_data_path, ": ",
                                     reason, "; ", free_bytes(m_directory).value_or(-1), " bytes are free there"));
      };
      for_each_selection(dataset, tensor.shape, piece.first, piece.count, write);
      // Or the disk would have nothing to do until all of it waits in memory.
      file.begin_sync(std::int64_t(m_offsets[dataset_index(piece)]) + piece.first * element, piece.count * element);
    }
  }

  /// Where this rank has staged an element that it owns
  std::int64_t staged_offset(std::int64_t element) const {
    auto const& owned = m_staged.owned;
    auto const part = std::partition_point(owned.begin(), owned.end(),
                                           [&](OwnedPart const& one) { return one.range.last <= element; });
    return part->offset + element - part->range.first;
  }

  std::size_t dataset_index(CheckpointPiece const& piece) const {
    return piece.array * m_staged.layout.tensors().size() + piece.tensor;
  }

  /// All pieces in rank order, each with the CRC that its writer took of its memory
  void gather_crcs() {
    int const size = m_communicator.size();
    std::vector<int> counts(std::size_t(size), 0), begins(std::size_t(size), 0);
    for (int rank = 0; rank < size; ++rank) {
      auto const pieces = checkpoint_pieces(m_staged.layout, m_staged.arrays, m_staged.layout.owned(rank, size));
      begins[std::size_t(rank)] = int(m_all_pieces.size());
      counts[std::size_t(rank)] = int(pieces.size());
      m_all_pieces.insert(m_all_pieces.end(), pieces.begin(), pieces.end());
    }
    std::vector<std::uint32_t> mine, all(m_all_pieces.size());
    for (CheckpointPiece const& piece : m_pieces) mine.push_back(piece.crc32c);
    MPI_Allgatherv(mine.data(), int(mine.size()), MPI_UINT32_T, all.data(), counts.data(), begins.data(), MPI_UINT32_T,
                   m_communicator.handle());
    for (std::size_t i = 0; i < all.size(); ++i) m_all_pieces[i].crc32c = all[i];
    m_begins = std::move(begins);
    m_counts = std::move(counts);
  }

  // Return codes have claimed writes that were not there, so the bytes count. Those of another rank, because on many file
  // systems its own would come from this node's memory.
  void verify_pieces_of_next_rank() const {
    std::size_t const next = std::size_t((m_communicator.rank() + 1) % m_communicator.size());
    File const file(m_data_path, O_RDONLY);
    std::vector<std::byte> buffer(std::size_t(1) << 20);
    for (int i = 0; i < m_counts[next]; ++i) {
      CheckpointPiece const& piece = m_all_pieces[std::size_t(m_begins[next] + i)];
      std::int64_t const element = bytes_of(m_staged.arrays[piece.array].type);
      std::int64_t at = std::int64_t(m_offsets[dataset_index(piece)]) + piece.first * element;
      std::int64_t const end = at + piece.count * element;
      std::uint32_t crc = 0;
      while (at < end) {
        auto const bytes = std::size_t(std::min(end - at, std::int64_t(buffer.size())));
        file.read(buffer.data(), bytes, at);
        crc = crc32c(buffer.data(), bytes, crc);
        at += std::int64_t(bytes);
      }
      SPOROS_THROW_INPUT_ERROR_IF(crc != piece.crc32c, m_data_path, " does not hold what was written to ",
                                  m_staged.arrays[piece.array].group, "/",
                                  m_staged.layout.tensors()[piece.tensor].name);
    }
  }

  void commit() const {
    CheckpointManifest manifest;
    manifest.step = m_staged.step;
    manifest.optimizer_step = m_staged.optimizer_step;
    manifest.ranks = m_communicator.size();
    manifest.data_bytes = File(m_data_path, O_RDONLY).size();
    manifest.arrays = m_staged.arrays;
    manifest.layout = m_staged.layout;
    manifest.pieces = m_all_pieces;
    manifest.metadata = nlohmann::json::parse(m_staged.metadata);
    replace_file(m_directory + "/" + checkpoint_manifest_file, manifest.to_text());

    at_checkpoint_place("manifest written");

    CheckpointName name{m_staged.step};
    while (std::filesystem::exists(m_options.directory + "/" + name.text())) ++name.revision;
    rename_path(m_directory, m_options.directory + "/" + name.text());
    at_checkpoint_place("renamed");
    sync_directory(m_options.directory);
    replace_file(m_options.directory + "/latest", name.text() + "\n");
  }

  // What cannot be removed now is tried again after the next save. Newer steps than this one are of a run that was not
  // continued; they neither count nor go.
  void remove_old() const {
    try {
      std::set<std::int64_t> steps;
      for (CheckpointName const& name : list_checkpoints(m_options.directory)) {
        if (name.step > m_staged.step) continue;
        bool const superseded = !steps.insert(name.step).second;
        if (superseded || (m_options.keep > 0 && std::int64_t(steps.size()) > m_options.keep)) remove_checkpoint(name);
      }
      std::vector<std::filesystem::path> unfinished;
      for (auto const& entry : std::filesystem::directory_iterator(m_options.directory))
        if (parse_unfinished(entry.path().filename().string())) unfinished.push_back(entry.path());
      for (auto const& path : unfinished) remove_quietly(path.string());
    } catch (std::exception const&) {
    }
  }

  /// Renamed first: half removed it would look like a damaged checkpoint.
  void remove_checkpoint(CheckpointName const& name) const {
    std::string const from = m_options.directory + "/" + name.text();
    std::string const to = m_options.directory + "/" + unfinished_prefix(name.step) + "removed";
    remove_quietly(to);
    rename_path(from, to);
    at_checkpoint_place("old one renamed");
    remove_quietly(to);
  }

  Communicator const& m_communicator;
  bool m_syncs_for_its_node;
  CheckpointOptions const& m_options;
  StagedCheckpoint const& m_staged;

  std::string m_directory, m_data_path;
  Hdf5Handle m_file;
  std::vector<Hdf5Handle> m_datasets;
  std::vector<haddr_t> m_offsets;
  std::vector<CheckpointPiece> m_pieces, m_all_pieces;
  std::vector<int> m_begins, m_counts;
};

/// Whether this rank is the first of its node, which syncs what the node has written
bool is_first_of_node(Communicator const& communicator) {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(communicator.handle(), MPI_COMM_TYPE_SHARED, communicator.rank(), MPI_INFO_NULL, &node);
  int rank = 0;
  MPI_Comm_rank(node, &rank);
  MPI_Comm_free(&node);
  return rank == 0;
}

bool has_thread_multiple() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  return provided >= MPI_THREAD_MULTIPLE;
}

}  // namespace

/// What the writing thread uses
struct CheckpointWriter::Background {
  Background(Communicator const& parent, CheckpointOptions const& o)
      : communicator(parent.duplicate()), syncs_for_its_node(is_first_of_node(parent)), options(o) {}

  void run() {
    std::string text;
    try {
      Save(communicator, syncs_for_its_node, options, staged).run();
    } catch (std::exception const& exception) {
      text = *exception.what() ? exception.what() : "unknown error";
    }
    std::lock_guard const lock(mutex);
    error = text;
    if (text.empty()) committed = staged.step;
    busy = false;
    done.notify_all();
  }

  /// False if the deadline has passed
  bool wait() {
    {
      std::unique_lock lock(mutex);
      if (!done.wait_until(lock, deadline, [&] { return !busy; })) return false;
    }
    if (thread.joinable()) thread.join();
    return true;
  }

  Communicator const communicator;  // the thread's own, or its messages would meet those of the main thread
  bool const syncs_for_its_node;
  CheckpointOptions const options;
  StagedCheckpoint staged;
  std::chrono::steady_clock::time_point deadline;

  mutable std::mutex mutex;
  std::condition_variable done;
  bool busy = false;
  std::string error;
  std::optional<std::int64_t> committed;
  std::thread thread;
};

CheckpointWriter::CheckpointWriter(Communicator const& communicator, CheckpointOptions options)
    : m_communicator(communicator.duplicate()), m_options(std::move(options)) {
  SPOROS_THROW_IF(m_options.directory.empty(), "the directory of the checkpoints has no name");
  SPOROS_THROW_IF(m_options.keep < 0, "keep is ", m_options.keep, ", it must be 0 or more");
  SPOROS_THROW_IF(!(m_options.deadline_seconds > 0), "deadline_seconds is ", m_options.deadline_seconds,
                  ", it must be over 0");
  require_same_directory(m_communicator, m_options.directory);
  m_communicator.run_agreed([&] {
    if (m_communicator.rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directories(m_options.directory, error);
    SPOROS_THROW_INPUT_ERROR_IF(error, "cannot make the directory ", m_options.directory, ": ", error.message());
    // Whether it can be written to shows now, not after the first hour.
    std::string probe = m_options.directory + "/probe-XXXXXX";
    if (::mkdtemp(probe.data()) == nullptr) throw_system_error("write to", m_options.directory);
    ::rmdir(probe.c_str());
  });
  m_background = std::make_unique<Background>(m_communicator, m_options);
}

CheckpointWriter::~CheckpointWriter() {
  if (m_background->wait()) return;
  std::fprintf(stderr, "Sporos: writing the checkpoint of step %lld to %s has not ended within %g seconds; leaving\n",
               static_cast<long long>(m_background->staged.step), m_options.directory.c_str(),
               m_options.deadline_seconds);
  std::_Exit(75);
}

std::byte* CheckpointWriter::staging_memory(std::size_t array, std::size_t bytes) {
  if (m_staging.size() <= array) m_staging.resize(array + 1);
  if (m_staging[array].extent(0) < bytes) {
    m_staging[array] = {};
    m_staging[array] = decltype(m_staging)::value_type(
        Kokkos::view_alloc(std::string("Sporos::CheckpointWriter::staging"), Kokkos::WithoutInitializing), bytes);
  }
  return m_staging[array].data();
}

void CheckpointWriter::start(StagedCheckpoint staged, nlohmann::json const& metadata) {
  m_communicator.run_agreed([&] {
    SPOROS_THROW_IF(staged.step < 0 || staged.step >= 1'000'000'000'000, "checkpoint of step ", staged.step,
                    "; it must have at most 12 digits");
    staged.metadata = metadata.dump();
  });
  m_communicator.broadcast(staged.metadata);
  Background& background = *m_background;
  background.staged = std::move(staged);
  background.deadline =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                             std::chrono::duration<double>(m_options.deadline_seconds));
  background.busy = true;
  if (has_thread_multiple())
    background.thread = std::thread([&background] { background.run(); });
  else
    background.run();
}

void CheckpointWriter::finish() {
  bool const ended = m_background->wait();
  std::string error;
  if (!ended) {
    error = concatenate("writing the checkpoint of step ", m_background->staged.step, " to ", m_options.directory,
                        " has not ended within ", m_options.deadline_seconds, " seconds");
  } else {
    std::lock_guard const lock(m_background->mutex);
    error.swap(m_background->error);
  }
  if (m_communicator.all_agree(error.empty())) return;
  // The thread's errors are agreed already and name their rank.
  if (m_communicator.all_agree(ended && !error.empty())) throw AgreedError(error);
  m_communicator.agree_no_error(error);
}

void CheckpointWriter::wait() {
  Kokkos::Timer const timer;
  finish();
  m_seconds_stalled += timer.seconds();
}

std::optional<std::int64_t> CheckpointWriter::last_committed() const {
  std::lock_guard const lock(m_background->mutex);
  return m_background->committed;
}

}  // namespace Sporos
