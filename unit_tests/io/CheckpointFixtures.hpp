// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_TESTING_CHECKPOINTFIXTURES_HPP
#define SPOROS_TESTING_CHECKPOINTFIXTURES_HPP

#include <stdlib.h>

#include <Kokkos_Core.hpp>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <type_traits>
#include <vector>

#include "Sporos_Checkpoint.hpp"
#include "Sporos_Communicator.hpp"
#include "Sporos_ShardedState.hpp"

namespace Sporos::Testing {

/// A directory that all ranks see, removed with everything in it at the end
class SharedDirectory {
 public:
  explicit SharedDirectory(Communicator const& communicator) : m_communicator(communicator) {
    m_path = (std::filesystem::temp_directory_path() / "sporos-test-XXXXXX").string();
    if (m_communicator.rank() == 0 && ::mkdtemp(m_path.data()) == nullptr) m_path.clear();
    m_communicator.broadcast(m_path);
  }
  ~SharedDirectory() {
    m_communicator.barrier();
    if (m_communicator.rank() == 0) std::filesystem::remove_all(m_path);
  }
  SharedDirectory(SharedDirectory const&) = delete;
  SharedDirectory& operator=(SharedDirectory const&) = delete;

  std::string operator/(std::string const& name) const { return m_path + "/" + name; }

 private:
  Communicator m_communicator;
  std::string m_path;
};

/// Tensors whose bounds fall everywhere: inside rows, planes and alignment gaps, with a scalar and an empty one
inline StateLayout checkpoint_layout() {
  StateLayout layout;
  layout.add("wte.weight", {37, 19}, true);
  layout.add("h.0.ln_1.weight", {19}, false);
  layout.add("h.0.attn/c_attn.weight", {5, 7, 11}, true);
  layout.add("scalar", {}, false);
  layout.add("empty", {3, 0, 2}, false);
  layout.add("h.0.attn/c_attn.bias", {1}, false);
  layout.add("four", {2, 3, 4, 5}, true);
  layout.add("one_row", {1, 130}, true);
  return layout;
}

/// Exact in bfloat16; a different sequence for every tensor of every buffer, so that none is a part of another
inline double checkpoint_value(std::int64_t buffer, std::int64_t tensor, std::int64_t element) {
  return double((element * (7 + 4 * tensor + buffer) + 31 * tensor) % 257 - 128) / 64;
}

/// Calls function(number of the buffer, buffer) for what a checkpoint holds.
template <class State, class Function>
void for_each_buffer(State const& state, Function const& function) {
  function(0, state.parameters());
  function(1, state.master());
  function(2, state.first_moment());
  function(3, state.second_moment());
}

template <class State>
void fill(State& state) {
  for_each_buffer(state, [&](int buffer, auto const& flat) {
    using Element = typename std::decay_t<decltype(flat)>::value_type;
    if (buffer == 1 && !State::has_own_master) return;
    auto const host = Kokkos::create_mirror_view(flat);
    Kokkos::deep_copy(host, Element(0.0f));
    auto const& tensors = state.layout().tensors();
    for (std::size_t t = 0; t < tensors.size(); ++t)
      for (std::int64_t i = 0; i < tensors[t].size; ++i)
        host(std::size_t(tensors[t].offset + i)) = Element(float(checkpoint_value(buffer, std::int64_t(t), i)));
    Kokkos::deep_copy(flat, host);
  });
}

/// The bytes of the buffers, one after the other: equal only if every element and every gap is, NaNs included
template <class State>
std::vector<std::byte> bytes_of(State const& state) {
  std::vector<std::byte> bytes;
  for_each_buffer(state, [&](int, auto const& flat) {
    auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), flat);
    auto const begin = reinterpret_cast<std::byte const*>(host.data());
    bytes.insert(bytes.end(), begin, begin + host.extent(0) * sizeof(*host.data()));
  });
  return bytes;
}

inline std::string read_text(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(std::string const& path, std::string const& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace Sporos::Testing

#endif
