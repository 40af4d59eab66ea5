# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What `checkpoint_program write` puts into a checkpoint; CheckpointFixtures.hpp says the same in C++."""
import math

shapes = {
    "wte.weight": (37, 19),
    "h.0.ln_1.weight": (19,),
    "h.0.attn/c_attn.weight": (5, 7, 11),
    "scalar": (),
    "empty": (3, 0, 2),
    "h.0.attn/c_attn.bias": (1,),
    "four": (2, 3, 4, 5),
    "one_row": (1, 130),
}
groups = ["parameters", "master", "first_moment", "second_moment"]


def expected(buffer, tensor, shape):
    """The elements of a tensor, in row-major order"""
    return [((element * (7 + 4 * tensor + buffer) + 31 * tensor) % 257 - 128) / 64 for element in range(math.prod(shape))]
