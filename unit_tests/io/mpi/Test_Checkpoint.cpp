// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <atomic>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "CheckpointFixtures.hpp"
#include "Sporos_Checkpoint.hpp"
#include "impl/Sporos_CheckpointFormat.hpp"

namespace {

using namespace Sporos::Testing;
using Catch::Matchers::ContainsSubstring;
using Sporos::AgreedError, Sporos::CheckpointReader, Sporos::CheckpointWriter, Sporos::Communicator;
using Space = Kokkos::DefaultExecutionSpace;
template <class T>
using State = Sporos::ShardedState<Space, T>;

/// The first `ranks` of the world; nothing on the others
std::optional<Communicator> first_ranks(int ranks) {
  auto const world = Communicator::world();
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(world.handle(), world.rank() < ranks ? 0 : MPI_UNDEFINED, world.rank(), &part);
  if (part == MPI_COMM_NULL) return std::nullopt;
  auto result = Communicator(part).duplicate();
  MPI_Comm_free(&part);
  return result;
}

std::optional<CheckpointReader> find_newest(Communicator const& communicator, std::string const& directory,
                                            std::vector<std::string>& skipped) {
  skipped.clear();
  auto reader = CheckpointReader::newest_valid(communicator, directory,
                                               [&](std::string const& text) { skipped.push_back(text); });
  // Only rank 0 hears of them; the tests ask on every rank.
  auto count = std::uint64_t(skipped.size());
  communicator.broadcast(count);
  skipped.resize(count);
  for (std::string& text : skipped) communicator.broadcast(text);
  return reader;
}

std::vector<std::string> entries(std::string const& directory) {
  std::vector<std::string> names;
  for (auto const& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

/// All up to four, some of more
std::vector<int> rank_counts(int size) {
  std::vector<int> counts;
  for (int n = 1; n <= size; ++n)
    if (size <= 4 || n == 1 || n == 3 || n == size) counts.push_back(n);
  return counts;
}

/// What checkpoint_hook does in these tests
struct Hook {
  explicit Hook(void (*function)(char const*)) { Sporos::Impl::checkpoint_hook = function; }
  ~Hook() { Sporos::Impl::checkpoint_hook = nullptr; }
};

TEMPLATE_TEST_CASE("What any number of ranks has saved, any number reads", "[io][checkpoint][mpi]", Sporos::bfloat16,
                   float, double) {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Space space;
  State<TestType> state(space, checkpoint_layout());
  fill(state);
  state.step = 77;
  auto const expected = bytes_of(state);

  for (int const writers : rank_counts(world.size())) {
    std::string const path = directory / std::to_string(writers);
    nlohmann::json const metadata{
        {"seed", 12345678901234}, {"loss", 0.1}, {"text", "\"\n\u00e9"}, {"writers", writers}};
    if (auto const some = first_ranks(writers)) {
      CheckpointWriter writer(*some, {.directory = path});
      CHECK_FALSE(writer.last_committed());
      writer.save(state, metadata, 1200);
      writer.wait();
      CHECK(writer.last_committed() == 1200);
    }
    for (int const readers : rank_counts(world.size())) {
      world.barrier();
      auto const some = first_ranks(readers);
      if (!some) continue;
      CAPTURE(writers, readers);
      std::vector<std::string> skipped;
      auto const reader = find_newest(*some, path, skipped);
      CHECK(skipped == Names());
      REQUIRE(reader);
      CHECK(reader->step() == 1200);
      CHECK(reader->metadata() == metadata);
      CHECK(reader->path() == path + "/step-000000001200");
      CHECK(reader->layout().tensors().size() == state.layout().tensors().size());

      State<TestType> loaded(space, checkpoint_layout());
      reader->load(loaded);
      CHECK(loaded.step == 77);
      CHECK(bytes_of(loaded) == expected);
    }
  }
}

TEST_CASE("Fewer elements than ranks, and none at all, are saved and read", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Space space;
  Sporos::StateLayout tiny, empty;
  tiny.add("scalar", {}, false);
  empty.add("nothing", {0, 5}, false);
  for (auto const& layout : {tiny, empty}) {
    State<float> state(space, layout), loaded(space, layout);
    fill(state);
    state.step = 3;
    std::string const path = directory / layout.tensors()[0].name;
    CheckpointWriter writer(world, {.directory = path});
    writer.save(state, {}, 3);
    writer.wait();
    std::vector<std::string> skipped;
    auto const reader = find_newest(world, path, skipped);
    REQUIRE(reader);
    reader->load(loaded);
    CHECK(bytes_of(loaded) == bytes_of(state));
    CHECK(loaded.step == 3);
  }
}

TEST_CASE("Every bit pattern survives, and tensors are found by name", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Space space;
  Sporos::StateLayout layout, reordered;
  layout.add("all", {256, 256}, true);
  layout.add("b", {3}, false);
  reordered.add("b", {3}, false);
  reordered.add("all", {256, 256}, true);
  State<Sporos::bfloat16> state(space, layout);
  auto const host = Kokkos::create_mirror_view(state.parameters());
  for (std::size_t i = 0; i < 65536; ++i) host(i) = Sporos::bfloat16::from_bits(std::uint16_t(i));
  host(65536) = Sporos::bfloat16(3.0f);
  Kokkos::deep_copy(state.parameters(), host);
  CheckpointWriter writer(world, {.directory = directory / "c"});
  writer.save(state, nullptr, 0);
  writer.wait();

  State<Sporos::bfloat16> loaded(space, reordered);
  std::vector<std::string> skipped;
  auto const reader = find_newest(world, directory / "c", skipped);
  REQUIRE(reader);
  reader->load(loaded);
  auto const result = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), loaded.parameters());
  CHECK(float(result(0)) == 3.0f);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 65536; ++i) wrong += result(64 + i).bits != std::uint16_t(i);
  CHECK(wrong == 0);
}

TEST_CASE("A checkpoint is of the moment of save(), while the state goes on", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Space space;
  Sporos::StateLayout layout;
  layout.add("w", {1 << 20}, true);
  State<float> state(space, layout);
  CheckpointWriter writer(world, {.directory = directory / "c", .keep = 3});
  for (int step = 1; step <= 3; ++step) {
    Kokkos::deep_copy(space, state.parameters(), float(step));
    state.step = step;
    writer.save(state, {{"step", step}}, step);
    Kokkos::deep_copy(space, state.parameters(), -1.0f);
    // The main thread's messages do not meet those of the writing thread.
    for (int i = 0; i < 100; ++i)
      REQUIRE(world.all_reduce_sum(std::int64_t(world.rank())) == world.size() * (world.size() - 1) / 2);
  }
  writer.wait();
  CHECK(writer.seconds_stalled() > 0);
  CHECK(entries(directory / "c") == Names{"latest", "step-000000000001", "step-000000000002", "step-000000000003"});

  for (int step = 3; step >= 1; --step) {
    std::vector<std::string> skipped;
    auto const reader = find_newest(world, directory / "c", skipped);
    REQUIRE(reader);
    REQUIRE(reader->step() == step);
    State<float> loaded(space, layout);
    reader->load(loaded);
    CHECK(loaded.step == step);
    auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), loaded.parameters());
    CHECK(std::all_of(host.data(), host.data() + host.extent(0), [&](float x) { return x == float(step); }));
    world.barrier();
    if (world.rank() == 0) std::filesystem::remove_all(reader->path());
    world.barrier();
  }
}

std::atomic<bool> released = true;

void wait_until_released(char const* place) {
  while (!released && std::string_view(place) == "piece") std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE("Training goes on while a disk takes its time; the next save waits for it", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Hook const hook(wait_until_released);
  Space space;
  State<float> state(space, checkpoint_layout());
  fill(state);
  CheckpointWriter writer(world, {.directory = directory / "c", .keep = 0});
  released = false;
  writer.save(state, {}, 1);
  // None of its ranks can have written anything, yet all are here.
  for (int i = 0; i < 100; ++i) REQUIRE(world.all_reduce_sum(std::int64_t(1)) == world.size());
  CHECK_FALSE(writer.last_committed());

  std::thread slow_disk([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    released = true;
  });
  writer.save(state, {}, 2);
  CHECK(released);
  CHECK(writer.last_committed() == 1);
  writer.wait();
  CHECK(writer.last_committed() == 2);
  slow_disk.join();
  world.barrier();
  CHECK(entries(directory / "c") == Names{"latest", "step-000000000001", "step-000000000002"});
}

std::string directory_to_lose, place_of_loss;

void lose_directory(char const* place) {
  if (Communicator::world().rank() == 0 && place == place_of_loss) std::filesystem::remove_all(directory_to_lose);
}

TEST_CASE("A directory that vanishes is an error on every rank; once it is back, so are the saves",
          "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Hook const hook(lose_directory);
  Space space;
  State<float> state(space, checkpoint_layout());
  fill(state);
  for (char const* place :
       {"start", "directory made", "space reserved", "pieces written", "data closed", "data verified", "renamed"}) {
    CAPTURE(place);
    directory_to_lose = directory / "c";
    place_of_loss = place;
    CheckpointWriter writer(world, {.directory = directory_to_lose});
    writer.save(state, {}, 1);
    CHECK_THROWS_WITH(writer.wait(), ContainsSubstring(directory_to_lose));
    writer.save(state, {}, 2);
    CHECK_THROWS_AS(writer.wait(), AgreedError);
    CHECK_FALSE(writer.last_committed());

    place_of_loss = "none";
    if (world.rank() == 0) std::filesystem::create_directory(directory_to_lose);
    world.barrier();
    writer.save(state, {}, 3);
    writer.wait();
    CHECK(writer.last_committed() == 3);
    world.barrier();
  }
}

TEST_CASE("The state that load_newest leaves is the newest whole checkpoint's, or zero", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  std::string const path = directory / "c";
  Space space;
  State<Sporos::bfloat16> state(space, checkpoint_layout());
  {
    CheckpointWriter writer(world, {.directory = path, .keep = 0});
    for (int step : {5, 10, 15}) {
      fill(state);
      Kokkos::deep_copy(Kokkos::subview(state.first_moment(), std::pair(0, 37 * 19)), float(step));
      state.step = step;
      writer.save(state, {}, step);
    }
    writer.wait();
  }
  auto const damage_last_byte_of = [&](int step) {
    world.barrier();
    if (world.rank() == 0) {
      std::string const file =
          path + "/step-" + std::string(step < 10 ? 11 : 10, '0') + std::to_string(step) + "/data.h5";
      std::string data = read_text(file);
      // In the array that is read last, so that most is loaded before it shows
      std::vector<float> values;
      for (std::int64_t i = 0; i < 130; ++i) values.push_back(float(checkpoint_value(3, 7, i)));
      std::size_t const at =
          data.find(std::string(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(float)));
      REQUIRE(at != std::string::npos);
      data[at + 100] = char(data[at + 100] ^ 1);
      write_text(file, data);
    }
    world.barrier();
  };
  int accepted = 0, skipped = 0;
  auto const load = [&](State<Sporos::bfloat16>& into) {
    accepted = skipped = 0;
    return CheckpointReader::load_newest(
        world, path, into, [&](CheckpointReader const&) { ++accepted; }, [&](std::string const&) { ++skipped; });
  };
  State<Sporos::bfloat16> loaded(space, checkpoint_layout());
  auto const zero = bytes_of(loaded);
  auto reader = load(loaded);
  REQUIRE(reader);
  CHECK(reader->step() == 15);
  CHECK(bytes_of(loaded) == bytes_of(state));
  CHECK(accepted == 1);
  CHECK(skipped == 0);

  damage_last_byte_of(15);
  damage_last_byte_of(10);
  reader = load(loaded);
  REQUIRE(reader);
  CHECK(reader->step() == 5);
  CHECK(loaded.step == 5);
  auto const moments = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), loaded.first_moment());
  CHECK(moments(0) == 5);
  CHECK(accepted == 3);
  CHECK(skipped == (world.rank() == 0 ? 2 : 0));

  // What a caller refuses is no damage, and nothing is loaded.
  auto const before = bytes_of(loaded);
  CHECK_THROWS_WITH(
      CheckpointReader::load_newest(
          world, path, loaded,
          [](CheckpointReader const& candidate) { throw std::runtime_error("not " + candidate.path()); }, nullptr),
      ContainsSubstring("not " + path + "/step-000000000015"));
  CHECK(bytes_of(loaded) == before);

  damage_last_byte_of(5);
  CHECK_FALSE(load(loaded));
  CHECK(bytes_of(loaded) == zero);
  CHECK(loaded.step == 0);
}

TEST_CASE("Ranks that name different directories are told so", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  if (world.size() == 1) return;
  SharedDirectory const directory(world);
  std::string const mine = directory / (world.rank() == 1 ? "b" : "a");
  std::string const a = directory / "a", b = directory / "b";
  CHECK_THROWS_WITH(CheckpointWriter(world, {.directory = mine}), ContainsSubstring(a) && ContainsSubstring(b));
  CHECK_THROWS_WITH(CheckpointReader::newest_valid(world, mine, nullptr), ContainsSubstring(a) && ContainsSubstring(b));
}

TEST_CASE("No checkpoint is not an error, what is not one is not taken for one", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  std::vector<std::string> skipped;
  CHECK_FALSE(find_newest(world, directory / "absent", skipped));
  CHECK(skipped.empty());
  if (world.rank() == 0) {
    for (char const* name : {"c", "c/step-12", "c/step-000000000001.unfinished-abcdef", "c/step-",
                             "c/step-000000000002-1", "c/step--00000000001", "c/other"})
      std::filesystem::create_directory(directory / name);
    write_text(directory / "c/latest", "step-000000000009\n");
    write_text(directory / "file", "no directory");
  }
  world.barrier();
  CHECK_FALSE(find_newest(world, directory / "c", skipped));
  CHECK(skipped == Names());
  CHECK_THROWS_WITH(find_newest(world, directory / "file", skipped), ContainsSubstring(directory / "file"));
}

TEST_CASE("A damaged checkpoint is skipped with a message that names it, and the one before is taken",
          "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  std::string const path = directory / "c";
  Space space;
  State<Sporos::bfloat16> state(space, checkpoint_layout());
  {
    CheckpointWriter writer(world, {.directory = path});
    writer.save(state, "old", 5);
    fill(state);
    state.step = 10;
    writer.save(state, "new", 10);
    writer.wait();
  }
  std::string const data_path = path + "/step-000000000010/data.h5",
                    manifest_path = path + "/step-000000000010/manifest.json";
  std::string const data = read_text(data_path), manifest = read_text(manifest_path);
  REQUIRE(data.size() > 1000);
  world.barrier();

  auto const expect = [&](std::string const& damaged_path, std::string const& damaged_text,
                          std::string const& message) {
    if (world.rank() == 0) write_text(damaged_path, damaged_text);
    world.barrier();
    std::vector<std::string> skipped;
    auto const reader = find_newest(world, path, skipped);
    REQUIRE(reader);
    CHECK(reader->step() == 5);
    CHECK(reader->metadata() == "old");
    REQUIRE(skipped.size() == 1);
    CHECK_THAT(skipped[0], ContainsSubstring(message) && ContainsSubstring("step-000000000010"));
    world.barrier();
    if (world.rank() == 0) {
      write_text(data_path, data);
      write_text(manifest_path, manifest);
    }
    world.barrier();
  };

  SECTION("data file truncated") {
    expect(data_path, data.substr(0, data.size() - 1), "bytes and should have");
    expect(data_path, data.substr(0, data.size() / 2), "bytes and should have");
    expect(data_path, "", "bytes and should have");
    expect(data_path, data + "x", "bytes and should have");
  }
  SECTION("data file of zeros") { expect(data_path, std::string(data.size(), '\0'), "HDF5 cannot open"); }
  SECTION("one bit of the data flipped, in every buffer") {
    // Where a tensor's bytes lie in the file is found by their content.
    auto const flip = [&](auto element, int buffer, std::size_t tensor, std::string const& name) {
      using Element = decltype(element);
      std::int64_t const n = state.layout().tensors()[tensor].size;
      std::vector<Element> values;
      for (std::int64_t i = 0; i < n; ++i)
        values.push_back(Element(float(checkpoint_value(buffer, std::int64_t(tensor), i))));
      std::string const content(reinterpret_cast<char const*>(values.data()), values.size() * sizeof(Element));
      std::size_t const at = data.find(content);
      REQUIRE(at != std::string::npos);
      REQUIRE(data.find(content, at + 1) == std::string::npos);
      for (std::size_t const byte : {std::size_t(0), content.size() / 2, content.size() - 1}) {
        std::string damaged = data;
        damaged[at + byte] = char(damaged[at + byte] ^ 4);
        expect(data_path, damaged, name);
      }
    };
    flip(Sporos::bfloat16(), 0, 0, "parameters/wte.weight");
    flip(float(), 1, 2, "master/h.0.attn/c_attn.weight");
    flip(float(), 2, 6, "first_moment/four");
    flip(float(), 3, 7, "second_moment/one_row");
  }
  SECTION("manifest torn, empty, absent, flipped in each of its bytes") {
    expect(manifest_path, "", "is incomplete");
    expect(manifest_path, manifest.substr(0, 10), "is incomplete");
    expect(manifest_path, manifest.substr(0, manifest.size() - 1), "is damaged");
    expect(manifest_path, manifest.substr(0, manifest.size() / 2), "is damaged");
    for (std::size_t byte = 0; byte < manifest.size(); byte += manifest.size() / 37) {
      std::string damaged = manifest;
      damaged[byte] = char(damaged[byte] ^ 1);
      expect(manifest_path, damaged, "manifest.json is ");
    }
    if (world.rank() == 0) std::filesystem::remove(manifest_path);
    world.barrier();
    std::vector<std::string> skipped;
    auto const reader = find_newest(world, path, skipped);
    REQUIRE(reader);
    CHECK(reader->step() == 5);
    REQUIRE(skipped.size() == 1);
    CHECK_THAT(skipped[0], ContainsSubstring("cannot open " + manifest_path));
  }
  SECTION("swapped with the file of another checkpoint") {
    std::string const other = path + "/step-000000000005/";
    expect(data_path, read_text(other + "data.h5"), "is damaged");
    // The older one is whole, and is not taken for the newer.
    expect(manifest_path, read_text(other + "manifest.json"), "is damaged");
  }
  SECTION("undamaged again") {
    std::vector<std::string> skipped;
    auto const reader = find_newest(world, path, skipped);
    REQUIRE(reader);
    CHECK(skipped == Names());
    CHECK(reader->step() == 10);
  }
}

TEST_CASE("A file that is damaged after it was verified does not load silently", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Space space;
  Sporos::StateLayout layout;
  layout.add("w", {4096}, true);
  State<float> state(space, layout);
  Kokkos::deep_copy(space, state.parameters(), 1.0f);
  CheckpointWriter writer(world, {.directory = directory / "c"});
  writer.save(state, {}, 1);
  writer.wait();
  std::vector<std::string> skipped;
  auto const reader = find_newest(world, directory / "c", skipped);
  REQUIRE(reader);
  if (world.rank() == 0) {
    std::string data = read_text(reader->path() + "/data.h5");
    // The last of 4096 times 1.0f
    data[data.rfind(std::string("\x00\x00\x80\x3f", 4))] = 1;
    write_text(reader->path() + "/data.h5", data);
  }
  world.barrier();
  CHECK_THROWS_AS(reader->load(state), AgreedError);
}

TEST_CASE("The checkpoint of another model is refused, each differing tensor named", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Space space;
  State<float> state(space, checkpoint_layout());
  CheckpointWriter writer(world, {.directory = directory / "c"});
  writer.save(state, {}, 1);
  writer.wait();
  std::vector<std::string> skipped;
  auto const reader = find_newest(world, directory / "c", skipped);
  REQUIRE(reader);

  Sporos::StateLayout other;
  for (auto const& tensor : state.layout().tensors()) {
    if (tensor.name == "wte.weight")
      other.add(tensor.name, {19, 37}, true);
    else if (tensor.name == "scalar")
      other.add(tensor.name, {1}, false);
    else if (tensor.name != "four")
      other.add(tensor.name, tensor.shape, tensor.weight_decay);
  }
  other.add("new", {8}, false);
  State<float> different(space, other);
  fill(different);
  auto const before = bytes_of(different);
  CHECK_THROWS_AS(reader->load(different), AgreedError);
  CHECK_THROWS_WITH(reader->load(different),
                    ContainsSubstring(reader->path()) &&
                        ContainsSubstring("four is (2, 3, 4, 5) in the checkpoint and absent in the model") &&
                        ContainsSubstring("wte.weight is (37, 19) in the checkpoint and (19, 37) in the model") &&
                        ContainsSubstring("scalar is () in the checkpoint and (1) in the model") &&
                        ContainsSubstring("new is absent in the checkpoint and (8) in the model") &&
                        !ContainsSubstring("one_row"));
  CHECK(bytes_of(different) == before);
  State<double> other_type(space, checkpoint_layout());
  CHECK_THROWS_WITH(reader->load(other_type),
                    ContainsSubstring("parameters float32") && ContainsSubstring("parameters float64"));
  State<Sporos::bfloat16> with_master(space, checkpoint_layout());
  CHECK_THROWS_WITH(reader->load(with_master),
                    ContainsSubstring("master float32") && ContainsSubstring("parameters bfloat16"));
}

TEST_CASE("The newest checkpoints stay, the others go, and the same step can be saved again", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  std::string const path = directory / "a/b/c";  // made with its parents
  Space space;
  State<double> state(space, checkpoint_layout());
  CheckpointWriter writer(world, {.directory = path, .keep = 2});
  if (world.rank() == 0) {
    std::filesystem::create_directory(path + "/step-000000000001.unfinished-abcdef");  // of a killed job
    write_text(path + "/step-000000000001.unfinished-abcdef/data.h5", "torn");
    write_text(path + "/notes.txt", "mine");
    std::filesystem::create_directory(path + "/step-000000000099");  // of a run that was not continued
  }
  world.barrier();
  auto const save = [&](std::int64_t step) {
    writer.save(state, {}, step);
    writer.wait();
    world.barrier();
  };
  save(1);
  CHECK(entries(path) == Names{"latest", "notes.txt", "step-000000000001", "step-000000000099"});
  save(2);
  save(3);
  CHECK(entries(path) == Names{"latest", "notes.txt", "step-000000000002", "step-000000000003", "step-000000000099"});
  save(3);
  CHECK(entries(path) == Names{"latest", "notes.txt", "step-000000000002", "step-000000000003-2", "step-000000000099"});
  CHECK(read_text(path + "/latest") == "step-000000000003-2\n");
  save(99);
  CHECK(entries(path) == Names{"latest", "notes.txt", "step-000000000003-2", "step-000000000099-2"});
  std::vector<std::string> skipped;
  auto const reader = find_newest(world, path, skipped);
  REQUIRE(reader);
  CHECK(reader->step() == 99);
  world.barrier();
}

TEST_CASE("A directory that cannot be used is an error on every rank", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  if (world.rank() == 0) write_text(directory / "file", "");
  world.barrier();
  CHECK_THROWS_WITH(CheckpointWriter(world, {.directory = directory / "file"}), ContainsSubstring(directory / "file"));
  CHECK_THROWS_AS(CheckpointWriter(world, {.directory = directory / "file/below"}), AgreedError);
  CHECK_THROWS_AS(CheckpointWriter(world, {.directory = ""}), Sporos::InvalidArgument);
  CHECK_THROWS_AS(CheckpointWriter(world, {.directory = directory / "c", .keep = -1}), Sporos::InvalidArgument);
  CHECK_THROWS_AS(CheckpointWriter(world, {.directory = directory / "c", .deadline_seconds = std::nan("")}),
                  Sporos::InvalidArgument);
  world.barrier();
}

TEST_CASE("A failed save is thrown on every rank, harms nothing, and the next may succeed", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  std::string const path = directory / "c";
  Space space;
  State<float> state(space, checkpoint_layout());
  CheckpointWriter writer(world, {.directory = path});
  writer.save(state, {}, 1);
  writer.wait();
  auto const move = [&](std::string const& from, std::string const& to) {
    world.barrier();
    if (world.rank() == 0) std::filesystem::rename(from, to);
    world.barrier();
  };
  move(path, path + "-away");
  writer.save(state, {}, 2);
  CHECK_THROWS_AS(writer.wait(), AgreedError);
  CHECK_NOTHROW(writer.wait());  // it has been said
  writer.save(state, {}, 3);
  CHECK_THROWS_WITH(writer.save(state, {}, 4), ContainsSubstring(path));
  CHECK(writer.last_committed() == 1);
  move(path + "-away", path);
  writer.save(state, {}, 5);
  writer.wait();
  CHECK(writer.last_committed() == 5);
  CHECK(entries(path) == Names{"latest", "step-000000000001", "step-000000000005"});
  CHECK_THROWS_WITH(writer.save(state, {}, -1), ContainsSubstring("step -1"));
  CHECK_THROWS_AS(writer.save(state, {}, 1'000'000'000'000), AgreedError);
  world.barrier();
}

TEST_CASE("A state without tensors is a checkpoint too", "[io][checkpoint][mpi]") {
  auto const world = Communicator::world();
  SharedDirectory const directory(world);
  Space space;
  State<float> state(space, Sporos::StateLayout());
  CheckpointWriter writer(world, {.directory = directory / "c"});
  writer.save(state, {{"only", "metadata"}}, 7);
  writer.wait();
  std::vector<std::string> skipped;
  auto const reader = find_newest(world, directory / "c", skipped);
  REQUIRE(reader);
  CHECK_NOTHROW(reader->load(state));
  CHECK(reader->metadata().at("only") == "metadata");
}

}  // namespace
