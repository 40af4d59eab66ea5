# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compares `tokenize` with tiktoken: python3 tokenize_test.py TOKENIZE

No vocabulary is downloaded: byte pairs are merged here, on a text made of many scripts, and both get the result.
"""

import collections
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

try:
    import regex
    import tiktoken
except ImportError as error:
    print(f"skipped: {error} (Debian: python3-tiktoken)")
    sys.exit(77)

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
generator = random.Random(7)


def random_text(length):
    """Words, numbers, contractions, spaces of every kind, and assigned characters of all of Unicode"""
    parts = ["don't ", "we'll", " 'tis", "x's", "'S", "'re", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028",
             "\x1c", "\x85", "!?", "...", " -- ", "http://a.b/c?d=1", "naïve", "Ärger", "привет ", "你好", "مرحبا", "नमस्ते",
             "😀", "👩‍🚀", "e\u0301", "½", "²", "٣", "Ⅷ", "\u200b", "\ufeff", "\x00", "$%", " 12", "345", "a", " the", "ing", " of"]
    text = []
    while len(text) < length:
        if generator.random() < 0.8:
            text.append(generator.choice(parts))
            continue
        character = chr(generator.choice((generator.randrange(0x3000), generator.randrange(0x10000), generator.randrange(0x110000))))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            text.append(character)
    return "".join(text)


def merge_pairs(text, count):
    """The tokens of a byte-pair encoding: bytes to rank, as tiktoken takes them; and the pairs in their order"""
    # GPT-2's first 256 tokens: the bytes that print as themselves, then the others
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    ranks = {bytes([byte]): rank for rank, byte in enumerate(order)}
    words = collections.Counter(tuple(bytes([b]) for b in word.encode()) for word in regex.findall(PATTERN, text))
    merges = []
    for _ in range(count):
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if best[0] + best[1] not in ranks:
            ranks[best[0] + best[1]] = len(ranks)
            merges.append(best)
        merged = collections.Counter()
        for word, times in words.items():
            result = []
            for token in word:
                if result and (result[-1], token) == best:
                    result[-1] += token
                else:
                    result.append(token)
            merged[tuple(result)] += times
        words = merged
    return ranks, merges, {byte: chr(byte) if byte in printable else chr(256 + i - len(printable)) for i, byte in enumerate(order)}


def read_tokens(path):
    with open(path, "rb") as file:
        content = file.read()
    magic, version, count = struct.unpack("<3i", content[:12])
    assert (magic, version) == (20240520, 1) and len(content) == 1024 + 2 * count, (magic, version, count, len(content))
    return list(struct.unpack(f"<{count}H", content[1024:]))


def main():
    (program,) = sys.argv[1:]
    ranks, merges, printable = merge_pairs(random_text(4000), 300)
    name = lambda token: "".join(printable[byte] for byte in token)
    end = len(ranks)
    vocabulary = {name(token): rank for token, rank in ranks.items()} | {"<|endoftext|>": end}
    encoding = tiktoken.Encoding("test", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})

    with tempfile.TemporaryDirectory(prefix="sporos-tokenize-") as folder:
        path = lambda file: os.path.join(folder, file)
        with open(path("vocab.json"), "w") as file:
            json.dump(vocabulary, file)
        with open(path("merges.txt"), "w") as file:
            file.write("#version: 0.2\n" + "".join(f"{name(left)} {name(right)}\n" for left, right in merges))

        def tokenize(*texts):
            for i, text in enumerate(texts):
                with open(path(f"{i}.txt"), "w", newline="", encoding="utf-8") as file:
                    file.write(text)
            command = [program, *(path(f"{i}.txt") for i in range(len(texts))), "--output", path("tokens.bin"),
                       "--tokenizer-vocabulary", path("vocab.json"), "--tokenizer-merges", path("merges.txt")]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
            return read_tokens(path("tokens.bin"))

        expected = lambda text: [end, *encoding.encode_ordinary(text)]
        for length in (1, 10, 1000, 30000):
            text = random_text(length)
            ours = tokenize(text)
            assert ours == expected(text), next(f"token {i} of {len(ours)}" for i, (a, b) in enumerate(zip(ours, expected(text))) if a != b)
            assert encoding.decode(ours[1:]) == text
        assert tokenize("", "a <|endoftext|> b", "\n") == [end] + expected("a <|endoftext|> b") + expected("\n")
        # Longer than the piece that is read at once
        long = "".join(generator.choice(("one two\n", "\n  three's 4\n", "  \n", "…\n")) for _ in range(800000))
        assert len(long.encode()) > 1 << 22
        assert tokenize(long) == expected(long)

        failed = subprocess.run([program, path("none.txt"), "--output", path("x.bin"), "--tokenizer-vocabulary", path("vocab.json"),
                                 "--tokenizer-merges", path("merges.txt")], capture_output=True, text=True)
        assert failed.returncode == 1 and "none.txt" in failed.stderr, failed.stderr
        failed = subprocess.run([program, path("0.txt"), "--output", path("x.bin")], capture_output=True, text=True)
        assert failed.returncode == 1 and "--tokenizer-vocabulary" in failed.stderr, failed.stderr
    print(f"{len(vocabulary)} tokens, tiktoken {tiktoken.__version__}: all alike")


main()
