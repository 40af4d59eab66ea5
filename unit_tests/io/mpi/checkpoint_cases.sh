#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# checkpoint_cases.sh CASE PROGRAM MPIEXEC NUMPROC_FLAG [PREFLAG...]
# What checkpoints must stand that a test inside one MPI job cannot do. Ends with 77 where the machine lacks what it takes.
set -euo pipefail
case=$1 program=$2
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mpiexec=$1 number_flag=$2
shift 2
preflags=("$@")

ranks() {
  local number=$1
  shift
  timeout 100 "$mpiexec" "$number_flag" "$number" "${preflags[@]}" "$program" "$@"
}

directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

h5py() {
  python3 -c 'import h5py, numpy' || { echo "python3 has no h5py"; exit 77; }
  local number
  for number in 1 3; do
    ranks "$number" write "$directory/$number"
    python3 "$here/checkpoint_with_h5py.py" "$directory/$number/step-000000000012"
  done
}

h5dump() {
  type -P h5dump >/dev/null || { echo "there is no h5dump"; exit 77; }
  ranks 3 write "$directory/3"
  python3 "$here/checkpoint_with_h5dump.py" "$directory/3/step-000000000012"
}

# By default the smallest part of a rank that takes more than 2^31 bytes in three arrays of fp32.
large() {
  local number=${SPOROS_TEST_LARGE_RANKS:-1}
  ranks "$number" large "$directory/large" "${SPOROS_TEST_LARGE_ELEMENTS:-178956971}"
}

fill() {
  local number mode
  for number in 2 3 4; do
    for mode in reserve plain; do
      mkdir -p "$directory/$number-$mode"
      echo "$number ranks, $mode"
      "$1" "$number" "$directory/$number-$mode" "$mode"
    done
  done
}

fill_tmpfs() { mount -t tmpfs -o size=20m none "$2" && ranks "$1" fill "$2" "$3" && umount "$2"; }

full_disk() {
  if [ "${SPOROS_TEST_OWN_MOUNTS:-}" = yes ]; then
    fill fill_tmpfs
  elif unshare --mount true 2>/dev/null; then
    SPOROS_TEST_OWN_MOUNTS=yes unshare --mount "$0" full_disk "$program" "$mpiexec" "$number_flag" "${preflags[@]}"
  elif unshare --user --map-root-user --mount true 2>/dev/null; then
    SPOROS_TEST_OWN_MOUNTS=yes unshare --user --map-root-user --mount "$0" full_disk "$program" "$mpiexec" "$number_flag" "${preflags[@]}"
  else
    echo "a small file system cannot be mounted here"
    exit 77
  fi
}

"$case"
