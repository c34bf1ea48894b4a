#!/usr/bin/env python3
"""What do sizes that change all the time cost? Against eager, of one process whose cache is empty:

train     --steps training steps of a small encoder, each of a batch and a length drawn at random: the steps after the first
          SETTLED of them, all steps, and how many compilations they cost
generate  GPT-2 124M's greedy generate(), whose keys and values grow by a token a step: --tokens tokens after a prompt of as many;
          a first request, and the next, alike
static    the same with transformers' static cache, whose keys and values have one size; eager has its own, growing one
extents   one forward of GPT-2 124M and 512 tokens, captured with extents as symbols and with known ones: in one process, in turn

Both entry points. Each sample but of extents is a process of its own with a cache of its own; rounds take turns with eager.
KILN_CLIENT_WAIT says whether a step waits for programs of further sizes (without: first).

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
import gpt2

SETTLED = 20
LENGTHS, BATCHES = (8, 512), (1, 9)
WIDTH, HEADS, LAYERS, WORDS = 64, 4, 2, 512
ENTRIES = ("eager", "kiln", "backend")
CASES = ("train", "generate", "static", "extents")


def encoder(torch):
    """Words in, words out."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
    layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Embedding(WORDS, WIDTH), layers, torch.nn.Linear(WIDTH, WORDS))


def compiled(model, entry):
    """In place: generate() of what torch.compile gives would call what it was given. Of a class of torch's own Dynamo would
    compile nothing so."""
    if entry == "kiln":
        import kiln

        return kiln.compile(model)
    if entry == "backend":
        model.compile(backend="kiln")
    return model


def train(torch, entry, steps):
    model = encoder(torch)
    model = torch.compile(model, backend="kiln") if entry == "backend" else compiled(model, entry)
    draw = random.Random(1)
    for _ in range(steps):
        batch, length = draw.randint(*BATCHES), draw.randint(*LENGTHS)
        tokens = torch.randint(WORDS, (batch, length))
        start = time.perf_counter()
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        yield time.perf_counter() - start


def generate(entry, tokens, is_static):
    """Of each request."""
    model, prompt = compiled(gpt2.make_model().eval(), entry), gpt2.tokens(sequence=tokens)
    more = {"cache_implementation": "static"} if is_static and entry != "eager" else {}
    for _ in range(2):
        start = time.perf_counter()
        model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, use_cache=True, **more)
        yield time.perf_counter() - start


def extents(rounds):
    """Of each form's calls, in turn."""
    batch, forms = {"input_ids": gpt2.tokens()}, {}
    for name, is_dynamic in (("symbols", True), ("known", False)):
        model = gpt2.make_model().eval()
        model.compile(backend="kiln", dynamic=is_dynamic)
        forms[name] = gpt2.forward_step(model, batch)
    return common.interleave(forms, rounds)


def sample(case, entry, count):
    """In this process."""
    import torch

    torch.manual_seed(0)
    if case == "extents":
        return print(json.dumps(extents(count)))
    seconds = list(train(torch, entry, count) if case == "train" else generate(entry, count, case == "static"))
    stats = {}
    if entry != "eager":
        import kiln

        stats = {name: kiln.stats()[name] for name in ("compilations", "programs", "calls_meanwhile", "checks_failed")}
        if stats["programs"] == 0:
            sys.exit(f"{case}, {entry}: nothing ran in Kiln")
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
    spans = {"after the first steps": slice(SETTLED, None), "all steps": slice(None)}
    if case != "train":
        spans = {"first request": slice(1), "second request": slice(1, None), "both requests": slice(None)}
    for name, span in spans.items():
        times = {entry: [sum(each["seconds"][span]) for each in given] for entry, given in samples.items()}
        counts = {entry: {key: statistics.median(each[key] for each in given) for key in given[0] if key != "seconds"}
                  for entry, given in samples.items() if entry != "eager"}  # fmt: skip
        yield common.row(f"{case}, {count} {'steps' if case == 'train' else 'tokens'}, {name}", times, own=("backend",), counts=counts)


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
        if case == "extents":
            samples = process(case, "both", 3 * options.rounds)
            rows.append(common.row("extents, GPT-2 124M, 512 tokens", samples, ours="symbols"))
            continue
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
