// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What checkpoint_cases.sh and checkpoint_faults.py run under mpiexec:
//   write DIR                 saves the state of the fixtures in bfloat16 as step 12, for h5py to read
//   fill DIR reserve|plain    DIR has room for one checkpoint of the large state: the second save must fail everywhere
//   check DIR                 the newest valid checkpoint must hold what `fill` or `crash` saved
//   crash DIR [RANK PLACE N]  the newest valid checkpoint must be none older than the last that DIR.committed names, and hold what
//                             was saved; then saves go on, every commit added to DIR.committed, until a kill: by itself where
//                             RANK comes to PLACE of a save for the Nth time, else by somebody else
//   large DIR N               a tensor with N elements a rank is saved, forgotten and loaded again: each must be what it was
//   slow DIR                  a save that does not end within its deadline: an error, then exit code 75
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "CheckpointFixtures.hpp"
#include "Sporos_Checkpoint.hpp"
#include "Sporos_Communicator.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"

namespace {

using namespace Sporos::Testing;
using Sporos::CheckpointReader, Sporos::CheckpointWriter, Sporos::Communicator;
using Space = Kokkos::DefaultExecutionSpace;
using State = Sporos::ShardedState<Space, float>;

void require(bool condition, std::string const& text) {
  if (!condition) throw std::runtime_error(text);
}

/// 12 MB in a checkpoint
Sporos::StateLayout large_layout() {
  Sporos::StateLayout layout;
  layout.add("a", {1000, 700}, true);
  layout.add("b", {300'000}, false);
  return layout;
}

void set(State& state, std::int64_t step) {
  Kokkos::deep_copy(state.space(), state.parameters(), float(step));
  Kokkos::deep_copy(state.space(), state.first_moment(), float(step) + 0.25f);
  Kokkos::deep_copy(state.space(), state.second_moment(), float(step) + 0.5f);
  state.step = step;
}

/// The newest checkpoint, of this step if it is not negative, must hold what set() made.
std::int64_t check(Communicator const& world, std::string const& directory, std::int64_t step,
                   Sporos::StateLayout const& layout = large_layout()) {
  auto const reader = CheckpointReader::newest_valid(
      world, directory, [](std::string const& text) { std::printf("skipped: %s\n", text.c_str()); });
  require(reader.has_value(), "no valid checkpoint");
  require(step < 0 || reader->step() == step, "the newest is of step " + std::to_string(reader->step()));
  State state(Space(), layout);
  reader->load(state);
  for_each_buffer(state, [&](int buffer, auto const& flat) {
    float const expected = float(reader->step()) + (buffer == 2 ? 0.25f : buffer == 3 ? 0.5f : 0.0f);
    auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), flat);
    for (auto const& tensor : state.layout().tensors())
      require(std::all_of(host.data() + tensor.offset, host.data() + tensor.offset + tensor.size,
                          [&](float x) { return x == expected; }),
              "wrong values in buffer " + std::to_string(buffer) + " of " + tensor.name);
  });
  return reader->step();
}

void write(Communicator const& world, std::string const& directory) {
  Sporos::ShardedState<Space, Sporos::bfloat16> state(Space(), checkpoint_layout());
  fill(state);
  CheckpointWriter writer(world, {.directory = directory});
  writer.save(state, {{"seed", 42}}, 12);
  writer.wait();
}

void fill_disk(Communicator const& world, std::string const& directory, bool reserve) {
  State state(Space(), large_layout());
  CheckpointWriter writer(world, {.directory = directory, .keep = 1, .deadline_seconds = 60, .reserve = reserve});
  set(state, 1);
  writer.save(state, {}, 1);
  writer.wait();
  for (int attempt = 0; attempt < 3; ++attempt) {
    set(state, 2);
    writer.save(state, {}, 2);
    std::string error;
    try {
      writer.wait();
    } catch (Sporos::AgreedError const& agreed) {
      error = agreed.what();
    }
    require(!error.empty(), "the save on the full disk has not failed");
    if (attempt == 0) std::printf("rank %d: %s\n", world.rank(), error.c_str());
    world.barrier();
    if (world.rank() == 0)
      for (auto const& entry : std::filesystem::directory_iterator(directory))
        require(entry.path().filename() == "step-000000000001" || entry.path().filename() == "latest",
                "left behind: " + entry.path().string());
    check(world, directory, 1);
  }
  // With room again the same process goes on.
  world.barrier();
  if (world.rank() == 0) std::filesystem::remove_all(directory + "/step-000000000001");
  world.barrier();
  set(state, 3);
  writer.save(state, {}, 3);
  writer.wait();
  check(world, directory, 3);
}

/// The last number in a file of numbers; 0 if there is none
std::int64_t last_number(std::string const& path) {
  std::int64_t number = 0;
  std::ifstream file(path);
  for (std::int64_t next; file >> next;) number = next;
  return number;
}

int rank_to_kill = -1, times_until_kill = 0;
std::string place_of_kill;

void kill_at_place(char const* place) {
  if (place != place_of_kill || Communicator::world().rank() != rank_to_kill || --times_until_kill > 0) return;
  ::kill(::getpid(), SIGKILL);
}

/// 700 KB in a checkpoint, so that many come and go before the kill
Sporos::StateLayout small_layout() {
  Sporos::StateLayout layout;
  layout.add("a", {200, 250}, true);
  layout.add("b", {8'000}, false);
  return layout;
}

[[noreturn]] void crash(Communicator const& world, std::string const& directory) {
  write_text(directory + ".process-" + std::to_string(world.rank()), std::to_string(::getpid()));
  std::int64_t const reported = last_number(directory + ".committed");
  std::int64_t step = 0;
  if (reported > 0) {
    step = check(world, directory, -1, small_layout());
    require(step >= reported,
            "step " + std::to_string(reported) + " was reported, the newest is " + std::to_string(step));
  }
  world.barrier();
  Sporos::Impl::checkpoint_hook = kill_at_place;
  State state(Space(), small_layout());
  CheckpointWriter writer(world, {.directory = directory, .keep = 1});
  std::ofstream committed(directory + ".committed", std::ios::app);
  for (std::int64_t last = step;;) {
    set(state, ++step);
    writer.save(state, {}, step);
    if (step % 2 == 0) writer.wait();
    if (world.rank() == 0 && writer.last_committed().value_or(last) != last)
      committed << (last = *writer.last_committed()) << std::endl;
  }
}

/// Differs between neighbours and between places 2^31 bytes or 2^32 bytes apart
float large_value(std::int64_t buffer, std::int64_t element) {
  return float((element * 3 + buffer * 8191) % 1'000'003);
}

void large(Communicator const& world, std::string const& directory, std::int64_t elements_of_rank) {
  std::int64_t const elements = elements_of_rank * world.size();  // behind which the layout leaves a gap
  Sporos::StateLayout layout;
  layout.add("w", {elements}, true);
  State state(Space(), layout, {Sporos::ZeroStage::parameters, world.rank(), world.size()});
  auto const for_each_element = [&](auto const& function) {
    std::int64_t buffer = 0;
    Sporos::Impl::for_each_checkpoint_array(state, [&](char const*, auto const& flat) {
      auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), flat);
      for (Sporos::OwnedPart const& owned : state.owned())
        for (std::int64_t i = owned.range.first; i < std::min(owned.range.last, elements); ++i)
          function(host(std::size_t(owned.offset + i - owned.range.first)), large_value(buffer, i));
      Kokkos::deep_copy(flat, host);
      ++buffer;
    });
  };
  for_each_element([](float& element, float value) { element = value; });
  state.step = 5;
  {
    CheckpointWriter writer(world, {.directory = directory});
    writer.save(state, {}, 5);
    writer.wait();
  }
  for_each_element([](float& element, float) { element = -1.0f; });
  state.step = 0;
  auto const reader = CheckpointReader::load_newest(
      world, directory, state, [](CheckpointReader const&) {},
      [](std::string const& text) { std::printf("skipped: %s\n", text.c_str()); });
  require(reader.has_value() && state.step == 5, "no valid checkpoint");
  std::int64_t wrong = 0, compared = 0;
  for_each_element([&](float& element, float value) {
    wrong += element != value;
    ++compared;
  });
  require(wrong == 0, std::to_string(wrong) + " elements are not what was saved");
  std::printf("rank %d: %lld bytes in 3 arrays came back\n", world.rank(),
              static_cast<long long>(compared * std::int64_t(sizeof(float))));
}

void slow_disk(Communicator const& world, std::string const& directory) {
  Sporos::Impl::checkpoint_hook = [](char const* place) {
    if (std::string(place) == "pieces written") std::this_thread::sleep_for(std::chrono::seconds(30));
  };
  State state(Space(), small_layout());
  CheckpointWriter writer(world, {.directory = directory, .deadline_seconds = 0.2});
  writer.save(state, {}, 1);
  std::string error;
  try {
    writer.wait();
  } catch (Sporos::AgreedError const& agreed) {
    error = agreed.what();
  }
  require(error.find("has not ended within 0.2 seconds") != std::string::npos, "no deadline: " + error);
  std::printf("rank %d goes on after: %s\n", world.rank(), error.c_str());
  std::fflush(stdout);
}

void run(std::string const& action, std::string const& directory, std::string const& option) {
  auto const world = Communicator::world();
  if (action == "write") {
    write(world, directory);
  } else if (action == "fill") {
    fill_disk(world, directory, option == "reserve");
  } else if (action == "check") {
    auto const step = check(world, directory, -1);
    if (world.rank() == 0) std::printf("step %lld is whole\n", static_cast<long long>(step));
  } else if (action == "crash") {
    crash(world, directory);
  } else if (action == "large") {
    large(world, directory, std::atoll(option.c_str()));
  } else if (action == "slow") {
    slow_disk(world, directory);
  } else {
    throw std::runtime_error("no action " + action);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Sporos::MpiEnvironment const mpi(argc, argv);
  Kokkos::ScopeGuard const kokkos(argc, argv);
  try {
    require(argc >= 3, "usage: checkpoint_program ACTION DIRECTORY [OPTION]");
    if (argc == 6) {
      rank_to_kill = std::atoi(argv[3]);
      place_of_kill = argv[4];
      times_until_kill = std::atoi(argv[5]);
    }
    run(argv[1], argv[2], argc > 3 ? argv[3] : "");
  } catch (std::exception const& error) {
    std::fprintf(stderr, "checkpoint_program: %s\n", error.what());
    Sporos::MpiEnvironment::abort(1);
  }
}
