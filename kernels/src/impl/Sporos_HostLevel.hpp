// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_HOSTLEVEL_HPP
#define SPOROS_HOSTLEVEL_HPP

#include <string>
#include <vector>

namespace Sporos::Impl {

/// The instruction sets that host kernels are compiled for, from the poorest to the richest. Distributions compile for the
/// first; which one runs is decided when the program starts.
enum class HostLevel {
  baseline,       ///< what the compiler assumes by itself
  x86_64_v3,      ///< AVX2 and FMA
  x86_64_v4,      ///< AVX-512 F, BW, DQ, VL
  x86_64_v4_bf16  ///< ... with dot products of bfloat16
};

std::string name_of(HostLevel level);

/// Those that this processor can run, in the order of the enumeration
std::vector<HostLevel> supported_host_levels();

/// The richest of them, or the one that the environment variable SPOROS_HOST_LEVEL names; determined at the first call.
/// \throws InputError when that is no level or the processor cannot run it
HostLevel best_host_level();

}  // namespace Sporos::Impl

// Used in namespace Sporos: declares Kernels name_of_level() of every level (each level's source defines its own) and
// defines Kernels Impl::name(HostLevel), which calls the one of the level.
#if defined(__x86_64__)
#define SPOROS_DECLARE_HOST_KERNELS(Kernels, name) \
  namespace baseline {                             \
  Kernels name##_of_level();                       \
  }                                                \
  namespace x86_64_v3 {                            \
  Kernels name##_of_level();                       \
  }                                                \
  namespace x86_64_v4 {                            \
  Kernels name##_of_level();                       \
  }                                                \
  namespace x86_64_v4_bf16 {                       \
  Kernels name##_of_level();                       \
  }                                                \
  namespace Impl {                                 \
  inline Kernels name(HostLevel level) {           \
    switch (level) {                               \
      case HostLevel::x86_64_v3:                   \
        return x86_64_v3::name##_of_level();       \
      case HostLevel::x86_64_v4:                   \
        return x86_64_v4::name##_of_level();       \
      case HostLevel::x86_64_v4_bf16:              \
        return x86_64_v4_bf16::name##_of_level();  \
      case HostLevel::baseline:                    \
        break;                                     \
    }                                              \
    return baseline::name##_of_level();            \
  }                                                \
  }
#else
#define SPOROS_DECLARE_HOST_KERNELS(Kernels, name)                       \
  namespace baseline {                                                   \
  Kernels name##_of_level();                                             \
  }                                                                      \
  namespace Impl {                                                       \
  inline Kernels name(HostLevel) { return baseline::name##_of_level(); } \
  }
#endif

#endif
