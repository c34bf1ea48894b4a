#!/usr/bin/env python3
"""What do sizes that change all the time cost? Against eager, of one process whose cache is empty:

train     --steps training steps of a small encoder, each of a batch and a length drawn at random: the steps after the first
          SETTLED of them, all steps, and how many compilations they cost
generate  a small GPT's greedy decoding, whose keys and values grow by a token a step: --tokens tokens after a prompt of as many

Both entry points. Each sample is a process of its own with a cache of its own; rounds take turns with eager.

--steps N; --tokens N; --rounds N
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import common

SETTLED = 20
LENGTHS, BATCHES = (8, 512), (1, 9)
WIDTH, HEADS, LAYERS, WORDS = 64, 4, 2, 512
ENTRIES = ("eager", "kiln", "backend")
CASES = ("train", "generate")


def encoder(torch):
    """Words in, words out."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
    layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), layers, torch.nn.Linear(WIDTH, WORDS))


def decoder(torch):
    """A GPT that is given the keys and values of the tokens before, and gives those of all."""
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attention, self.project = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x, past):
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.attention(self.norm(x)).chunk(3, -1))
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
            x = x + self.project(mixed.transpose(1, 2).flatten(2))
            return x + self.mlp(x), (k, v)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(1024, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, tokens, places, past):
            x, kept = self.words(tokens) + self.places(places), []
            for layer, known in zip(self.layers, past):
                x, now = layer(x, known)
                kept.append(now)
            return self.head(x[:, -1]), kept

    return Decoder()


def compiled(model, entry):
    if entry == "eager":
        return model
    import kiln
    import torch

    return kiln.compile(model) if entry == "kiln" else torch.compile(model, backend="kiln")


def train(torch, entry, steps):
    model = compiled(encoder(torch), entry)
    draw = random.Random(1)
    for _ in range(steps):
        batch, length = draw.randint(*BATCHES), draw.randint(*LENGTHS)
        tokens = torch.randint(WORDS, (batch, length))
        start = time.perf_counter()
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        yield time.perf_counter() - start


def generate(torch, entry, tokens):
    """Of each token; then all of it again, as the next request would."""
    model = compiled(decoder(torch).eval(), entry)
    with torch.no_grad():
        for _ in range(2):
            given, past, at = torch.randint(WORDS, (1, tokens)), [None] * LAYERS, torch.arange(tokens)
            for step in range(tokens):
                start = time.perf_counter()
                scores, past = model(given, at, past)
                given, at = scores.argmax(-1, keepdim=True), torch.tensor([tokens + step])
                yield time.perf_counter() - start


def sample(case, entry, count):
    """In this process."""
    import torch

    torch.manual_seed(0)
    seconds = list((train if case == "train" else generate)(torch, entry, count))
    stats = {}
    if entry != "eager":
        import kiln

        stats = {name: kiln.stats()[name] for name in ("compilations", "programs", "calls_meanwhile", "checks_failed")}
    print(json.dumps({"seconds": seconds, **stats}))


def process(case, entry, count):
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        cache, runtime = pathlib.Path(folder, "cache"), pathlib.Path(folder, "run")
        for each in (cache, runtime):
            each.mkdir(mode=0o700)
        own = {"KILN_CACHE_DIR": str(cache), "XDG_RUNTIME_DIR": str(runtime), "KILN_DAEMON_IDLE_EXIT_MS": "1000",
               "KILN_CLIENT_WAIT": os.environ.get("KILN_CLIENT_WAIT", "first")}
        said = subprocess.run([sys.executable, __file__, "--sample", case, entry, str(count)], env={**os.environ, **own},
                              stdout=subprocess.PIPE, text=True, check=True).stdout  # fmt: skip
    return json.loads(said.splitlines()[-1])


def rows_of(case, samples, count):
    """samples: what process() gave, by entry."""
    settled = SETTLED if case == "train" else count  # of generation: the second request
    spans = {"after the first steps": slice(settled, None), "all steps": slice(None)}
    for name, span in spans.items():
        times = {entry: [sum(each["seconds"][span]) for each in given] for entry, given in samples.items()}
        counts = {entry: {key: statistics.median(each[key] for each in given) for key in given[0] if key != "seconds"}
                  for entry, given in samples.items() if entry != "eager"}  # fmt: skip
        yield common.row(f"{case}, {count} steps, {name}", times, own=("backend",), counts=counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--sample", nargs=3, metavar=("CASE", "ENTRY", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        return sample(options.sample[0], options.sample[1], int(options.sample[2]))
    rows = []
    for case in options.cases:
        count = options.steps if case == "train" else options.tokens
        samples = {entry: [] for entry in ENTRIES}
        for turn in range(options.rounds):
            for i in range(len(ENTRIES)):
                entry = ENTRIES[(turn + i) % len(ENTRIES)]
                samples[entry].append(process(case, entry, count))
        rows += rows_of(case, samples, count)
    common.report("dynamic", rows, common.ratios(rows))


if __name__ == "__main__":
    main()
