// SPDX-FileCopyrightText: The Sporos authors
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "impl/Sporos_HostLevel.hpp"

#include <algorithm>
#include <cstdlib>

#include "Sporos_Error.hpp"

namespace Sporos::Impl {
namespace {

HostLevel chosen_host_level() {
  std::vector<HostLevel> const supported = supported_host_levels();
  char const* const wanted = std::getenv("SPOROS_HOST_LEVEL");
  if (!wanted || !*wanted) return supported.back();

  auto const found =
      std::find_if(supported.begin(), supported.end(), [&](HostLevel level) { return name_of(level) == wanted; });
  std::string names;
  for (HostLevel level : supported) names += (names.empty() ? "" : ", ") + name_of(level);
  SPOROS_THROW_INPUT_ERROR_IF(found == supported.end(), "the environment variable SPOROS_HOST_LEVEL is \"", wanted,
                              "\"; this processor can run ", names);
  return *found;
}

}  // namespace

std::string name_of(HostLevel level) {
  switch (level) {
    case HostLevel::baseline:
      return "baseline";
    case HostLevel::x86_64_v3:
      return "x86_64_v3";
    case HostLevel::x86_64_v4:
      return "x86_64_v4";
    case HostLevel::x86_64_v4_bf16:
      return "x86_64_v4_bf16";
  }
  return "unknown";
}

std::vector<HostLevel> supported_host_levels() {
  std::vector<HostLevel> levels{HostLevel::baseline};
#if SPOROS_HIGHEST_HOST_LEVEL > 0 && !defined(__HIP_DEVICE_COMPILE__)  // where these builtins are errors, called or not
  // The names of the levels are younger than some compilers we support. Every processor that has these of a level has the
  // rest of it.
  __builtin_cpu_init();
  [[maybe_unused]] bool const v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  [[maybe_unused]] bool const v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  SPOROS_AT_V3(if (v3) levels.push_back(HostLevel::x86_64_v3);)
  SPOROS_AT_V4(if (v4) levels.push_back(HostLevel::x86_64_v4);)
  SPOROS_AT_V4_BF16(if (v4 && __builtin_cpu_supports("avx512bf16")) levels.push_back(HostLevel::x86_64_v4_bf16);)
#endif
  return levels;
}

HostLevel best_host_level() {
  static HostLevel const level = chosen_host_level();
  return level;
}

}  // namespace Sporos::Impl
