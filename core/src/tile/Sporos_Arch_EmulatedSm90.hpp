// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_ARCH_EMULATEDSM90_HPP
#define SPOROS_ARCH_EMULATEDSM90_HPP

#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tile/Sporos_Emulation.hpp"
#include "tile/Sporos_Tile_Wgmma.hpp"

// The instructions of NVIDIA Hopper on a CPU, for all lanes of a warp at once. Products and copies are as late as their
// waits permit or, by seed, as early: what a body forgets to wait for never comes.
namespace Sporos::inline SPOROS_LEVEL {

namespace Emulation {

/// A tensor as the emulated copy engine knows it
struct BoxMap {
  void const* data;
  std::int64_t row_stride, head_stride, batch_stride;  // elements, of two bytes
  int columns, rows;
  int box_rows;
};

/// A barrier with phases: one ends when all arrivals and all announced bytes are there.
struct PhaseBarrier {
  std::string name;
  int arrivals = 0;  // of a phase
  int missing = 0;   // ... of this one
  int bytes = 0;
  int phases = 0;  // that have ended
  std::deque<std::function<void()>> copies;

  bool ended(int parity) const { return (phases + 1) % 2 == parity; }
  void update() {
    if (missing > 0 || bytes > 0) return;
    missing = arrivals;
    ++phases;
  }
  void land() {
    while (!copies.empty()) {
      copies.front()();
      copies.pop_front();
    }
    update();
  }
};

/// Warps are threads of which one runs at a time; the turn changes where one waits for a barrier, in an order drawn from the
/// seed.
class WaitScheduler {
 public:
  WaitScheduler(int warps, unsigned seed) : m_random(seed) {
    for (int i = 0; i < warps; ++i) m_warps.push_back(std::make_unique<Warp>());
  }

  /// \throws std::logic_error when every warp waits, with what this one waits for
  void wait_until(int warp, std::function<bool()> ready, std::string const& what) {
    Warp& self = *m_warps[warp];
    self.ready = std::move(ready);
    pass_on();
    self.turn.acquire();
    self.ready = nullptr;
    if (m_stuck) throw std::logic_error("every warp waits; warp " + std::to_string(warp) + " for " + what);
  }

  template <class Kernel>
  void run(Kernel const& kernel) {
    std::vector<std::jthread> threads;
    for (int warp = 0; warp < int(m_warps.size()); ++warp)
      threads.emplace_back([this, &kernel, warp] {
        m_warps[warp]->turn.acquire();
        try {
          kernel(warp);
        } catch (...) {
          if (!m_error) m_error = std::current_exception();
          m_stuck = true;  // the others may wait for this one
        }
        m_warps[warp]->done = true;
        pass_on();
      });
    pass_on();
    threads.clear();
    if (m_error) std::rethrow_exception(m_error);
  }

 private:
  struct Warp {
    std::function<bool()> ready;
    bool done = false;
    std::binary_semaphore turn{0};
  };

  void pass_on() {
    std::vector<Warp*> left, ready;
    for (auto& warp : m_warps)
      if (!warp->done) left.push_back(warp.get());
    for (Warp* warp : left)
      if (!warp->ready || m_stuck || warp->ready()) ready.push_back(warp);
    if (ready.empty() && !left.empty()) {
      m_stuck = true;
      ready = left;
    }
    if (!ready.empty()) ready[m_random() % ready.size()]->turn.release();
  }

  std::vector<std::unique_ptr<Warp>> m_warps;
  std::minstd_rand m_random;
  std::exception_ptr m_error;
  bool m_stuck = false;
};

/// What the warps of a team share
struct WarpgroupTeam {
  WarpgroupTeam(int warps, std::vector<BoxMap> const& of_maps, Adversary const& of_team)
      : scheduler(warps, of_team.seed), maps(of_maps), adversary(of_team) {}

  WaitScheduler scheduler;
  std::vector<BoxMap> const& maps;  // none: blocks are copied by lanes
  Adversary adversary;
  std::vector<PhaseBarrier> barriers;
};

/// Scratch starts here, for the warp that runs: addresses are distances from it.
inline thread_local unsigned char* scratch = nullptr;

/// Products of one warp, in the order of their issue, in groups
class PendingProducts {
 public:
  void add(std::function<void()> product) { m_open.push_back(std::move(product)); }

  void close_group(bool at_once) {
    m_groups.push_back(std::move(m_open));
    m_open.clear();
    if (at_once) finish(0);
  }

  void finish(int in_flight) {
    while (int(m_groups.size()) > in_flight) {
      for (auto const& product : m_groups.front()) product();
      m_groups.pop_front();
    }
  }

 private:
  std::vector<std::function<void()>> m_open;
  std::deque<std::vector<std::function<void()>>> m_groups;
};

inline thread_local PendingProducts products;
inline thread_local std::minstd_rand at_once;  // whether the next one lands at once
inline thread_local bool all_late = true;      // ... if any does
inline thread_local int warp_of_group = 0;
inline bool lands_at_once() { return !all_late && at_once() % 2 == 0; }

}  // namespace Emulation

template <int Groups>
struct Arch::Emulated<Arch::Sm90With<Groups>> {
  using WgmmaInstructions = Emulated;

  static constexpr int lanes = WgmmaLayout::lanes;

  /// N registers of every lane. They start as NaN.
  template <class T, int N>
  struct Registers {
    T m_value[lanes][N];
    Registers() { std::memset(m_value, Emulation::nan_byte, sizeof m_value); }
    T& operator()(int lane, int i) { return m_value[lane][i]; }
    T operator()(int lane, int i) const { return m_value[lane][i]; }
  };

  using ProductToken = Emulation::ProductToken;

  template <class F>
  static void for_each_lane(F const& f) {
    for (int lane = 0; lane < lanes; ++lane) f(lane);
  }
  template <class F>
  static bool any_lane(F const& f) {
    bool found = false;
    for_each_lane([&](int lane) { found = f(lane) || found; });
    return found;
  }
  template <class T, int N>
  static Registers<T, N> exchange(Registers<T, N> const& x, int mask) {
    Registers<T, N> other;
    for_each_lane([&](int lane) { std::memcpy(other.m_value[lane], x.m_value[lane ^ mask], sizeof x.m_value[lane]); });
    return other;
  }

  // ----------------------------------------------------------------------------------- scratch

  static std::uint32_t address(void const* pointer) {
    return std::uint32_t(static_cast<unsigned char const*>(pointer) - Emulation::scratch);
  }
  template <class C>
  static C load(std::uint32_t address) {
    C value;
    std::memcpy(&value, Emulation::scratch + address, sizeof value);
    return value;
  }
  static std::uint16_t half(std::uint32_t address) { return load<std::uint16_t>(address); }

  template <class Address>
  static Registers<std::uint32_t, 4> load_matrices(Address const& address) {
    Registers<std::uint32_t, 4> r;
    for_each_lane([&](int lane) {
      for (int matrix = 0; matrix < 4; ++matrix)
        r(lane, matrix) = load<std::uint32_t>(address(8 * matrix + lane / 4) + 4 * unsigned(lane % 4));
    });
    return r;
  }

  template <int N, class Address>
  static void store_transposed(Registers<std::uint32_t, N> const& x, int first, Address const& address) {
    for_each_lane([&](int lane) {
      for (int matrix = 0; matrix < 4; ++matrix)
        for (int e = 0; e < 2; ++e) {
          std::uint16_t const value = std::uint16_t(x(lane, first + matrix) >> 16 * e);
          std::uint32_t const to = address(8 * matrix + 2 * (lane % 4) + e) + 2 * unsigned(lane / 4);
          std::memcpy(Emulation::scratch + to, &value, sizeof value);
        }
    });
  }

  // ----------------------------------------------------------------------------------- products

  static MatrixDescriptor opaque(MatrixDescriptor descriptor) { return descriptor; }
  template <class T, int N>
  static void take(Registers<T, N>&) {}
  template <class... Taken>
  static void begin_products(Taken&...) {}

  template <int N>
  static void end_products(Registers<float, N>&) {
    Emulation::products.close_group(Emulation::lands_at_once());
  }
  template <int InFlight>
  static void wait_products() {
    Emulation::products.finish(InFlight);
  }

  /// Where a descriptor finds element k of vector mn: PTX ISA, "Matrix Descriptor", 128-byte swizzle
  template <bool Transposed>
  static std::uint32_t element(MatrixDescriptor descriptor, int mn, int k) {
    std::uint32_t const start = (descriptor.lower & 0x3fff) << 4, leading = (descriptor.lower >> 16 & 0x3fff) << 4;
    std::uint32_t const stride = (MatrixDescriptor::upper & 0x3fff) << 4;
    auto const m = unsigned(mn), n = unsigned(k);
    std::uint32_t const offset =
        Transposed ? 128 * (n % 8) + stride * (n / 8) + 16 * (m / 8 % 8) + leading * (m / 64) + 2 * (m % 8)
                   : 128 * (m % 8) + stride * (m / 8) + 2 * n;
    std::uint32_t const at = start + offset;
    return at ^ (at >> 3 & 0x70);
  }

  template <class T>
  static float number(std::uint16_t bits) {
    return float(T::from_bits(bits));
  }

  template <class T, bool TransposedB, int N, class Left>
  static void multiply_now(Registers<float, N>& d, Left const& left, MatrixDescriptor b, bool first) {
    constexpr int columns = 2 * N, depth = WgmmaLayout::depth;
    float A[WgmmaLayout::warp_rows][depth], B[depth][columns];
    for (int m = 0; m < WgmmaLayout::warp_rows; ++m)
      for (int k = 0; k < depth; ++k) A[m][k] = left(m, k);
    for (int n = 0; n < columns; ++n)
      for (int k = 0; k < depth; ++k) B[k][n] = number<T>(half(element<TransposedB>(b, n, k)));
    for_each_lane([&](int lane) {
      for (int r = 0; r < N; ++r) {
        float sum = first ? 0 : d(lane, r);
        for (int k = 0; k < depth; ++k) sum += A[WgmmaLayout::row(lane, r)][k] * B[k][WgmmaLayout::column(lane, r)];
        d(lane, r) = sum;
      }
    });
  }

  template <class T, bool TransposedA, bool TransposedB, int N>
  static void multiply(Registers<float, N>& d, MatrixDescriptor a, MatrixDescriptor b, bool first) {
    int const first_row = WgmmaLayout::warp_rows * Emulation::warp_of_group;
    Emulation::products.add([&d, a, b, first, first_row] {
      auto const left = [&](int m, int k) { return number<T>(half(element<TransposedA>(a, first_row + m, k))); };
      multiply_now<T, TransposedB>(d, left, b, first);
    });
  }

  template <class T, bool TransposedB, int N, int M>
  static void multiply_add(Registers<float, N>& d, Registers<std::uint32_t, M> const& a, int first,
                           MatrixDescriptor b) {
    Emulation::products.add(
        [&d, &a, first, b] { multiply_now<T, TransposedB>(d, left_factor<T>(a, first), b, false); });
  }

  template <class T, int N>
  static void multiply_add_in_warp(Registers<float, N>& d, int first, Registers<std::uint32_t, 4> const& a,
                                   Registers<std::uint32_t, 4> const& b, int first_b) {
    auto const left = left_factor<T>(a, 0);
    for_each_lane([&](int lane) {
      for (int i = 0; i < 4; ++i) {
        int const row = WgmmaLayout::row(lane, i), column = WgmmaLayout::column(lane, i);
        for (int k = 0; k < 16; ++k) {
          // Term 8 r + 2 t + e of column g is half e of register r of lane 4 g + t.
          std::uint32_t const pair = b(4 * column + k % 8 / 2, first_b + k / 8);
          d(lane, first + i) += left(row, k) * number<T>(std::uint16_t(pair >> 16 * (k % 2)));
        }
      }
    });
  }

  // ----------------------------------------------------------------------------------- registers and memory

  template <class T>
  static std::uint32_t pack(float low, float high) {
    return std::uint32_t(T(low).bits) | std::uint32_t(T(high).bits) << 16;
  }
  static void transpose_in_fours(Registers<std::uint32_t, 4>& words) {
    Registers<std::uint32_t, 4> const old = words;
    for_each_lane([&](int lane) {
      for (int w = 0; w < 4; ++w) words(lane, w) = old(lane / 4 * 4 + w, lane % 4);
    });
  }
  template <class T>
  static void store_four(T* to, Registers<std::uint32_t, 4> const& words, int lane) {
    std::memcpy(static_cast<void*>(to), words.m_value[lane], 16);
  }
  template <int N>
  static void add_four(float* to, Registers<float, N> const& x, int first, int lane) {
    for (int i = 0; i < 4; ++i) to[i] += x(lane, first + i);
  }

  static float exp2(float x) { return std::exp2(x); }
  static float log2(float x) { return std::log2(x); }
  static float ceil(float x) { return std::ceil(x); }
  static float max(float a, float b) { return std::fmax(a, b); }
  static float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }

 private:
  template <class T, int M>
  static auto left_factor(Registers<std::uint32_t, M> const& a, int first) {
    return [&a, first](int m, int k) {
      for (int r = 0; r < 4; ++r) {
        int const lane = 4 * (m % 8) + k % 8 / 2;
        if (WgmmaLayout::left_row(lane, r) == m && WgmmaLayout::left_term(lane, r, k % 2) == k)
          return number<T>(std::uint16_t(a(lane, first + r) >> 16 * (k % 2)));
      }
      throw std::logic_error("no register holds an element of a left factor");
    };
  }
};

/// One warp's view of the team
template <int Groups>
class Team<Arch::Emulated<Arch::Sm90With<Groups>>> {
 public:
  static constexpr int groups = Groups;
  static constexpr int warps = WgmmaLayout::warps * Groups;
  static constexpr int all_warps = warps + 4;
  static constexpr int loading_threads = 128;

  struct Barriers {
    int first;
    Barriers operator+(int i) const { return {first + i}; }
  };

  Team(Emulation::WarpgroupTeam& team, int warp)
      : m_team(team), m_warp(warp - 4), m_exchange(new_barriers(ExchangeBuffers::count, warps)) {
    Emulation::products = {};
    Emulation::all_late = team.adversary.seed == 0;
    Emulation::at_once.seed(team.adversary.seed + unsigned(warp));
    Emulation::warp_of_group = warp % WgmmaLayout::warps;
  }

  int warp() const { return m_warp; }
  int group() const { return m_warp / WgmmaLayout::warps; }
  bool loads() const { return m_warp < 0; }

  bool has_maps() const { return !m_team.maps.empty(); }
  int loading_warps() const { return has_maps() ? 1 : 4; }
  bool is_first_loading_warp() const { return m_warp == -4; }
  int loading_thread(int lane) const { return 32 * (m_warp + 4) + lane; }

  Barriers new_barriers(int count, int arrivals) {
    Barriers const barriers{m_barriers};
    m_barriers += count;
    while (int(m_team.barriers.size()) < m_barriers) {
      int const number = int(m_team.barriers.size()) - barriers.first;
      m_team.barriers.push_back(
          {"barrier " + std::to_string(barriers.first) + " + " + std::to_string(number), arrivals, arrivals, 0, 0, {}});
    }
    return barriers;
  }

  void wait(Barriers barrier, int parity) {
    if (m_waits++ == m_team.adversary.forgotten_wait) return;
    auto const ended = [this, barrier, parity] {
      Emulation::PhaseBarrier& at = m_team.barriers[barrier.first];
      if (!at.ended(parity) && at.missing == 0) at.land();
      return at.ended(parity);
    };
    if (ended()) return;
    Emulation::PhaseBarrier const& at = m_team.barriers[barrier.first];
    m_team.scheduler.wait_until(
        m_warp + 4, ended,
        at.name + ", phase " + std::to_string(at.phases) + ", " + std::to_string(at.missing) + " arrivals missing");
  }

  void arrive(Barriers barrier) { arrive_alone(barrier); }
  void arrive_alone(Barriers barrier) {
    if (m_arrivals++ == m_team.adversary.forgotten_barrier) return;
    Emulation::PhaseBarrier& at = m_team.barriers[barrier.first];
    if (at.missing == 0) throw std::logic_error("too many arrivals at " + at.name);
    --at.missing;
    at.update();
  }
  void arrive_and_expect(Barriers barrier, int bytes) {
    m_team.barriers[barrier.first].bytes += bytes;
    arrive_alone(barrier);
  }

  template <class F>
  void for_one_lane(F const& f) {
    f();
  }

  // ----------------------------------------------------------------------------------- copies

  template <class T>
  void copy_box(std::uint32_t to, TensorPlace const& place, int column, int row, Barriers full, bool) {
    Emulation::BoxMap const& map = m_team.maps.at(place.map - 1);
    unsigned char* const scratch = Emulation::scratch;
    copy(full, 128 * map.box_rows, [=] {
      T const* const head =
          static_cast<T const*>(map.data) + place.head * map.head_stride + place.batch * map.batch_stride;
      for (int r = 0; r < map.box_rows; ++r)
        for (int c = 0; c < 64; ++c) {
          bool const real = row + r < map.rows && column + c < map.columns;
          T const value = real ? head[(row + r) * map.row_stride + column + c] : T::from_bits(0);
          std::uint32_t const at = to + 128 * unsigned(r) + 2 * unsigned(c);
          std::memcpy(scratch + (at ^ (at >> 3 & 0x70)), &value, 2);
        }
    });
  }

  void copy_bytes(std::uint32_t to, void const* from, int bytes, Barriers full) {
    unsigned char* const scratch = Emulation::scratch;
    copy(full, bytes, [=] { std::memcpy(scratch + to, from, std::size_t(bytes)); });
  }

  void copy_chunk(std::uint32_t to, void const* from, bool real) {
    m_chunks.push_back([=] {
      if (real)
        std::memcpy(Emulation::scratch + to, from, 16);
      else
        std::memset(Emulation::scratch + to, 0, 16);
    });
  }
  template <class T>
  void copy_elements(std::uint32_t to, T const* from, int real) {
    for (int i = 0; i < 8; ++i) {
      T const value = i < real ? from[i] : T::from_bits(0);
      std::memcpy(Emulation::scratch + to + 2 * unsigned(i), &value, 2);
    }
  }
  void arrive_after_copies(Barriers full) {
    for (auto const& chunk : m_chunks) chunk();
    m_chunks.clear();
    arrive(full);
  }

  // ----------------------------------------------------------------------------------- factors handed to each other

  int begin_exchange() {
    wait_exchange();
    m_before = m_last.stage;
    m_last.advance();
    return m_last.stage;
  }
  void end_exchange() { arrive(m_exchange + m_last.stage); }
  void wait_exchange() { wait(m_exchange + m_last.stage, m_last.parity); }
  int exchange_before() const { return m_before; }
  int exchange_last() const { return m_last.stage; }

 private:
  template <class F>
  void copy(Barriers full, int bytes, F const& f) {
    Emulation::PhaseBarrier& at = m_team.barriers[full.first];
    at.copies.push_back([this_barrier = &m_team.barriers, index = full.first, bytes, f] {
      f();
      (*this_barrier)[index].bytes -= bytes;
    });
    if (Emulation::lands_at_once()) at.land();
  }

  Emulation::WarpgroupTeam& m_team;
  int m_warp;
  int m_barriers = 0;
  Barriers m_exchange;
  RingPlace<ExchangeBuffers::count> m_last{ExchangeBuffers::count - 1, 1};
  int m_before = ExchangeBuffers::count - 1;
  int m_waits = 0, m_arrivals = 0;
  std::vector<std::function<void()>> m_chunks;
};

namespace Emulation {

/// kernel(team) as each warp of one team; scratch starts at a multiple of 1024 bytes.
template <class Team, class Kernel>
void run_warpgroups(Adversary const& adversary, std::vector<BoxMap> const& maps, unsigned char* scratch_of_team,
                    Kernel const& kernel) {
  WarpgroupTeam shared(Team::all_warps, maps, adversary);
  shared.scheduler.run([&](int warp) {
    scratch = scratch_of_team;
    Team team(shared, warp);
    kernel(team);
  });
}

}  // namespace Emulation
}  // namespace Sporos::inline SPOROS_LEVEL

#endif
