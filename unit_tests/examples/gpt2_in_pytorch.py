# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""GPT-2 in plain PyTorch, to compare with"""

import torch
import torch.nn.functional as F


def gpt2(weights, inputs, heads):
    """The logits, from weights under Hugging Face's names"""
    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], 1e-5)

    def linear(name, x):
        return x @ weights[name + ".weight"] + weights[name + ".bias"]

    def attention(name, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, heads, width // heads).transpose(1, 2)
                   for part in linear(name + ".c_attn", x).split(width, dim=2))
        scores = (q @ k.transpose(2, 3)) / (width // heads) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return linear(name + ".c_proj", y.transpose(1, 2).reshape(batch, length, width))

    x = weights["wte.weight"][inputs] + weights["wpe.weight"][: inputs.shape[1]]
    for layer in range(sum(name.endswith(".ln_1.weight") for name in weights)):
        block = f"h.{layer}"
        x = x + attention(block + ".attn", norm(block + ".ln_1", x))
        hidden = F.gelu(linear(block + ".mlp.c_fc", norm(block + ".ln_2", x)), approximate="tanh")
        x = x + linear(block + ".mlp.c_proj", hidden)
    return norm("ln_f", x) @ weights["wte.weight"].T
