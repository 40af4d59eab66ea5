// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What checkpoint_cases.sh runs under mpiexec:
//   write DIR                 saves the state of the fixtures in bfloat16 as step 12, for h5py to read
//   fill DIR reserve|plain    DIR has room for one checkpoint of the large state: the second save must fail everywhere
//   forever DIR               saves the large state again and again until it is killed; DIR.process-<rank> holds whom to kill
//   check DIR                 the newest valid checkpoint must hold what `forever` saved
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "CheckpointFixtures.hpp"
#include "Sporos_Checkpoint.hpp"
#include "Sporos_Communicator.hpp"

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
std::int64_t check(Communicator const& world, std::string const& directory, std::int64_t step) {
  auto const reader = CheckpointReader::newest_valid(
      world, directory, [](std::string const& text) { std::printf("skipped: %s\n", text.c_str()); });
  require(reader.has_value(), "no valid checkpoint");
  require(step < 0 || reader->step() == step, "the newest is of step " + std::to_string(reader->step()));
  State state(Space(), large_layout());
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

[[noreturn]] void save_forever(Communicator const& world, std::string const& directory) {
  write_text(directory + ".process-" + std::to_string(world.rank()), std::to_string(::getpid()));
  State state(Space(), large_layout());
  CheckpointWriter writer(world, {.directory = directory});
  for (std::int64_t step = 1;; ++step) {
    set(state, step);
    writer.save(state, {}, step);
  }
}

void run(std::string const& action, std::string const& directory, std::string const& option) {
  auto const world = Communicator::world();
  if (action == "write") {
    write(world, directory);
  } else if (action == "fill") {
    fill_disk(world, directory, option == "reserve");
  } else if (action == "forever") {
    save_forever(world, directory);
  } else if (action == "check") {
    auto const step = check(world, directory, -1);
    if (world.rank() == 0) std::printf("step %lld is whole\n", static_cast<long long>(step));
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
    run(argv[1], argv[2], argc > 3 ? argv[3] : "");
  } catch (std::exception const& error) {
    std::fprintf(stderr, "checkpoint_program: %s\n", error.what());
    Sporos::MpiEnvironment::abort(1);
  }
}
