#!/usr/bin/env python3
"""Is FlexAttention fast? The forward beside Inductor's, both compiled, in turn in one process, after a check against f64. How
long each one's first calls take, caches empty: all cases in turn, in several processes. The backward, which nobody else has on
processors, beside the same formula with all scores in memory, differentiated by eager torch.

One thread is timed by its own clock, so that what others take of the processor does not count.

--threads N; --length N; --cases A,B; --processes N
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import tempfile
import time

import common
import gpt2

HEADS, FEATURES = 8, 64
SAMPLE_S = 5e-2
ALLOWED = 1e-4  # of the largest value


def _causal(b, h, q, k):
    return q >= k


def _slopes(score, b, h, q, k):
    return score + (k - q) * 0.01


def _soft_cap(score, b, h, q, k):
    import torch

    return 20 * torch.tanh(score / 20)


CASES = {  # (score function, mask function)
    "full": (None, None),
    "causal": (None, _causal),
    "window 256": (None, lambda b, h, q, k: (q >= k) & (q - k < 256)),
    "documents of 300": (None, lambda b, h, q, k: (q >= k) & (q // 300 == k // 300)),
    "slopes": (_slopes, _causal),
    "soft cap": (_soft_cap, _causal),
}


def functions_of(case, length):
    """(FlexAttention, the formula), of query, key and value."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    score, mask = CASES[case]
    blocks = mask and create_block_mask(mask, None, None, length, length, device="cpu")
    places = [torch.arange(length).view(1, 1, *shape) for shape in ((-1, 1), (1, -1))]

    def flex(query, key, value):
        return flex_attention(query, key, value, score_mod=score, block_mask=blocks)

    def formula(query, key, value):
        scores = query @ key.transpose(-2, -1) / math.sqrt(FEATURES)
        scores = score(scores, 0, 0, *places) if score else scores
        scores = torch.where(mask(0, 0, *places), scores, -math.inf) if mask else scores
        return scores.softmax(-1) @ value

    return flex, formula


def require_right(case, got, exact):
    error = float((got.double() - exact).abs().max() / exact.abs().max())
    if not error <= ALLOWED:
        raise RuntimeError(f"{case} is off by {error:.1e}")


def compiled_by_both(case, flex, inputs, exact):
    """What each compiler made of it, and the seconds of each one's first call."""
    import torch

    compiled, seconds = {}, {}
    for name in ("kiln", "inductor"):
        torch._dynamo.reset()
        begin = time.perf_counter()
        compiled[name] = torch.compile(flex, backend=name)
        with torch.no_grad(), common.runs_in_kiln(case) if name == "kiln" else contextlib.nullcontext():
            got = compiled[name](*inputs)
        seconds[name] = time.perf_counter() - begin
        require_right(f"{case} by {name}", got, exact)
    return compiled, seconds


def problem(case, length):
    """(FlexAttention, the formula, inputs, what the formula gives in f64)."""
    import torch

    flex, formula = functions_of(case, length)
    inputs = [torch.randn(1, HEADS, length, FEATURES) for _ in range(3)]
    return flex, formula, inputs, formula(*(x.double() for x in inputs))


def print_first_calls(cases, options):
    """The first also waits for each compiler's own beginning: what it imports, the daemon's start. Dynamo's, which is both's, is
    over by then."""
    import torch

    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1))
    found = {}
    for case in cases:
        flex, _, inputs, exact = problem(case, options.length)
        _, found[case] = compiled_by_both(case, flex, inputs, exact)
    print(json.dumps(found))


def first_calls(options):
    """A row of each case."""
    found = []
    for _ in range(options.processes):
        with gpt2.Cache() as cache:
            arguments = ("--threads", options.threads, "--length", options.length, "--cases", options.cases)
            found.append(cache.run("flex.py", "--first-calls", *arguments, KILN_AUTOTUNE_MODE="off"))
    for case in found[0]:
        samples = {name: [each[case][name] for each in found] for name in found[0][case]}
        yield common.row(f"first call {case}", samples, of="first call")


def measure(case, options):
    """Rows of the forward, and forward with backward."""
    import torch

    flex, formula, inputs, exact = problem(case, options.length)
    compiled, _ = compiled_by_both(case, flex, inputs, exact)

    def forward(name):
        return torch.no_grad()(lambda: compiled[name](*inputs))

    timing = {"sample_s": SAMPLE_S, "most_s": options.seconds, "clock": time.thread_time if options.threads == 1 else time.perf_counter}
    samples = common.interleave({name: forward(name) for name in compiled}, options.rounds, **timing)
    yield common.row(f"forward {case}", samples, unit="ms", scale=1e3, of="forward")

    leaves, grad = [x.requires_grad_() for x in inputs], torch.randn_like(inputs[0])
    step = {"kiln": lambda: torch.autograd.grad(compiled["kiln"](*leaves), leaves, grad),
            "formula": lambda: torch.autograd.grad(formula(*leaves), leaves, grad)}
    for got, wanted in zip(*(run() for run in step.values())):
        require_right(f"gradients of {case}", got, wanted.double())
    samples = common.interleave(step, options.rounds, **timing)
    yield common.row(f"with gradients {case}", samples, unit="ms", scale=1e3, of="with gradients")


def prepare(options):
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10, help="after which a case begins no further round")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--processes", type=int, default=3, help="in which first calls are timed, each with empty caches")
    parser.add_argument("--first-calls", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = options.cases.split(",")
    if options.first_calls:
        prepare(options)
        return print_first_calls(cases, options)
    rows = common.until_interrupted(first_calls(options))
    with tempfile.TemporaryDirectory() as empty:
        os.environ.update(KILN_CACHE_DIR=str(pathlib.Path(empty) / "kiln"), TORCHINDUCTOR_CACHE_DIR=empty, KILN_AUTOTUNE_MODE="off")
        prepare(options)
        rows += common.until_interrupted(row for case in cases for row in measure(case, options))
    kinds = dict.fromkeys(row["of"] for row in rows)
    common.report(f"flex {options.length}", rows, {kind: common.ratios(row for row in rows if row["of"] == kind) for kind in kinds})


if __name__ == "__main__":
    main()
