# shellcheck shell=bash
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Read by unit_tests/run.sh, examples/quickstart.sh and .ci/run: finds a place where Sporos builds, and builds it there.
# The caller has set: repo (the repository's folder).

say() { printf '\n== %s\n' "$*"; }

# What a configuration is given to CMake. In the root, the OPENMP Kokkos has a prefix of its own; elsewhere the
# environment may name a prefix for either.
configuration_arguments() {
  case ${SPOROS_ROOT:-}/$1 in
    main/OPENMP) echo -DKokkos_ROOT=/opt/kokkos-openmp ;;
    /SERIAL) echo ${SPOROS_KOKKOS_SERIAL:+-DKokkos_ROOT=$SPOROS_KOKKOS_SERIAL} ;;
    /OPENMP) echo ${SPOROS_KOKKOS_OPENMP:+-DKokkos_ROOT=$SPOROS_KOKKOS_OPENMP} ;;
  esac
  if [ "$1" = SERIAL ]; then
    echo -DSPOROS_ENABLE_KOKKOSKERNELS=ON
  elif [ "${SPOROS_ROOT:-}" = main ]; then
    echo -DSPOROS_ENABLE_KOKKOSKERNELS=OFF # the root's Kokkos Kernels belong to its SERIAL Kokkos
  fi
}

# What this machine lacks for configuration $1, one thing a line; nothing if it has all.
missing_for() {
  local folder=$repo/build/probe-$1 tool
  for tool in cmake c++ ninja; do
    command -v $tool >/dev/null || { echo "$tool (Debian: cmake g++ ninja-build)" && return; }
  done
  rm -rf "$folder"
  # shellcheck disable=SC2046
  if ! cmake -S "$repo/cmake/probe" -B "$folder" -G Ninja -DBACKEND="$1" $(configuration_arguments "$1") >"$repo/build/probe-$1.log" 2>&1; then
    echo "a CMake from 3.25 and a C++20 compiler that work together (see build/probe-$1.log)"
    return
  fi
  cat "$folder/missing.txt"
}

# enter_place SCRIPT CONFIGURATIONS ARGUMENT...: comes back where all configurations can be built; if this machine cannot,
# runs the script anew inside the Debian root instead.
enter_place() {
  local script=$1 configurations=$2 configuration lacking
  shift 2
  [ "${SPOROS_ROOT:-}" = main ] && return
  mkdir -p "$repo/build"
  say "Looking for Kokkos, Kokkos Kernels, MPI, parallel HDF5 and Catch2 on this machine"
  lacking=$(for configuration in $configurations; do missing_for "$configuration"; done | grep . | awk '!seen[$0]++ { print "  - " $0 }')
  if [ -z "$lacking" ]; then
    echo "All there."
    return
  fi
  printf 'Not there:\n%s\n' "$lacking"
  say "Building in a Debian 13 root instead (tools/debian-root; this machine stays as it is)"
  "$repo/tools/debian-root" make || {
    echo
    echo "Sporos can be built neither with what this machine has (the list above) nor in the root (the message above)."
    exit 1
  }
  exec "$repo/tools/debian-root" run bash "$script" "$@"
}

# Where configuration $1 is built, with an optional kind.
build_folder() {
  local place=native
  [ -n "${SPOROS_ROOT:-}" ] && place=root
  echo "$repo/build/$place-${1,,}${2:+-$2}"
}

# configure FOLDER CMAKE_ARGUMENT...
configure() {
  local folder=$1 launcher=()
  shift
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # In CI a warning is an error; a user's compiler may know warnings that ours does not.
  cmake -S "$repo" -B "$folder" -G Ninja "${launcher[@]}" ${CI:+-DSPOROS_ENABLE_WARNINGS_AS_ERRORS=ON} "$@" >"$folder.log" 2>&1 || {
    cat "$folder.log"
    return 1
  }
  sed -n '/^-- Sporos/,/^--/p' "$folder.log" | sed '$d'
}

# How many compilers or tests run side by side: each may take some 2 GB.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ { print int($2 / 2000000) }' /proc/meminfo)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

# run_ctest FOLDER CTEST_ARGUMENT...: runs the tests; sets tests_passed and tests_failed.
run_ctest() {
  local folder=$1 line temporary
  shift
  tests_passed=0
  tests_failed=1
  # What a killed mpirun leaves in its temporary folder would stop a later one that has the same process number.
  temporary=$(mktemp -d)
  TMPDIR=$temporary ctest --test-dir "$folder" --output-on-failure -j "$(jobs)" "$@" 2>&1 | tee "$folder.ctest.log" | grep -v '^ *Start '
  rm -rf "$temporary"
  line=$(grep -E 'tests passed, [0-9]+ tests failed out of [0-9]+' "$folder.ctest.log" | tail -n 1)
  if [ -z "$line" ]; then
    echo "ctest ran no test (see $folder.ctest.log)"
    return
  fi
  tests_failed=$(sed -E 's/.* ([0-9]+) tests failed.*/\1/' <<<"$line")
  tests_passed=$(($(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$line") - tests_failed))
}
