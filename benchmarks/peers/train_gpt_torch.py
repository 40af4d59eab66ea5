#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The work of train_gpt in PyTorch, on a CPU: the same GPT-2 model, AdamW, clipping by global norm.

Prints one JSON line about itself when it is warm. Then each line of its standard input is a number of steps and a number of
seconds, and each answer a JSON list of durations in seconds: of so many steps, or of fewer, at least one, when the seconds
are over. benchmarks/train_gpt.py drives it; it can be driven by hand as well:

    echo 20 60 | python3 benchmarks/peers/train_gpt_torch.py --threads 1 --precision fp32
"""

import argparse
import contextlib
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.reshape(split).transpose(1, 2) for part in self.attention_in(self.norm_1(x)).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)  # the head is tied
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def matmul_gflops(dtype, n=1024):
    """Rate of the best of a few square products"""
    a, b = torch.randn(n, n, dtype=dtype), torch.randn(n, n, dtype=dtype)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--mode", choices=("eager", "compile"), default="eager")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=8, help="in a step")
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--warmup-seconds", type=float, default=20)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    model = Gpt(options.vocabulary, options.context, options.width, options.layers, options.heads)
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(model) if options.mode == "compile" else model
    # PyTorch's way of mixed precision: fp32 weights, bf16 products
    precision = torch.autocast("cpu", torch.bfloat16) if dtype == torch.bfloat16 else contextlib.nullcontext()
    tokens = torch.randint(options.vocabulary, (options.sequences, options.context + 1))

    def step():
        start = time.perf_counter()
        with precision:
            loss = forward(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        return time.perf_counter() - start

    def steps(number, seconds):
        durations = [step()]
        while len(durations) < number and sum(durations) < seconds:
            durations.append(step())
        return durations

    steps(options.warmup_steps, options.warmup_seconds)
    print(json.dumps({
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        # What this processor gives: with bf16 at least the rate of fp32, however slow this PyTorch is at it
        "matmul_gflops": max(matmul_gflops(dtype), matmul_gflops(torch.float32)),
    }), flush=True)
    for line in sys.stdin:
        number, seconds = line.split()
        print(json.dumps(steps(int(number), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
