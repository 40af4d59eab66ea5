#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: check_level_symbols.sh LEVEL=OBJECT,OBJECT...
# Fails on a symbol that an object of an instruction-set level defines outside that level's namespace: the linker would
# keep one such function of all levels, and a baseline machine might run the AVX-512 one.
set -euo pipefail
status=0
checked=0
for argument in "$@"; do
  level=${argument%%=*}
  IFS=, read -ra objects <<<"${argument#*=}"
  for object in "${objects[@]}"; do
    checked=$((checked + 1))
    # A mangled name holds a namespace as its length and itself. DW.ref. is where exception tables find their handler.
    strays=$(nm --defined-only "$object" | grep -E ' [TWVuBDRi] ' | grep -v -e "${#level}$level" -e ' DW\.ref\.' || true)
    if [ -n "$strays" ]; then
      printf '%s defines symbols outside the namespace of its level, %s:\n%s\n' "$object" "$level" "$(c++filt <<<"$strays")"
      status=1
    fi
  done
done
[ "$checked" -gt 0 ] || { echo "no object was given" && exit 2; }
echo "$checked objects checked"
exit $status
