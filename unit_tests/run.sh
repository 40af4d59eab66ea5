#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Builds Sporos and runs its tests with two Kokkos: SERIAL with Kokkos Kernels, and OPENMP. Needs no argument and no
# preparation: what this machine lacks comes from a Debian 13 root (see CONTRIBUTING.md). The last line counts the tests.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$repo" || exit 1
source tools/setup.sh

enter_place unit_tests/run.sh "SERIAL OPENMP" "$@"

passed=0
failed=0
for configuration in SERIAL OPENMP; do
  folder=$(build_folder $configuration)
  say "Kokkos $configuration: configure, build and test in ${folder#"$repo"/}"
  # shellcheck disable=SC2046
  if configure "$folder" $(configuration_arguments $configuration) && cmake --build "$folder" -j "$(jobs)"; then
    run_ctest "$folder"
    passed=$((passed + tests_passed))
    failed=$((failed + tests_failed))
  else
    echo "Kokkos $configuration: the build failed"
    failed=$((failed + 1))
  fi
done

say "Both configurations"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
