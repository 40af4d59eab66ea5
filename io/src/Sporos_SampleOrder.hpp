// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_SAMPLEORDER_HPP
#define SPOROS_SAMPLEORDER_HPP

#include <cstdint>

namespace Sporos {

/// In which order a training run visits its samples: every epoch visits each once, in a new random order that follows
/// from the seed and the epoch alone. The order is a function of a global counter, so it needs no memory, starts anywhere,
/// and is the same for any number of ranks.
///
/// Within an epoch the order is a keyed bijection of [0, 4^h) ⊇ [0, samples), a Feistel network with Philox as its round
/// function, walked until it falls below `samples` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); that
/// takes less than four steps on average.
class SampleOrder {
 public:
  /// \throws InvalidArgument unless samples > 0
  SampleOrder(std::int64_t samples, std::uint64_t seed);
  /// 0, 1, 2, … and again: for evaluation
  static SampleOrder sequential(std::int64_t samples);

  std::int64_t samples() const { return m_samples; }

  /// The sample in [0, samples) that is visited as number `global_counter` >= 0 of the run
  std::int64_t operator()(std::int64_t global_counter) const;

 private:
  std::int64_t m_samples;
  std::uint64_t m_seed;
  int m_half_bits;
  bool m_shuffle = true;
};

}  // namespace Sporos

#endif
