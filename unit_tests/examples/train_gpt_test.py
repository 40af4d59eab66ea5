# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs train_gpt and generate as a user would: python3 train_gpt_test.py CASE --train TRAIN_GPT --generate GENERATE -- MPIEXEC...

MPIEXEC... is the launcher up to the number of ranks. Every case is a function here; a failed assertion is a failed test.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SMALL = "--tokenizer byte --model custom --layers 2 --heads 2 --width 32 --context 32 --batch-tokens 384 --micro-batch 2 --learning-rate 3e-3".split()
TIME_LIMIT = 120  # of one run; it is a matter of seconds, but the machine may be busy


class Runs:
    """The programs, and a folder in which they work."""

    def __init__(self, arguments, folder):
        self.launcher, self.train_gpt, self.generate_program = arguments.launcher, arguments.train, arguments.generate
        self.folder = folder
        words = random.Random(1)
        vocabulary = ["".join(words.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(words.randint(1, 8))) for _ in range(200)]
        with open(self.path("text.txt"), "w") as file:
            file.write(" ".join(words.choice(vocabulary) for _ in range(6000)))

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, ranks, options, program=None):
        return self.launcher + [str(ranks)] + (program or [self.train_gpt]) + [str(option) for option in options]

    def start(self, ranks, options, program=None):
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OMP_PROC_BIND="false")
        return subprocess.Popen(self.command(ranks, options, program), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                cwd=self.folder, start_new_session=True, env=environment, errors="replace")

    def run(self, ranks, options, program=None):
        """The exit code and all output"""
        process = self.start(ranks, options, program)
        try:
            output, _ = process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"no end after {TIME_LIMIT} s: {self.command(ranks, options)}")
        return process.returncode, output

    def train(self, name, ranks, options, data="text.txt", small=SMALL):
        """Runs to the end; the records of its log"""
        own = ["--data", data, "--log", name + ".jsonl", "--report", name + ".html"] + small
        code, output = self.run(ranks, own + options)
        assert code == 0, f"exit code {code}\n{output}"
        return self.log(name)

    def log(self, name):
        with open(self.path(name + ".jsonl")) as file:
            return [json.loads(line) for line in file]

    @staticmethod
    def log_so_far(path):
        """Of a run that is still writing: the last line may not be whole."""
        with open(path) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def ranks(self):
        """The processes of train_gpt that work in the folder"""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    program = command.read().split(b"\0")[0].decode()
                if program == self.train_gpt and os.path.samefile(f"/proc/{pid}/cwd", self.folder):
                    found.append(int(pid))
            except OSError:
                pass
        return found


def losses(records):
    return {r["step"]: r["loss"] for r in records if r["event"] == "step"}


def final_loss(records):
    (record,) = [r for r in records if r["event"] == "final"]
    return record["validation_loss"]


def checkpoints(folder):
    """The names of the finished ones"""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(name for name in names if name.startswith("step-") and "unfinished" not in name)


def learns(runs):
    """Training and validation loss fall, and all that was asked for is in log, report and checkpoint directory."""
    records = runs.train("learns", 2, "--steps 60 --evaluate-every 20 --sample-every 60 --sample-tokens 40 --checkpoint-every 20 "
                         "--checkpoint-directory learns --keep 2 --print-bigram-baseline".split())
    curve = losses(records)
    assert sorted(curve) == list(range(1, 61))
    assert 5.4 < curve[1] < 5.7, curve[1]  # ln 256 = 5.545 before it has learnt anything
    assert curve[60] < curve[1] - 1
    validation = [r["validation_loss"] for r in records if r["event"] == "evaluation"]
    assert len(validation) == 2 and final_loss(records) < validation[1] < validation[0]
    (final,) = [r for r in records if r["event"] == "final"]
    assert 2 < final["bigram_loss"] < 4
    assert [r["step"] for r in records if r["event"] == "checkpoint"] == [20, 40, 60]
    assert checkpoints(runs.path("learns")) == ["step-000000000040", "step-000000000060"]
    with open(runs.path("learns.html")) as file:
        page = file.read()
    assert page.count("<svg") == 6 and "http" not in page

    code, output = runs.run(2, ["--help", "--kokkos-disable-warnings"])
    assert code == 0 and output.count("--learning-rate") == 1 and "--kokkos-help" not in output, output

    generate = [runs.generate_program, "--checkpoint", "learns", "--prompt", "the ", "--tokens", "50"]
    first = subprocess.run(generate, cwd=runs.folder, capture_output=True, timeout=TIME_LIMIT)
    second = subprocess.run(generate, cwd=runs.folder, capture_output=True, timeout=TIME_LIMIT)
    other = subprocess.run(generate + ["--seed", "2"], cwd=runs.folder, capture_output=True, timeout=TIME_LIMIT)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(b"the ") and len(first.stdout) == 4 + 50 + 1, first.stdout
    assert first.stdout == second.stdout != other.stdout


def accumulation(runs):
    """The same global batch, cut differently, gives the same curve; another seed does not."""
    options = "--steps 8 --precision fp64 --dropout 0.1".split()
    whole = losses(runs.train("whole", 1, options + ["--micro-batch", "12"]))
    for ranks, micro in ((1, 5), (2, 1), (3, 2)):
        parts = losses(runs.train("parts", ranks, options + ["--micro-batch", micro]))
        for step, loss in whole.items():
            assert abs(parts[step] - loss) < 1e-10 * loss, (ranks, micro, step, parts[step], loss)
    assert losses(runs.train("other", 1, options + ["--seed", "2"])) != whole


def killed_and_resumed(runs):
    """SIGKILL in the middle; the run resumed afterwards ends with the bitwise same losses as an unbroken one."""
    for precision in ("fp32", "bf16"):
        options = f"--steps 150 --dropout 0.1 --precision {precision} --checkpoint-every 10".split()
        unbroken = runs.train("unbroken", 2, options + ["--checkpoint-directory", f"unbroken-{precision}"])
        own = options + ["--checkpoint-directory", f"broken-{precision}"]
        process = runs.start(2, ["--data", "text.txt", "--log", "broken.jsonl", "--report", ""] + SMALL + own)
        folder = runs.path(f"broken-{precision}")
        deadline = time.monotonic() + TIME_LIMIT
        while not checkpoints(folder):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline, "no checkpoint"
            time.sleep(0.01)
        time.sleep(0.2)  # some steps further
        os.killpg(process.pid, signal.SIGKILL)
        kill_ranks(process)
        with open(runs.path("broken.jsonl")) as file:
            assert '"final"' not in file.read(), "it was over before it was killed"

        resumed = runs.train("broken", 2, own + ["--resume", "must"])
        (resume,) = [r for r in resumed if r["event"] == "resume"]
        assert 10 <= resume["step"] < 150 and resume["step"] % 10 == 0, resume
        assert losses(resumed) == losses(unbroken)
        assert final_loss(resumed) == final_loss(unbroken)


def kill_ranks(process):
    """Ranks may outlive a killed launcher that put them into groups of their own."""
    process.wait()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cwd/.sporos-test") as marker, open(f"/proc/{pid}/cmdline") as command:
                if marker.read() == str(os.getpid()) and "train_gpt" in command.read():
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass


def stopped(runs):
    """SIGTERM or SIGUSR1 to one rank alone: all end the step, save, and leave with 75; resumed, the curve is the unbroken one."""
    # Steps long enough that the run cannot be over while this process waits for a core
    small = [{"384": "3840"}.get(word, word) for word in SMALL]
    options = "--steps 4000 --checkpoint-every 3999 --checkpoint-directory".split()
    for name, number in (("term", signal.SIGTERM), ("usr1", signal.SIGUSR1)):
        log = runs.path(name + ".jsonl")
        arguments = ["--data", "text.txt", "--log", name + ".jsonl", "--report", ""] + small + options + [name]
        process = runs.start(2, arguments)
        deadline = time.monotonic() + TIME_LIMIT
        while not os.path.exists(log) or len(losses(runs.log_so_far(log))) < 5:
            assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
            time.sleep(0.02)
        os.kill(max(runs.ranks()), number)
        output, _ = process.communicate(timeout=TIME_LIMIT)
        assert process.returncode == 75, (process.returncode, output)
        assert output.count("stopped by a signal") == 1, output
        (stop,) = [r for r in runs.log(name) if r["event"] == "stopped"]
        assert 5 <= stop["step"] < 4000 and stop["step"] == max(losses(runs.log(name))), stop
        assert checkpoints(runs.path(name)) == [f"step-{stop['step']:012}"], output

    # The schedule follows from --steps, so the resumed run has the same; only the first steps after the stop are compared.
    start, end = stop["step"], stop["step"] + 5
    unbroken = runs.start(2, ["--data", "text.txt", "--log", "unbroken.jsonl", "--report", ""] + small + ["--steps", "4000"])
    resumed = runs.start(2, arguments + ["--resume", "must"])
    for process, log in ((unbroken, "unbroken.jsonl"), (resumed, name + ".jsonl")):
        deadline = time.monotonic() + TIME_LIMIT
        while not os.path.exists(runs.path(log)) or max(losses(runs.log_so_far(runs.path(log))), default=0) < end:
            assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
            time.sleep(0.02)
    for process in (unbroken, resumed):
        os.killpg(process.pid, signal.SIGKILL)
        kill_ranks(process)
    curves = [losses(runs.log_so_far(runs.path(log))) for log in ("unbroken.jsonl", name + ".jsonl")]
    assert [curves[0][step] for step in range(1, end + 1)] == [curves[1][step] for step in range(1, end + 1)], (start, end)


def full_disk(runs):
    """Where the second checkpoint does not fit, training ends on all ranks with an error, and the first is whole."""
    if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
        print("a small file system cannot be mounted here")
        sys.exit(77)
    options = "--steps 20 --checkpoint-every 5 --checkpoint-directory disk".split()
    # A checkpoint has 0.7 MB; of the disk's memory nothing is left when its processes are gone.
    for ranks in (2, 3, 4):
        os.makedirs(runs.path("disk"), exist_ok=True)
        inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                  'mount -t tmpfs -o size=1m none disk && "$@"; code=$?; rm -rf kept; cp -r disk kept; exit $code', "sh"]
        command = runs.command(ranks, ["--data", "text.txt", "--log", f"full-{ranks}.jsonl", "--report", ""] + SMALL + options)
        done = subprocess.run(inside + command, cwd=runs.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIME_LIMIT, env=dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"))
        assert done.returncode not in (0, 77) and done.stdout.count("not enough space for a checkpoint") == 1, done.stdout
        assert checkpoints(runs.path("kept")) == ["step-000000000005"], done.stdout
        shutil.copy(runs.path(f"full-{ranks}.jsonl"), runs.path("kept.jsonl"))
        resumed = runs.train("kept", ranks, "--steps 20 --checkpoint-directory kept --resume must".split())
        assert [r["step"] for r in resumed if r["event"] == "resume"] == [5]
        assert sorted(losses(resumed)) == list(range(1, 21))


def mixed(runs):
    """Several sources by weight: the same curve on any number of ranks and after a resume; changed data are refused."""
    for number, name in enumerate(("first.txt", "second.txt")):
        words = random.Random(number)
        with open(runs.path(name), "w") as file:
            file.write(" ".join(words.choice(("one", "two", "three", "seven", "eleven")) for _ in range(3000 - 1000 * number)))
    options = "--steps 12 --precision fp64 --checkpoint-every 6 --checkpoint-directory".split()
    data = "0.7:text:first.txt,0.3:second.txt"
    reference = runs.train("one", 1, options + ["one"], data=data)
    (settings,) = [r for r in reference if r["event"] == "settings"]
    assert "0.7 of first.txt" in dict(settings["run"])["training data"], settings
    shutil.copytree(runs.path("one"), runs.path("half"))
    shutil.rmtree(runs.path("half/step-000000000012"))
    shutil.copy(runs.path("one.jsonl"), runs.path("half.jsonl"))
    for name, ranks, more in (("three", 3, []), ("half", 2, ["--resume", "must"])):
        curve, wanted = losses(runs.train(name, ranks, options + [name] + more, data=data)), losses(reference)
        assert sorted(curve) == sorted(wanted)
        assert all(abs(curve[step] - wanted[step]) < 1e-10 * wanted[step] for step in wanted), (curve, wanted)
    assert losses(runs.train("other", 1, ["--steps", "12", "--precision", "fp64"], data="0.3:first.txt,0.7:second.txt")) != losses(reference)

    def refused(data, *parts, options=options + ["half", "--resume", "must"]):
        code, output = runs.run(2, ["--data", data, "--log", "bad.jsonl", "--report", ""] + SMALL + options)
        assert code != 0 and all(part in output for part in parts), output

    refused("0.6:first.txt,0.4:second.txt", "--data (fingerprint)")
    refused("first.txt", "--data (fingerprint)")
    with open(runs.path("second.txt"), "r+b") as file:
        file.seek(1000)
        file.write(b"#")
    refused(data, "--data (fingerprint)")
    refused("0:first.txt,1:second.txt", "the weight of 0:first.txt is 0")
    refused("-1:first.txt", "the weight of -1:first.txt is -1")
    refused("first.txt,", "has no name")
    refused("first.txt,none.txt", "none.txt")
    refused(data, "--evaluate-every", "one source", options=["--steps", "4", "--evaluate-every", "2"])
    refused(data, "--print-bigram-baseline", options=["--steps", "4", "--print-bigram-baseline"])


def resharded(runs):
    """Saved on two ranks, resumed on one, three and four: the same curve to 1e-6."""
    options = "--steps 40 --dropout 0.1 --checkpoint-every 20 --checkpoint-directory".split()
    reference = runs.train("two", 2, options + ["two"])
    shutil.copytree(runs.path("two"), runs.path("half"))
    shutil.rmtree(runs.path("half/step-000000000040"))
    for ranks in (1, 3, 4):
        shutil.copytree(runs.path("half"), runs.path(f"on-{ranks}"))
        shutil.copy(runs.path("two.jsonl"), runs.path(f"on-{ranks}.jsonl"))
        records = runs.train(f"on-{ranks}", ranks, options + [f"on-{ranks}", "--resume", "must"])
        assert [r["step"] for r in records if r["event"] == "resume"] == [20]
        curve, wanted = losses(records), losses(reference)
        assert sorted(curve) == sorted(wanted)
        for step in range(21, 41):
            assert abs(curve[step] - wanted[step]) < 1e-6 * wanted[step], (ranks, step, curve[step], wanted[step])
        assert abs(final_loss(records) - final_loss(reference)) < 1e-6 * final_loss(reference)


def curve(records):
    """All that a run has computed: equal curves are bitwise equal ones."""
    steps = [(r["step"], r["loss"], r["gradient_norm"]) for r in records if r["event"] == "step"]
    return steps + [(r["step"], r["validation_loss"]) for r in records if r["event"] in ("evaluation", "final")]


def zero(runs):
    """Whatever is shared out over ranks, the losses are the same, and the memory that it takes falls."""
    options = "--steps 6 --dropout 0.1 --clip 0.5 --evaluate-every 3 --sample-every 6 --sample-tokens 3".split()

    def stages(ranks, own):
        records = [runs.train(f"zero-{stage}", ranks, options + own + ["--zero", stage]) for stage in range(4)]
        assert all(r["gradient_norm"] > 0.5 for r in records[0] if r["event"] == "step"), "nothing was clipped"
        return [curve(r) for r in records]

    # One micro-batch a rank: the same additions in the same order.
    for ranks, own in ((3, ["--micro-batch", 4]), (2, ["--micro-batch", 6, "--precision", "bf16", "--recompute"])):
        curves = stages(ranks, own)
        assert curves[0] == curves[1] == curves[2] == curves[3], (ranks, own, curves)
    # Several: gradients that are shared out are summed over the ranks first, others over the micro-batches. Two of five ranks
    # have one micro-batch less.
    curves = stages(5, ["--micro-batch", 1])
    assert curves[0] == curves[1] and curves[2] == curves[3]
    for (step, *values), (_, *others) in zip(curves[0], curves[2]):
        for value, other in zip(values, others):
            assert abs(value - other) < 1e-6 * value, (step, value, other)
    # More ranks than sequences, and tensors with fewer elements than ranks have granules
    assert curve(runs.train("few", 4, options + ["--batch-tokens", 64, "--zero", 3])) == \
        curve(runs.train("few", 4, options + ["--batch-tokens", 64, "--zero", 0]))

    def memory(ranks):
        records = runs.train("memory", ranks, "--steps 1 --layers 1 --width 128 --zero 3".split())
        (record,) = [r for r in records if r["event"] == "memory"]
        return sum(record[kind] for kind in ("parameters", "gradients", "optimizer"))

    whole = memory(1)
    assert whole == 16 * 235392  # fp32: parameter, gradient and two moments; tensors begin at multiples of 64
    for ranks in (2, 4):
        assert whole / ranks <= memory(ranks) < 1.05 * whole / ranks, (ranks, whole, memory(ranks))


def reproducible(runs):
    """The same bits on any number of ranks in any stage, also where both change at a checkpoint."""
    options = "--steps 6 --dropout 0.1 --micro-batch 1 --evaluate-every 3 --reproducible --checkpoint-every 2 --keep 3".split()

    def run(name, ranks, stage, steps=6):
        own = options + ["--checkpoint-directory", name, "--zero", stage]
        return runs.train(name, ranks, own + ["--steps", steps, "--schedule", "constant"])

    reference = curve(run("one", 1, 0))
    for ranks, stage in ((2, 1), (3, 2), (4, 3), (6, 0)):
        records = run(f"on-{ranks}", ranks, stage)
        assert curve(records) == reference, (ranks, stage)
        same_tensors(runs.path("one"), runs.path(f"on-{ranks}"), "step-000000000006")

    run("changing", 4, 3, 2)
    run("changing", 3, 0, 4)
    changed = curve(run("changing", 1, 2))
    assert [c for c in changed if len(c) == 3] == [c for c in reference if len(c) == 3]
    assert changed[-1] == reference[-1]
    same_tensors(runs.path("one"), runs.path("changing"), "step-000000000006")

    # Without the option, rounding depends on the number of ranks.
    options.remove("--reproducible")
    assert curve(run("plain-1", 1, 0)) != curve(run("plain-3", 3, 0))


def same_tensors(one, other, name):
    """Parameters and moments of two checkpoints are equal, byte for byte; compared where h5py is there."""
    try:
        import h5py
    except ImportError:
        return
    with h5py.File(f"{one}/{name}/data.h5") as a, h5py.File(f"{other}/{name}/data.h5") as b:
        tensors = []
        a.visititems(lambda path, item: tensors.append(path) if isinstance(item, h5py.Dataset) else None)
        assert len(tensors) == 3 * 28, tensors
        for tensor in tensors:
            assert a[tensor][()].tobytes() == b[tensor][()].tobytes(), tensor


def bad_input(runs):
    """Each ends with a non-zero exit code on all ranks, within the time limit, and names what is wrong."""
    def refuses(options, *parts, small=SMALL, data="text.txt", ranks=2):
        own = ["--steps", "4", "--log", "bad.jsonl", "--report", ""] + (["--data", data] if data else [])
        code, output = runs.run(ranks, own + small + options)
        assert code not in (0, None), f"accepted: {options}\n{output}"
        for part in parts:
            assert part in output, f"{part!r} is not in the text for {options}:\n{output}"
        assert output.count(parts[0]) == 1, f"said more than once:\n{output}"

    def write(name, content):
        with open(runs.path(name), "wb") as file:
            file.write(content)
        return name

    tokens = lambda *values: b"".join(value.to_bytes(2, "little") for value in values)
    header = lambda magic, version, count: b"".join(v.to_bytes(4, "little") for v in (magic, version, count)) + bytes(1012)
    plain = [option if option != "byte" else "none" for option in SMALL] + ["--vocabulary", "300"]

    refuses([], "--data is missing", data=None)
    refuses([], "missing.txt", data="missing.txt")
    refuses([], "short.txt", data=write("short.txt", b"too short"))
    refuses([], "empty.txt", data=write("empty.txt", b""))
    refuses([], "odd.bin", small=plain, data=write("odd.bin", bytes(1001)))
    refuses([], "magic number 1", "magic.bin", small=plain, data="llmc:" + write("magic.bin", header(1, 1, 500) + tokens(*range(250)) * 2))
    refuses([], "length.bin", small=plain, data=write("length.bin", header(20240520, 1, 501) + tokens(*range(250)) * 2))
    large = write("large.bin", tokens(*([7] * 400 + [300] + [7] * 400)))
    refuses(["--validation-fraction", "0"], "large.bin: token 400 is 300", "300 tokens", small=plain, data="nanogpt:" + large)
    refuses(["--unknown", "3"], "--unknown")
    refuses(["--heads", "3"], "--heads 3", "--width 32")
    refuses(["--sequence-length", "64"], "--sequence-length is 64", "--context 32")
    refuses(["--config", write("bad.toml", b"steps = 3\nlearning_rate = 1\n")], "bad.toml:2", "learning_rate")
    refuses(["--zero", "4"], "--zero is 4", "between 0 and 3")
    refuses(["--resume", "must", "--checkpoint-directory", "none"], "--resume is must", "none")
    refuses(["--log", "/nowhere/log.jsonl"], "/nowhere/log.jsonl")
    refuses(["--checkpoint-every", "2", "--checkpoint-directory", "text.txt/inside"], "text.txt/inside")

    steps_by_rank = 'exec "$0" "$@" --steps $((4 + ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$PMIX_RANK}}))'
    own = ["--data", "text.txt", "--log", "bad.jsonl", "--report", ""] + SMALL
    code, output = runs.run(2, own, program=["sh", "-c", steps_by_rank, runs.train_gpt])
    assert code != 0 and '"5" is "4" there' in output and output.count("other arguments than rank 0") == 1, output

    runs.train("saved", 2, "--steps 4 --checkpoint-every 2 --checkpoint-directory saved".split())
    saved = ["--checkpoint-directory", "saved", "--checkpoint-every", "2", "--resume"]
    refuses(saved + ["must", "--width", "48", "--layers", "1"], "wte.weight", "(256, 32)", "(256, 48)", "h.1.mlp.c_fc.weight")
    refuses(saved + ["must", "--seed", "2"], "--seed was 1 and is 2")
    refuses(saved + ["must"], "--data (fingerprint)", data=write("other.txt", b"another text " * 3000))
    refuses(saved + ["never"], "--resume is never", "step-")

    # A damaged checkpoint is skipped with a message; the one before is taken, or nothing if it must not be without one.
    newest = runs.path("saved/step-000000000004/data.h5")
    with open(newest, "r+b") as file:
        file.seek(os.path.getsize(newest) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    code, output = runs.run(2, ["--data", "text.txt", "--steps", "4", "--log", "saved.jsonl", "--report", ""] + SMALL + saved + ["must"])
    assert code == 0 and output.count("checkpoint skipped") == 1 and "step-000000000002" in output, output
    for name in checkpoints(runs.path("saved")):
        with open(runs.path(f"saved/{name}/data.h5"), "r+b") as file:
            file.truncate(5000)
    refuses(saved + ["must"], "--resume is must", "checkpoint skipped")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--train", required=True)
    parser.add_argument("--generate", required=True)
    parser.add_argument("launcher", nargs="+")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sporos-train-") as folder:
        with open(os.path.join(folder, ".sporos-test"), "w") as marker:
            marker.write(str(os.getpid()))
        CASES[arguments.case](Runs(arguments, folder))


CASES = {function.__name__: function for function in (learns, accumulation, killed_and_resumed, stopped, full_disk, mixed, resharded, zero,
                                                      reproducible, bad_input)}

if __name__ == "__main__":
    sys.exit(main())
