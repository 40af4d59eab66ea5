# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What checkpoints must stand that takes many MPI jobs: python3 checkpoint_faults.py CASE PROGRAM MPIEXEC...

PROGRAM is sporos_test_checkpoint_program, MPIEXEC... the launcher up to the number of ranks. Exit code 77: it cannot be tried here.
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

TIME_LIMIT = 30  # of one job, in seconds; each takes less than one

# Where a save may be killed. Those of the second row rank 0 alone comes to.
PLACES = ("start", "directory made", "space reserved", "piece", "pieces written", "data closed", "data verified",
          "committed", "old ones removed")
PLACES_OF_RANK_0 = ("manifest written", "renamed", "old one renamed")


def command(ranks, *arguments):
    return MPIEXEC + [str(ranks), PROGRAM] + [str(argument) for argument in arguments]


def run(ranks, *arguments):
    """The exit code and all output of a job that must end"""
    done = subprocess.run(command(ranks, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=TIME_LIMIT, errors="replace")
    return done.returncode, done.stdout


def committed(directory):
    try:
        numbers = pathlib.Path(f"{directory}.committed").read_text().split()
    except FileNotFoundError:
        return 0
    return int(numbers[-1]) if numbers else 0


def fail_if_refused(output):
    """A rank that was killed says nothing; what the program says is that a checkpoint was not as it must be."""
    assert "checkpoint_program:" not in output, output


def kill_at_random(ranks, directory, generator):
    """Starts a job, kills one of its ranks some time after its first commit, and waits for its end."""
    victim_file = pathlib.Path(f"{directory}.process-{generator.randrange(ranks)}")
    victim_file.unlink(missing_ok=True)
    before = committed(directory)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        job = subprocess.Popen(command(ranks, "crash", directory), stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + TIME_LIMIT
        while committed(directory) == before and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(generator.uniform(0, 0.06))
        if job.poll() is None:
            os.kill(int(victim_file.read_text()), 9)
        job.wait(TIME_LIMIT)
        output.seek(0)
        fail_if_refused(output.read())
    assert job.returncode != 0
    assert committed(directory) > before


def killed(folder):
    """Whatever rank dies wherever in a save, the next job finds a whole checkpoint, none older than the last reported."""
    seed = time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    generator = random.Random(seed)
    kills = 0
    for ranks in (2, 3):
        directory = folder / f"at-places-{ranks}"
        victims = [(rank, place) for place in PLACES for rank in (0, ranks - 1)]
        victims += [(0, place) for place in PLACES_OF_RANK_0]
        for rank, place in generator.sample(victims, len(victims) if ranks == 2 else 9):
            # There must be an old one to be removed, which the second save of a job always has.
            code, output = run(ranks, "crash", directory, rank, place, generator.randint(2, 5))
            fail_if_refused(output)
            assert code != 0, (rank, place, output)
            kills += 1
    for ranks, times in ((2, 8), (3, 8), (4, 6)):
        for _ in range(times):
            kill_at_random(ranks, folder / f"at-random-{ranks}", generator)
            kills += 1
    # The last job of each directory has left something to be found, too; on other numbers of ranks.
    for directory, ranks in (("at-places-2", 3), ("at-places-3", 1), ("at-random-2", 1), ("at-random-4", 2)):
        code, output = run(ranks, "crash", folder / directory, 0, "start", 1)
        fail_if_refused(output)
    assert kills >= 50, kills
    print(f"{kills} kills, {committed(folder / 'at-random-2')} commits in the longest chain")


def deadline(folder):
    """A file system that hangs: the job ends with exit code 75 instead of never. The first rank to leave may take the others along
    before they have said why."""
    code, output = run(2, "slow", folder / "c")
    assert code == 75, (code, output)
    assert "goes on after" in output, output
    assert not [path for path in (folder / "c").iterdir() if "unfinished" not in path.name], output


def other_file_system(folder):
    """Where the directory of one rank is on another file system, saving and reading are errors, and nothing starts anew."""
    if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], stderr=subprocess.DEVNULL).returncode:
        print("a file system cannot be mounted here")
        sys.exit(77)
    directory = folder / "c"
    code, output = run(2, "write", directory)
    assert code == 0, output
    # Not as two programs of one job: mpirun of Open MPI 5.0.7 crashes at a colon.
    wrapper = """
        if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$PMIX_RANK}}" = 0 ]; then exec "$0" "$@"; fi
        exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none "$2" && exec "$0" "$@"' "$0" "$@"
        """
    for action, part in (("write", "cannot write to"), ("check", "all ranks must see the same directory")):
        done = subprocess.run(MPIEXEC + ["2", "sh", "-c", wrapper, PROGRAM, action, str(directory)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIME_LIMIT)
        assert done.returncode != 0 and part in done.stdout, (action, done.stdout)


CASES = {function.__name__: function for function in (killed, deadline, other_file_system)}

if __name__ == "__main__":
    case, PROGRAM, *MPIEXEC = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="sporos-faults-") as folder:
        CASES[case](pathlib.Path(folder))
