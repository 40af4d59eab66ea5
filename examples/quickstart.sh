#!/usr/bin/env bash
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# From a bare clone to a trained model: builds Sporos, trains a small GPT on the Jargon File with two MPI ranks, kills the
# run half-way without warning, resumes it from its last checkpoint, and lets the model write. Needs no argument and no
# preparation; about eight minutes on two cores, half of them training.
# SPOROS_QUICKSTART_STEPS sets the number of training steps.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$repo"
source tools/setup.sh

enter_place examples/quickstart.sh SERIAL "$@"

steps=${SPOROS_QUICKSTART_STEPS:-1200}
run=$repo/build/quickstart
rm -rf "$run"
mkdir -p "$run"

build=$(build_folder SERIAL)
say "Building train_gpt and generate in ${build#"$repo"/}"
# shellcheck disable=SC2046
configure "$build" $(configuration_arguments SERIAL)
cmake --build "$build" -j "$(jobs)" --target train_gpt generate

# The text: the Jargon File, version 4.4.7, in the public domain; Debian's package jargon-text.
say "The text: the Jargon File (Debian package jargon-text, public domain)"
packed=/usr/share/doc/jargon-text/jargon.txt.gz
if [ ! -e $packed ]; then
  (cd "$run" && apt-get -qq download jargon-text && dpkg -x jargon-text_*.deb text) || {
    echo "The package jargon-text is not installed and apt-get cannot fetch it. Get it with: apt-get install jargon-text" >&2
    exit 1
  }
  packed=$run/text$packed
fi
# Without the list of headwords at the start of the glossary, the indentation, and what is not ASCII.
gzip -dc "$packed" | awk '/^Glossary$/ { index_list = 1 } /^ *:[^ ]/ { index_list = 0 } !index_list { sub(/^ +/, ""); print }' |
  iconv -f UTF-8 -t ASCII//TRANSLIT | sed '/????/d' >"$run/jargon.txt"
size=$(stat -c %s "$run/jargon.txt")
[ "$size" -ge 1000000 ] || { echo "$run/jargon.txt has only $size bytes; 1.5 MB were expected" >&2 && exit 1; }
echo "$size bytes in ${run#"$repo"/}/jargon.txt, the last tenth of them kept for validation"

train=(mpirun -n 2 --bind-to none "$build/examples/train_gpt"
  --data "text:$run/jargon.txt" --validation-fraction 0.1 --tokenizer byte
  --model custom --layers 4 --heads 4 --width 128 --context 128 --batch-tokens 2048 --micro-batch 8
  --steps "$steps" --learning-rate 2e-3 --warmup-steps $((steps / 20)) --dropout 0.05 --seed 1
  --evaluate-every $((steps / 6 > 0 ? steps / 6 : 1)) --evaluate-batches 10
  --checkpoint-every $((steps / 10 > 0 ? steps / 10 : 1)) --checkpoint-directory "$run/checkpoints"
  --log "$run/log.jsonl" --report "$run/report.html" --print-bigram-baseline)
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OMP_PROC_BIND=false OMPI_MCA_mpi_yield_when_idle=1

# All processes below $1, itself included.
family() {
  local child
  echo "$1"
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do family "$child"; done
}

# What the killed mpirun leaves in its temporary folder would stop a later one that has the same process number.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

say "Training on two ranks; to be killed half-way"
"${train[@]}" --resume never &
mpirun_pid=$!
# A checkpoint after the middle must have been committed, so that the resumed run has something to start from.
while kill -0 $mpirun_pid 2>/dev/null; do
  step=$(grep '"event":"checkpoint"' "$run/log.jsonl" 2>/dev/null | tail -n 1 | sed -nE 's/.*"step":([0-9]+).*/\1/p') || true
  if [ "${step:-0}" -ge $((steps / 2)) ]; then break; fi
  sleep 0.2
done
# shellcheck disable=SC2046
kill -KILL $(family $mpirun_pid) 2>/dev/null || { echo "the training ended before it could be killed" >&2 && exit 1; }
wait $mpirun_pid 2>/dev/null || true

say "Killed with SIGKILL at about step ${step:-?}, on purpose. Resuming from the last checkpoint"
"${train[@]}" --resume must

say "What the model writes (300 characters)"
"$build/examples/generate" --checkpoint "$run/checkpoints" --prompt ":hacker: n. " --tokens 300 --temperature 0.7 --seed 1

say "Done"
echo "curves      ${run#"$repo"/}/report.html (opens in any browser)"
echo "checkpoint  ${run#"$repo"/}/checkpoints"
echo "log         ${run#"$repo"/}/log.jsonl"
