# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Lets h5dump write every tensor of the checkpoint that `checkpoint_program write` made to a file, in the type that it has: its bytes
must be those of the values."""
import os
import re
import struct
import subprocess
import sys
import tempfile

from checkpoint_fixtures import expected, groups, shapes

data = os.path.join(sys.argv[1], "data.h5")


def h5dump(*options):
    return subprocess.run(["h5dump", *options, data], check=True, stdout=subprocess.PIPE, text=True).stdout


def bytes_of(values, size):
    """bfloat16 is the upper half of float32."""
    return b"".join(struct.pack("<f", value)[4 - size:] for value in values)


found = re.findall(r"^ *dataset +/(.*)$", h5dump("--contents"), re.MULTILINE)
assert sorted(found) == sorted(f"{group}/{name}" for group in groups for name in shapes), found
with tempfile.TemporaryDirectory() as folder:
    output = os.path.join(folder, "elements")
    for buffer, group in enumerate(groups):
        for tensor, (name, shape) in enumerate(shapes.items()):
            h5dump("--dataset", f"/{group}/{name}", "--binary=FILE", f"--output={output}")
            with open(output, "rb") as file:
                content = file.read()
            assert content == bytes_of(expected(buffer, tensor, shape), 2 if group == "parameters" else 4), (group, name)
print(f"{data}: h5dump reads {len(found)} datasets right")
