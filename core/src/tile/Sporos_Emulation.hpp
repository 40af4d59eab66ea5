// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_EMULATION_HPP
#define SPOROS_EMULATION_HPP

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "Sporos_Macros.hpp"

// What every emulated architecture needs: warps that take turns, and ways to go wrong.
namespace Sporos::inline SPOROS_LEVEL {
namespace Emulation {

inline constexpr unsigned char nan_byte = 0xff;     // repeated, a NaN as bfloat16 and as float
inline constexpr unsigned char finite_byte = 0x3f;  // ... 0.75: a stale value that looks sound

/// What the emulator does worse than hardware usually does.
struct Adversary {
  unsigned seed = 0;                      // 0: copies land at the wait that covers them; else some land at once
  int forgotten_wait = -1;                // the k-th wait for copies of every warp does nothing
  int forgotten_commit = -1;              // ... the k-th commit: its copies belong to the next group
  int forgotten_barrier = -1;             // the k-th barrier of every warp does nothing
  unsigned char scratch_byte = nan_byte;  // what scratch is full of at the start
};

/// Carried by what a product reads or writes in registers, from its issue to its join.
class ProductToken {
 public:
  /// \throws std::logic_error when the product that this took part in last has not been joined
  void check_joined() const {
    if (m_product > s_joined) throw std::logic_error("registers of a product are touched before its join");
  }

  template <class... Tokens>
  static void issue(Tokens&... tokens) {
    ++s_issued;
    ((tokens.m_product = s_issued), ...);
  }

  template <int InFlight>
  static void join() {
    s_joined = std::max(s_joined, s_issued - InFlight);
  }

 private:
  int m_product = 0;
  static inline thread_local int s_issued = 0;  // of this warp, which is a thread
  static inline thread_local int s_joined = 0;
};

/// Products of one warp that were issued. They are computed at once or when a join asks for them, as the seed has it: what
/// changes a factor in between, or looks at a result, shows.
class Products {
 public:
  template <class Product, class... Tokens>
  static void issue(Product const& product, Tokens&... tokens) {
    ProductToken::issue(tokens...);
    s_late.push_back(product);
    if (s_random && (*s_random)() % 2) run_but(0);
  }

  template <int InFlight>
  static void join() {
    ProductToken::join<InFlight>();
    run_but(InFlight);
  }

  /// seed 0: as late as possible
  static void start(unsigned seed, int warp) {
    s_late.clear();
    s_random.reset();
    if (seed != 0) s_random.emplace(1000 * seed + unsigned(warp));
  }

 private:
  static void run_but(std::size_t late) {
    while (s_late.size() > late) {
      s_late.front()();
      s_late.pop_front();
    }
  }

  static inline thread_local std::deque<std::function<void()>> s_late;
  static inline thread_local std::optional<std::mt19937> s_random;
};

/// Warps are threads of which one runs at a time; the turn changes at barriers only, in an order drawn from the seed. So a
/// warp that leaves a barrier out runs ahead of the others as far as it can, in every run alike.
class WarpScheduler {
 public:
  WarpScheduler(int warps, unsigned seed) : m_random(seed) {
    for (int i = 0; i < warps; ++i) m_warps.push_back(std::make_unique<Warp>());
  }

  /// \throws std::logic_error when some warps wait at a barrier that others will never reach
  void barrier(int warp) {
    m_warps[warp]->state = State::waiting;
    ++m_warps[warp]->barriers;
    pass_on();
    m_warps[warp]->turn.acquire();
    if (m_stuck)
      throw std::logic_error("barrier " + std::to_string(m_warps[warp]->barriers) + " is not reached by every warp");
  }

  /// kernel(warp) for every warp; rethrows the first exception
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
        }
        m_warps[warp]->state = State::done;
        pass_on();
      });
    pass_on();
    threads.clear();
    if (m_error) std::rethrow_exception(m_error);
  }

 private:
  enum class State { ready, waiting, done };
  struct Warp {
    State state = State::ready;
    int barriers = 0;
    std::binary_semaphore turn{0};
  };

  std::vector<Warp*> in(State state) {
    std::vector<Warp*> found;
    for (auto& warp : m_warps)
      if (warp->state == state) found.push_back(warp.get());
    return found;
  }

  void pass_on() {
    if (in(State::ready).empty()) {
      auto const waiting = in(State::waiting);
      m_stuck = m_stuck || waiting.size() < m_warps.size();
      for (Warp* warp : waiting) warp->state = State::ready;
    }
    auto const ready = in(State::ready);
    if (!ready.empty()) ready[m_random() % ready.size()]->turn.release();
  }

  std::vector<std::unique_ptr<Warp>> m_warps;
  std::minstd_rand m_random;
  std::exception_ptr m_error;
  bool m_stuck = false;
};

/// Runs kernel(team) as each of the warps of one team
template <class Team, class Kernel>
void run_team(Adversary const& adversary, Kernel const& kernel) {
  WarpScheduler scheduler(Team::warps, adversary.seed);
  scheduler.run([&](int warp) {
    Products::start(adversary.seed, warp);
    Team team(scheduler, warp, adversary);
    kernel(team);
  });
}

}  // namespace Emulation
}  // namespace Sporos::inline SPOROS_LEVEL

#endif
