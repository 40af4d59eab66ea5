# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Reads the checkpoint that `checkpoint_program write` made as any user of h5py would: names, shapes, types, values."""
import json
import sys

import h5py
import numpy

from checkpoint_fixtures import expected, groups, shapes

directory = sys.argv[1]

with h5py.File(f"{directory}/data.h5", "r") as file:
    assert file.attrs["step"] == 12, file.attrs["step"]
    assert json.loads(file.attrs["metadata"]) == {"seed": 42}, file.attrs["metadata"]
    found = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    assert sorted(found) == sorted(f"{group}/{name}" for group in groups for name in shapes), found
    for buffer, group in enumerate(groups):
        for tensor, (name, shape) in enumerate(shapes.items()):
            dataset = file[group][name]
            assert dataset.shape == shape, (dataset.name, dataset.shape)
            assert dataset.chunks is None, dataset.name
            assert dataset.dtype == numpy.float32, (dataset.name, dataset.dtype)
            assert dataset.id.get_type().get_size() == (2 if group == "parameters" else 4), dataset.name
            values = numpy.array(expected(buffer, tensor, shape), dtype=numpy.float32).reshape(shape)
            assert numpy.array_equal(dataset[()], values), dataset.name
    bits = (file["parameters/wte.weight"][()].view(numpy.uint32) & 0xFFFF).any()
    assert not bits, "values of bfloat16 have more than 8 significant bits"

with open(f"{directory}/manifest.json", encoding="utf-8") as file:
    manifest = json.load(file)
assert {tensor["name"]: tuple(tensor["shape"]) for tensor in manifest["tensors"]} == shapes
print(f"{directory}: {len(found)} datasets are right")
