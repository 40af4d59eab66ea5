// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef SPOROS_HOSTLEVEL_HPP
#define SPOROS_HOSTLEVEL_HPP

#include <string>
#include <vector>

// The levels that are compiled: 0 baseline, 1 ... x86_64_v3, 2 ... x86_64_v4, 3 ... x86_64_v4_bf16 (CMake:
// SPOROS_HIGHEST_HOST_LEVEL)
#if !defined(__x86_64__)
#undef SPOROS_HIGHEST_HOST_LEVEL
#define SPOROS_HIGHEST_HOST_LEVEL 0
#elif !defined(SPOROS_HIGHEST_HOST_LEVEL)
#define SPOROS_HIGHEST_HOST_LEVEL 3
#endif

#if SPOROS_HIGHEST_HOST_LEVEL >= 1
#define SPOROS_AT_V3(...) __VA_ARGS__
#else
#define SPOROS_AT_V3(...)
#endif
#if SPOROS_HIGHEST_HOST_LEVEL >= 2
#define SPOROS_AT_V4(...) __VA_ARGS__
#else
#define SPOROS_AT_V4(...)
#endif
#if SPOROS_HIGHEST_HOST_LEVEL >= 3
#define SPOROS_AT_V4_BF16(...) __VA_ARGS__
#else
#define SPOROS_AT_V4_BF16(...)
#endif

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
#define SPOROS_DECLARE_HOST_KERNELS(Kernels, name)                                                       \
  namespace baseline {                                                                                   \
  Kernels name##_of_level();                                                                             \
  }                                                                                                      \
  SPOROS_AT_V3(namespace x86_64_v3 { Kernels name##_of_level(); })                                       \
  SPOROS_AT_V4(namespace x86_64_v4 { Kernels name##_of_level(); })                                       \
  SPOROS_AT_V4_BF16(namespace x86_64_v4_bf16 { Kernels name##_of_level(); })                             \
  namespace Impl {                                                                                       \
  inline Kernels name([[maybe_unused]] HostLevel level) {                                                \
    SPOROS_AT_V3(if (level == HostLevel::x86_64_v3) return x86_64_v3::name##_of_level();)                \
    SPOROS_AT_V4(if (level == HostLevel::x86_64_v4) return x86_64_v4::name##_of_level();)                \
    SPOROS_AT_V4_BF16(if (level == HostLevel::x86_64_v4_bf16) return x86_64_v4_bf16::name##_of_level();) \
    return baseline::name##_of_level();                                                                  \
  }                                                                                                      \
  }

#endif
