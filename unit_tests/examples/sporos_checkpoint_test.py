# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Runs sporos-checkpoint as a user would: python3 sporos_checkpoint_test.py CASE --tool SPOROS_CHECKPOINT --train TRAIN_GPT
--generate GENERATE -- MPIEXEC...

Every case is a function here; a failed assertion is a failed test.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from train_gpt_test import SMALL, TIME_LIMIT, Runs, final_loss

HEADS = 2  # of SMALL


class Tool:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *arguments, code=0):
        """Its output; it must end with that exit code."""
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIME_LIMIT)
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def refuses(self, *arguments_and_parts, parts):
        output = self.run(*arguments_and_parts, code=2)
        for part in parts:
            assert part in output, f"{part!r} is not in\n{output}"


def look(runs, tool):
    """ls, verify and diff of what train_gpt has written, whole and damaged"""
    options = "--steps 6 --checkpoint-every 2 --keep 3 --precision bf16 --checkpoint-directory".split()
    runs.train("saved", 2, options + ["saved"])
    first, second, third = (f"saved/step-00000000000{step}" for step in (2, 4, 6))

    lines = tool.run("ls", "saved").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [os.path.basename(path) for path in (first, second, third)], lines
    assert all("parameters bfloat16, master float32" in line for line in lines[1:]), lines
    text = tool.run("ls", third)
    assert "written by      2 ranks" in text and '"--precision": "bf16"' in text, text
    assert "h.1.mlp.c_fc.weight" in text and "(32, 128)" in text, text

    assert tool.run("verify", "saved").count(": whole, ") == 3
    assert tool.run("verify", third, first).count(": whole, ") == 2
    assert tool.run("diff", third, "saved") == "", "of a directory the newest is meant"
    text = tool.run("diff", first, second, code=1)
    assert "step: 2 and 4\n" in text and "optimizer step: 2 and 4\n" in text, text
    assert "parameters/wte.weight: " in text and "second_moment/ln_f.bias: " in text and "metadata" not in text, text
    # A copy whose directory has another name is the same checkpoint.
    shutil.copytree(runs.path(third), runs.path("copy"))
    assert tool.run("diff", third, "copy") == ""
    # Saved on other ranks, the same bytes: the reader does not see the difference, and neither does diff.
    runs.train("more", 3, options + ["more"])
    assert tool.run("diff", "more/step-000000000006", third, code=1).count("metadata") == 0

    def damaged(change, part, path="copy/data.h5"):
        with open(runs.path(path), "rb") as file:
            content = file.read()
        with open(runs.path(path), "wb") as file:
            file.write(change(content))
        text = tool.run("verify", "copy", code=1)
        assert "NOT whole" in text and part in text, text
        with open(runs.path(path), "wb") as file:
            file.write(content)

    damaged(lambda b: b[:-1], "bytes and should have")
    damaged(lambda b: b"", "bytes and should have")
    damaged(lambda b: bytes(len(b)), "HDF5 cannot open")
    damaged(lambda b: b[: len(b) // 2] + bytes([b[len(b) // 2] ^ 16]) + b[len(b) // 2 + 1:], "are not what was written")
    damaged(lambda b: b[:-2], "manifest.json", "copy/manifest.json")
    assert "whole" in tool.run("verify", "copy")
    os.remove(runs.path(third) + "/manifest.json")
    assert "not whole" in tool.run("ls", "saved")
    tool.refuses("ls", "nowhere", parts=["nowhere"])
    tool.refuses("verify", "text.txt", parts=["text.txt"])
    tool.refuses("diff", third, "copy", parts=["manifest.json"])
    os.mkdir(runs.path("empty"))
    tool.refuses("export", "empty", "model", parts=["empty is no checkpoint and holds none"])
    assert tool.run("remove", code=2)


def safetensors(runs, tool):
    """What train_gpt has learnt computes the same in PyTorch, and what PyTorch has made the same here."""
    try:
        import torch
        from gpt2_in_pytorch import gpt2
        from safetensors.torch import load_file, save_file
    except ImportError as error:
        print(f"skipped: {error} (Debian: python3-torch, python3-safetensors)")
        sys.exit(77)
    import torch.nn.functional as F

    def greedy(weights, prompt, count):
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(gpt2(weights, torch.tensor([tokens[-32:]]), HEADS)[0, -1].argmax()))
        return bytes(tokens)

    def generate(directory, prompt, count):
        command = [runs.generate_program, "--checkpoint", directory, "--prompt", prompt.decode(), "--tokens", str(count),
                   "--temperature", "0"]
        return subprocess.run(command, cwd=runs.folder, stdout=subprocess.PIPE, check=True, timeout=TIME_LIMIT).stdout[:-1]

    options = "--steps 30 --checkpoint-every 30 --checkpoint-directory".split()
    records = runs.train("fp32", 2, options + ["fp32"])
    tool.run("export", "fp32", "whole")
    assert sorted(os.listdir(runs.path("whole"))) == ["config.json", "model.safetensors"]
    weights = load_file(runs.path("whole/model.safetensors"))
    with open(runs.path("whole/config.json")) as file:
        config = json.load(file)
    assert (config["n_embd"], config["n_layer"], config["n_head"], config["n_positions"], config["vocab_size"]) == (32, 2, 2, 32, 256)
    assert weights["h.0.attn.c_attn.weight"].shape == (32, 96) and all(w.dtype == torch.float32 for w in weights.values())

    # The validation loss: the last tenth of the text in windows of 32
    with open(runs.path("text.txt"), "rb") as file:
        text = file.read()
    held_back = torch.tensor(list(text[len(text) - round(len(text) * 0.1):]))
    windows = (len(held_back) - 1) // 32
    inputs, targets = held_back[: windows * 32].view(windows, 32), held_back[1: windows * 32 + 1].view(windows, 32)
    with torch.no_grad():
        loss = F.cross_entropy(gpt2(weights, inputs, HEADS).flatten(0, 1), targets.flatten()).item()
        assert abs(loss - final_loss(records)) < 1e-5 * loss, (loss, final_loss(records))
        assert greedy(weights, text[:8], 24) == generate("fp32", text[:8], 24)

    # In shards, in other types, the same numbers
    tool.run("export", "fp32", "shards", "--shard-bytes", 20000, "--type", "fp64")
    with open(runs.path("shards/model.safetensors.index.json")) as file:
        index = json.load(file)
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 3 and index["metadata"]["total_size"] == 8 * sum(w.numel() for w in weights.values())
    parts = {}
    for shard in shards:
        part = load_file(runs.path("shards/" + shard))
        assert all(index["weight_map"][name] == shard for name in part)
        parts.update(part)
    assert parts.keys() == weights.keys() and all(torch.equal(parts[name], weights[name].double()) for name in weights)
    tool.run("export", "fp32", "small", "--type", "bf16")
    small = load_file(runs.path("small/model.safetensors"))
    assert all(torch.equal(small[name], weights[name].bfloat16()) for name in weights)
    tool.run("export", "fp32", "moments", "--array", "second_moment")
    assert min(w.min() for w in load_file(runs.path("moments/model.safetensors")).values()) >= 0

    # Back again: bit for bit, from one file and from shards
    for source in ("whole", "shards"):
        tool.run("import", source, "again-" + source, "--tokenizer", "byte")
        tool.run("export", "again-" + source, "out-" + source)
        out = load_file(runs.path(f"out-{source}/model.safetensors"))
        assert out.keys() == weights.keys() and all(torch.equal(out[name], weights[name]) for name in weights)
    assert generate("again-whole", text[:8], 24) == generate("fp32", text[:8], 24)
    # Training starts from it, whatever its own options are.
    started = runs.train("again", 2, "--steps 2 --seed 9 --learning-rate 1e-9 --checkpoint-every 2 --resume must "
                         "--checkpoint-directory again-whole".split())
    assert [r["step"] for r in started if r["event"] == "resume"] == [0]
    assert abs(final_loss(started) - final_loss(records)) < 1e-4, (final_loss(started), final_loss(records))

    # As Hugging Face's own library writes it: with a prefix, masks and the tied output layer; in half precision
    torch.manual_seed(1)
    foreign = {"transformer." + name: (w + 0.3 * torch.randn(w.shape)).half() for name, w in weights.items()}
    foreign["transformer.h.0.attn.bias"] = torch.ones(1, 1, 32, 32, dtype=torch.uint8).tril()
    foreign["transformer.h.1.attn.masked_bias"] = torch.tensor(-1e4)
    foreign["lm_head.weight"] = foreign["transformer.wte.weight"].clone()
    os.mkdir(runs.path("foreign"))
    save_file(foreign, runs.path("foreign/model.safetensors"), metadata={"format": "pt"})
    tool.run("import", "foreign/model.safetensors", "from-foreign", "--heads", 2, "--tokenizer", "byte")
    wide = {name[12:]: w.float() for name, w in foreign.items()
            if name.startswith("transformer.") and not name.endswith((".attn.bias", ".attn.masked_bias"))}
    with torch.no_grad():
        assert greedy(wide, b"the ", 24) == generate("from-foreign", b"the ", 24)
    tool.run("import", "foreign/model.safetensors", "in-bf16", "--heads", 2, "--precision", "bf16")
    tool.run("export", "in-bf16", "out-bf16")
    tool.run("export", "in-bf16", "out-master", "--array", "master")
    rounded, master = (load_file(runs.path(f"{name}/model.safetensors")) for name in ("out-bf16", "out-master"))
    assert all(torch.equal(rounded[name], wide[name].bfloat16()) for name in wide)
    assert all(torch.equal(master[name], wide[name]) for name in wide)

    # Bad input
    def bad(change, *parts, options=("--heads", 2)):
        tensors = dict(foreign)
        change(tensors)
        save_file(tensors, runs.path("bad.safetensors"))
        tool.refuses("import", "bad.safetensors", "never", *options, parts=parts)
        assert not os.path.exists(runs.path("never"))

    bad(lambda t: t.pop("transformer.ln_f.bias"), "ln_f.bias is missing; it should be (32)")
    bad(lambda t: t.update({"transformer.h.0.extra": torch.zeros(2)}), "h.0.extra is unknown")
    bad(lambda t: t.update({"ln_f.bias": torch.zeros(32)}), "which is the same tensor as")
    bad(lambda t: t.update({"transformer.h.0.mlp.c_fc.weight": torch.zeros(128, 32)}),
        "h.0.mlp.c_fc.weight is (128, 32) and should be (32, 128)")
    bad(lambda t: t.update({"lm_head.weight": torch.zeros(256, 32)}), "lm_head.weight")
    bad(lambda t: t.update({"transformer.ln_f.bias": torch.zeros(32, dtype=torch.int64)}), "type I64")
    bad(lambda t: None, "--heads is needed", options=())
    bad(lambda t: None, "--heads 3", options=("--heads", 3))
    for key, value in (("n_head", 5), ("n_layer", 3), ("vocab_size", 257), ("activation_function", "relu"),
                       ("layer_norm_epsilon", 1e-6), ("model_type", "llama"), ("tie_word_embeddings", False)):
        shutil.copytree(runs.path("whole"), runs.path("other"), dirs_exist_ok=True)
        with open(runs.path("other/config.json"), "w") as file:
            json.dump(dict(config, **{key: value}), file)
        tool.refuses("import", "other", "never", parts=[])
    tool.refuses("import", "whole", "fp32", parts=["fp32 holds checkpoints already"])
    tool.refuses("export", "fp32", "whole", parts=["whole holds a model"])
    tool.refuses("export", "fp32", "new", "--array", "gradients", parts=['holds no array "gradients"'])
    tool.refuses("export", "fp32", "new", "--type", "int8", parts=['no precision "int8"'])


CASES = {function.__name__: function for function in (look, safetensors)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--generate", required=True)
    parser.add_argument("launcher", nargs="+")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sporos-tool-") as folder:
        CASES[arguments.case](Runs(arguments, folder), Tool(arguments.tool, folder))


if __name__ == "__main__":
    main()
