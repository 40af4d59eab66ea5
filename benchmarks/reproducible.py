#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What --reproducible costs: tokens per second of train_gpt with it and without, in turn. Prints one JSON line; append it to
results/<machine>/reproducible.jsonl.

  reproducible.py [--rounds 4] [--commit HASH] TRAIN_GPT LAUNCHER...     e.g. reproducible.py build/examples/train_gpt mpirun -n 2
"""
import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import tempfile

CASE = {"layers": 4, "heads": 4, "width": 128, "context": 128, "batch-tokens": 1536, "micro-batch": 1, "steps": 25}
WARM_UP = 5  # steps


def throughput(folder, command):
    log = os.path.join(folder, "log.jsonl")
    subprocess.run(command + ["--data", os.path.join(folder, "text.txt"), "--log", log, "--report", ""], check=True,
                   stdout=subprocess.DEVNULL, cwd=folder)
    with open(log) as file:
        steps = [record for record in map(json.loads, file) if record["event"] == "step"]
    os.remove(log)
    return statistics.median(step["tokens_per_second"] for step in steps[WARM_UP:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--commit", default="")
    parser.add_argument("train_gpt")
    parser.add_argument("launcher", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    options = ["--tokenizer", "byte", "--model", "custom"] + [str(word) for name, value in CASE.items() for word in ("--" + name, value)]
    command = arguments.launcher + [os.path.abspath(arguments.train_gpt)] + options
    rates = {"plain": [], "reproducible": []}
    with tempfile.TemporaryDirectory() as folder:
        words = random.Random(1)
        with open(os.path.join(folder, "text.txt"), "w") as file:
            file.write(" ".join("".join(words.choice("abcdefgh") for _ in range(5)) for _ in range(40000)))
        for _ in range(arguments.rounds):
            rates["plain"].append(throughput(folder, command))
            rates["reproducible"].append(throughput(folder, command + ["--reproducible"]))
    ours, plain = statistics.median(rates["reproducible"]), statistics.median(rates["plain"])
    print(json.dumps({"program": "reproducible", "case": CASE, "metric": "throughput", "unit": "tokens/s", "ours": round(ours, 1),
                      "peers": {"without --reproducible": round(plain, 1)}, "ratio": round(ours / plain, 3),
                      "date": datetime.date.today().isoformat(), "command": " ".join(arguments.launcher + ["train_gpt"] + options),
                      "commit": arguments.commit}))


if __name__ == "__main__":
    main()
