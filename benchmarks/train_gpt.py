#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tokens per second of train_gpt beside the same work in PyTorch, on the same cores in the same run.

    benchmarks/train_gpt.py --train-gpt build/root-serial/examples/train_gpt \\
        --train-gpt-threads build/root-openmp/examples/train_gpt \\
        --python python3 --python "env PYTHONPATH=/opt/torch-2.15 python3"

Ours and every PyTorch, eager and compiled, take turns for some rounds; the figure of each is the median over the rounds of
its median step. On several cores ours runs as so many MPI ranks (--train-gpt) and, if given, as so many threads of one
rank (--train-gpt-threads, built with the OPENMP back end); PyTorch uses threads. Ours reads its data from a file and logs
every step; PyTorch gets one batch that lies in memory.

Lines are appended to benchmarks/results/<machine>/train_gpt.jsonl. `limit` is the rate at
which a step would run if it were nothing but matrix products at the speed of the fastest 1024³ product of any PyTorch.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PEER = REPOSITORY / "benchmarks" / "peers" / "train_gpt_torch.py"

# Name: layers, heads, width, context, sequences in a step. The first is that of examples/quickstart.sh.
MODELS = {"quickstart": (4, 4, 128, 128, 16), "small": (4, 4, 256, 256, 8)}
VOCABULARY = 256
WARMUP_STEPS = 3
# A PyTorch without bf16 kernels needs ten seconds for a step; it need not do as many as the others.
SECONDS_PER_ROUND = 6


def environment(threads):
    result = dict(os.environ)
    # They pin OpenBLAS to another processor's kernels, where they are set: for ours and for the peers the library chooses.
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        result.pop(name, None)
    result.update(OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
                  OMP_PROC_BIND="false", OMPI_MCA_mpi_yield_when_idle="1")
    return result


def machine_name():
    """From the processor and the cores: results of different machines must not be mixed."""
    model = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    words = re.sub(r"\(.*?\)|@.*|\bCPU\b|\bProcessor\b", " ", model.group(1) if model else "unknown")
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    level = "avx512" if " avx512f " in flags else "avx2" if " avx2 " in flags else "sse"
    return "-".join(words.lower().split() + [level, f"{len(os.sched_getaffinity(0))}-cores"])


class Ours:
    def __init__(self, program, work, model, precision, cores, as_threads):
        layers, heads, width, context, sequences = MODELS[model]
        self.threads = cores if as_threads else 1
        self.ranks = 1 if as_threads else cores
        self.log = work / "log.jsonl"
        self.program = program
        self.launcher = [] if self.ranks == 1 else ["mpirun", "-n", str(self.ranks), "--bind-to", "none"]
        self.arguments = {
            "--tokenizer": "byte", "--validation-fraction": "0", "--evaluate-every": "0", "--model": "custom",
            "--layers": layers, "--heads": heads, "--width": width, "--context": context,
            "--batch-tokens": sequences * context, "--micro-batch": sequences // self.ranks,
            "--warmup-steps": 0, "--precision": precision}
        self.data = work / "data.txt"
        self.settings = {}

    def command(self, steps, program, data, log):
        words = [*self.launcher, program, "--data", f"text:{data}"]
        for name, value in self.arguments.items():
            words += [name, str(value)]
        return words + ["--steps", str(steps), "--log", str(log), "--report", ""]

    def run(self, steps):
        command = self.command(WARMUP_STEPS + steps, self.program, self.data, self.log)
        done = subprocess.run(command, env=environment(self.threads), capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
        records = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.settings = dict(next(r for r in records if r["event"] == "settings")["run"])
        seconds = [r["seconds"] for r in records if r["event"] == "step"]
        return seconds[WARMUP_STEPS:]

    def shown_command(self, steps):
        """Without this machine's paths"""
        return shlex.join(self.command(steps, "train_gpt", "data.txt", "log.jsonl"))


class Peer:
    def __init__(self, python, mode, model, precision, cores):
        layers, heads, width, context, sequences = MODELS[model]
        command = [*shlex.split(python), str(PEER), "--threads", cores, "--precision", precision, "--mode", mode,
                   "--vocabulary", VOCABULARY, "--layers", layers, "--heads", heads, "--width", width,
                   "--context", context, "--sequences", sequences]
        self.process = subprocess.Popen([str(word) for word in command], env=environment(cores), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.about = self.read()
        self.name = f"PyTorch {self.about['torch'].split('+')[0]}, {mode}"

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{shlex.join(self.process.args)} failed:\n{self.process.communicate()[1]}")
        return json.loads(line)

    def run(self, steps):
        self.process.stdin.write(f"{steps} {SECONDS_PER_ROUND}\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def commit():
    git = ["git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True).stdout
    return head + ("-changed" if changed.strip() else "")


def flops_per_token(model, parameters):
    """Of the matrix products, forward and backward: 6 for each weight, 6 · context · width a layer for causal attention"""
    layers, _, width, context, _ = MODELS[model]
    weights = parameters - context * width  # positions are added, not multiplied
    return 6 * weights + 6 * layers * context * width


def measure(options, work, model, precision, cores):
    layers, heads, width, context, sequences = MODELS[model]
    ours = [Ours(options.train_gpt, work, model, precision, cores, False)]
    if cores > 1 and options.train_gpt_threads:
        ours.append(Ours(options.train_gpt_threads, work, model, precision, cores, True))
    peers = []
    try:
        for python in options.python:
            for mode in options.modes:
                try:
                    peers.append(Peer(python, mode, model, precision, cores))
                except RuntimeError as error:
                    # A compiler may be missing for one mode of one PyTorch; the line then says who took part.
                    print(f"left out: {python}, {mode}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        times = {competitor: [] for competitor in ours + peers}
        for _ in range(options.rounds):
            for competitor in times:
                times[competitor].append(statistics.median(competitor.run(options.steps)))
    finally:
        for peer in peers:
            peer.close()

    parameters = int(ours[0].settings["parameters"])
    for peer in peers:
        if peer.about["parameters"] != parameters:
            raise RuntimeError(f"{peer.name} has {peer.about['parameters']} parameters, train_gpt {parameters}")
    rate = {c: sequences * context / statistics.median(medians) for c, medians in times.items()}
    spread = {c: (max(medians) - min(medians)) / statistics.median(medians) for c, medians in times.items()}
    limit = {}
    if peers:
        best = max(peer.about["matmul_gflops"] for peer in peers)
        limit["matrix products alone"] = round(best * 1e9 / flops_per_token(model, parameters), 1)
    lines = []
    for one in ours:
        line = {
            "program": "train_gpt",
            "case": {"model": model, "layers": layers, "heads": heads, "width": width, "context": context,
                     "vocabulary": VOCABULARY, "sequences": sequences, "parameters": parameters,
                     "precision": precision, "cores": cores, "ranks": one.ranks, "threads": one.threads},
            "metric": "throughput", "unit": "tokens/s", "ours": round(rate[one], 1),
            "peers": {peer.name: round(rate[peer], 1) for peer in peers}, "limit": limit,
            "ratio": round(rate[one] / max(rate[peer] for peer in peers), 3) if peers else None,
            "date": datetime.date.today().isoformat(),
            "versions": {"Sporos": one.settings["version"], "execution space": one.settings["execution space"],
                         "Python": ".".join(map(str, sys.version_info[:3]))},
            "command": one.shown_command(WARMUP_STEPS + options.steps), "commit": options.commit}
        lines.append(line)
        print(f"{model:10} {precision} {cores} core(s), {one.ranks} rank(s) x {one.threads} thread(s): "
              f"{line['ours']:9.0f} tokens/s, ratio {line['ratio']}, spread {max(spread[c] for c in [one, *peers]):.0%}; "
              + ", ".join(f"{name} {figure:.0f}" for name, figure in line["peers"].items()), flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-gpt", required=True, help="the program; one rank for each core")
    parser.add_argument("--train-gpt-threads", help="the program built with OPENMP; one thread for each core")
    parser.add_argument("--python", action="append", default=[], help="command of a Python with PyTorch; repeatable")
    parser.add_argument("--modes", nargs="+", default=["eager", "compile"], choices=("eager", "compile"))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=("fp32", "bf16"))
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=15, help="of each competitor in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--machine", default=machine_name(), help="name of the folder of results [%(default)s]")
    options = parser.parse_args()
    options.commit = commit()

    results = REPOSITORY / "benchmarks" / "results" / options.machine / "train_gpt.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "data.txt").write_bytes(random.Random(1).randbytes(1 << 20))
        for model in options.models:
            for precision in options.precisions:
                for cores in options.cores:
                    lines = measure(options, work, model, precision, cores)
                    with results.open("a") as file:
                        file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
