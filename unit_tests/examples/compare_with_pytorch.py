# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares one forward and backward pass of GptModel with PyTorch: python3 compare_with_pytorch.py EXPORT fp32|bf16

EXPORT PRECISION FILE writes a safetensors file with weights, inputs, targets, loss and gradients ("grad." before the name).
"""

import subprocess
import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
    from gpt2_in_pytorch import gpt2
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-torch, python3-safetensors)")
    sys.exit(77)

HEADS = 4


def loss_and_gradients(tensors, dtype):
    weights = {name: value.detach().to(dtype, copy=True).requires_grad_() for name, value in tensors.items()}
    logits = gpt2(weights, INPUTS, HEADS)
    logits = logits.float() if dtype == torch.bfloat16 else logits
    loss = F.cross_entropy(logits.flatten(0, 1), TARGETS.flatten())
    loss.backward()
    return loss.item(), {name: value.grad.double() for name, value in weights.items()}


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


export, precision = sys.argv[1:]
with tempfile.TemporaryDirectory(prefix="sporos-pytorch-") as folder:
    subprocess.run([export, precision, folder + "/pass.safetensors"], check=True)
    tensors = load_file(folder + "/pass.safetensors")
INPUTS, TARGETS, loss = tensors.pop("inputs").long(), tensors.pop("targets").long(), tensors.pop("loss").item()
gradients = {name[5:]: tensors.pop(name).double() for name in list(tensors) if name.startswith("grad.")}
assert gradients.keys() == tensors.keys() and len(gradients) == 2 + 12 * 2 + 2, sorted(tensors)
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
assert all(value.dtype == dtype for value in tensors.values())

theirs, their_gradients = loss_and_gradients(tensors, dtype)
exact, exact_gradients = loss_and_gradients(tensors, torch.float64)
print(f"torch {torch.__version__} {precision}: loss {loss:.9f}, PyTorch {theirs:.9f}, float64 {exact:.12f}")
failed = []
for name in sorted(gradients):
    ours = distance(gradients[name], exact_gradients[name])
    plain = distance(their_gradients[name], exact_gradients[name])
    apart = distance(gradients[name], their_gradients[name])
    print(f"{name:28} from float64: ours {ours:.1e}, PyTorch {plain:.1e}; from each other {apart:.1e}")
    # In bf16 two right programs differ as much as each does from the truth; a plain implementation sets the scale.
    if not (apart < 1e-5 if precision == "fp32" else ours < 2 * plain):
        failed.append(name)
# PyTorch's bf16 loss may be right by luck: one rounding in each token's loss is allowed anyway.
limit = 1e-5 * theirs if precision == "fp32" else max(2 * abs(theirs - exact), 2**-9 * exact / TARGETS.numel() ** 0.5)
if not abs(loss - (theirs if precision == "fp32" else exact)) < limit:
    failed.append("loss")
sys.exit(f"too far apart: {failed}" if failed else 0)
