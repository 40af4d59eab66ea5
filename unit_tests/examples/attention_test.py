# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs `attention` as a user does: python3 attention_test.py ATTENTION"""

import re
import subprocess
import sys

LINE = re.compile(r"(forward|backward) +([\d.]+) ms +([\d.]+) TFLOP/s +largest error in \d+ rows of (O|dQ) (\S+), of plain attention (\S+)$")


def run(*options):
    return subprocess.run([sys.argv[1], *options], capture_output=True, text=True, timeout=120)


def check(dtype, *options, flops):
    done = run("--dtype", dtype, "--seconds", "0.02", "--backward", *options)
    lines = [LINE.match(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and all(lines), done
    assert [line[1] for line in lines] == ["forward", "backward"] and [line[4] for line in lines] == ["O", "dQ"], done
    for line, work in zip(lines, (flops, 2.5 * flops)):
        rate = work / float(line[2]) / 1e9
        assert abs(rate - float(line[3])) <= 0.0006 + 0.001 * rate, (line[0], rate)
        assert 0 < float(line[5]) <= 2 * float(line[6]), line[0]


for dtype in ("float32", "float16", "bfloat16"):
    check(dtype, "--batch=2", "--heads=6", "--kv-heads=2", "--sequence=333", "--head-dim=64", flops=4 * 2 * 6 * 333**2 * 64)
    check(dtype, "--heads=4", "--sequence=257", "--head-dim=128", "--causal", "--repeatable", flops=2 * 4 * 257**2 * 128)

bad = run("--heads", "6", "--kv-heads", "4", "--sequence", "64")
assert bad.returncode == 2 and "q has 6 heads, k has 4" in bad.stderr, bad
bad = run("--dtype", "float8")
assert bad.returncode != 0 and "float8" in bad.stderr + bad.stdout, bad
