// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

// Saving and loading of checkpoints beside plain write + fsync and plain read of the same bytes, in the same directory, by the
// same ranks, in turns; the state is shared out over the ranks (ZeRO 3), so that each has bytes of its own. Prints one JSON
// line a figure; append them to results/<machine>/checkpoint.jsonl.
//
//   mpirun -n 2 sporos_bench_checkpoint DIRECTORY [megabytes a rank = 256] [rounds = 5] [commit]
//
// What is read comes from the disk, as far as the system can be told to forget it. The figure of each is the median over the
// rounds. "stall" is how long save() keeps its caller, beside the whole of a save.
#include <fcntl.h>
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_Communicator.hpp"
#include "Sporos_Version.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"
#include "impl/Sporos_Files.hpp"

namespace {

using namespace Sporos;
using Sporos::Impl::File;
using Space = Kokkos::DefaultExecutionSpace;
using State = ShardedState<Space, float>;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// From the first rank's start to the last one's end
double time_of(Communicator const& world, std::function<void()> const& work) {
  world.barrier();
  Kokkos::Timer const timer;
  work();
  return world.all_reduce_max(timer.seconds());
}

/// What was written or read must come from the disk next time.
void forget(std::string const& path) {
  File const file(path, O_RDONLY);
  file.sync();
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

/// Seconds of a save up to each of its places, on the first rank
Kokkos::Timer since_save;
std::map<std::string, std::vector<double>> seconds_until;

void note_place(char const* place) {
  if (std::string_view(place) != "piece") seconds_until[place].push_back(since_save.seconds());
}

class Bench {
 public:
  Bench(Communicator const& world, std::string directory, std::int64_t megabytes)
      : m_world(world),
        m_directory(std::move(directory)),
        m_state(Space(), layout(world.size() * megabytes * 1'000'000),
                {ZeroStage::parameters, world.rank(), world.size()}),
        m_writer(world, {.directory = m_directory, .keep = 0}) {
    int value = 0;
    for (auto const& flat : {m_state.parameters(), m_state.first_moment(), m_state.second_moment()}) {
      auto const host = Kokkos::create_mirror_view(flat);
      for (std::size_t i = 0; i < host.extent(0); ++i) host(i) = float(++value % 65521);
      Kokkos::deep_copy(flat, host);
    }
    OwnedPart const last = m_state.layout().owned(world.rank(), world.size()).back();
    m_bytes = std::size_t(last.offset + last.range.size()) * 3 * sizeof(float);
    m_buffer.resize(m_bytes, 'x');
    for (std::size_t i = 0; i < m_bytes; i += 61) m_buffer[i] = char(i);
  }

  std::int64_t bytes_of_all_ranks() const { return m_world.all_reduce_sum(std::int64_t(m_bytes)); }
  std::map<std::string, std::vector<double>> const& seconds() const { return m_seconds; }

  void forget_rounds() {
    m_seconds.clear();
    seconds_until.clear();
  }

  void round() {
    std::filesystem::path const plain = m_directory + "/plain-" + std::to_string(m_world.rank());
    note("write + fsync", [&] {
      File file(plain.string(), O_WRONLY | O_CREAT | O_TRUNC);
      file.write(m_buffer.data(), m_bytes);
      file.sync();
    });
    double stall = 0;
    note("save", [&] {
      Kokkos::Timer const timer;
      since_save.reset();
      m_writer.save(m_state, {}, ++m_step);
      stall = timer.seconds();
      m_writer.wait();
    });
    m_seconds["stall"].push_back(m_world.all_reduce_max(stall));
    forget(plain.string());
    note("read", [&] {
      File const file(plain.string(), O_RDONLY);
      file.read(m_buffer.data(), m_bytes, 0);
    });
    std::filesystem::remove(plain);
    std::string newest;
    if (m_world.rank() == 0)
      for (auto const& entry : std::filesystem::directory_iterator(m_directory))
        if (entry.is_directory()) newest = entry.path().string();
    if (m_world.rank() == 0) forget(newest + "/data.h5");
    note("load", [&] {
      auto const reader = CheckpointReader::load_newest(
          m_world, m_directory, m_state, [](CheckpointReader const&) {}, [](std::string const&) {});
      if (!reader) throw InputError("no checkpoint in " + m_directory);
    });
    // As with the plain file, removal is not part of what is measured.
    if (m_world.rank() == 0) std::filesystem::remove_all(newest);
  }

 private:
  /// As a model has them: some tensors with most of the elements, many small ones
  static StateLayout layout(std::int64_t bytes) {
    StateLayout result;
    constexpr std::int64_t blocks = 12, width = 1024;
    std::int64_t const rows = bytes / (3 * std::int64_t(sizeof(float)) * blocks * width);
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::string const name = "h." + std::to_string(b);
      result.add(name + ".norm", {width}, false);
      result.add(name + ".weight", {rows, width}, true);
    }
    return result;
  }

  void note(char const* what, std::function<void()> const& work) { m_seconds[what].push_back(time_of(m_world, work)); }

  Communicator m_world;
  std::string m_directory;
  State m_state;
  CheckpointWriter m_writer;
  std::size_t m_bytes;
  std::vector<char> m_buffer;
  std::int64_t m_step = 0;
  std::map<std::string, std::vector<double>> m_seconds;
};

void print(Communicator const& world, Bench const& bench, std::string const& command, std::string const& commit) {
  std::int64_t const bytes = bench.bytes_of_all_ranks();
  if (world.rank() != 0) return;
  std::time_t const now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  auto const rounded = [](double x) { return std::strtod(Impl::concatenate(x).c_str(), nullptr); };
  auto const line = [&](char const* metric, char const* unit, double ours, char const* peer, double theirs) {
    nlohmann::ordered_json const json = {
        {"program", "checkpoint"},
        {"case", {{"ranks", world.size()}, {"bytes", bytes}, {"tensors", 24}, {"arrays", 3}}},
        {"metric", metric},
        {"unit", unit},
        {"ours", rounded(ours)},
        {"peers", {{peer, rounded(theirs)}}},
        {"ratio", rounded(ours / theirs)},
        {"date", date},
        {"versions", {{"Sporos", SPOROS_VERSION_STRING}, {"execution space", Space::name()}}},
        {"command", command},
        {"commit", commit}};
    std::cout << json.dump() << std::endl;
  };
  auto const seconds = [&](char const* what) { return median(bench.seconds().at(what)); };
  auto const rate = [&](char const* what) { return double(bytes) / 1e9 / seconds(what); };
  line("save", "GB/s", rate("save"), "write + fsync", rate("write + fsync"));
  line("load", "GB/s", rate("load"), "read", rate("read"));
  line("stall", "s", seconds("stall"), "synchronous save", seconds("save"));
  for (auto const& [what, values] : bench.seconds()) {
    std::cerr << what << ":";
    for (double const value : values) std::cerr << " " << value;
    std::cerr << " s" << std::endl;
  }
  for (auto const& [place, values] : seconds_until)
    std::cerr << "until " << place << ": " << median(values) << " s" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment const mpi(argc, argv);
  Kokkos::ScopeGuard const kokkos(argc, argv);
  if (argc < 2) {
    std::cerr << "usage: sporos_bench_checkpoint DIRECTORY [megabytes a rank] [rounds] [commit]" << std::endl;
    return 2;
  }
  try {
    Communicator const world = Communicator::world();
    std::string const directory = std::string(argv[1]) + "/sporos-bench-checkpoint";
    std::int64_t const megabytes = argc > 2 ? std::atoll(argv[2]) : 256;
    int const rounds = argc > 3 ? std::atoi(argv[3]) : 5;
    world.run_agreed([&] { std::filesystem::create_directories(directory); });
    Bench bench(world, directory, megabytes);
    Impl::checkpoint_hook = note_place;
    bench.round();  // after which all memory is there
    bench.forget_rounds();
    for (int round = 0; round < rounds; ++round) bench.round();
    print(world, bench,
          Impl::concatenate("mpirun -n ", world.size(), " sporos_bench_checkpoint DIRECTORY ", megabytes, " ", rounds),
          argc > 4 ? argv[4] : "");
    world.barrier();
    if (world.rank() == 0) std::filesystem::remove_all(directory);
  } catch (std::exception const& error) {
    std::cerr << "sporos_bench_checkpoint: " << error.what() << std::endl;
    MpiEnvironment::abort(1);
  }
}
