#!/usr/bin/env python3
"""What is it worth that schedules which won races of near shapes race too? The products of GPT-2's training, f32, where the
model knows nothing: each has --guesses candidates, drawn by chance from all schedules. All of them race by themselves, and
once more in one build, where each also has the winners of those before it. A row's ratio is the time of the best schedule
there is over that of the pick among neighbours, the median over turns in which all are sampled; samples are those of tune.py.

--guesses N; --seed N; --rounds N
"""
import argparse
import ctypes
import json
import os
import random

import common
import gemm
import kernels

WITHIN = 0.02
LARGEST = 8192  # extents: the vocabulary's products take seconds a sample
PICKS = ("first", "alone", "among")  # the first guess, the winner, the winner among neighbours


def search(cases, options):
    texts = (ctypes.c_char_p * len(cases))(*[case.text("f32").encode() for case in cases])
    found = kernels.library().kiln_bench_search_near(texts, len(cases), options.rounds, options.guesses, options.seed)
    return json.loads(kernels.checked(found))


def row(case, each, options):
    ms = {who: each[who]["seconds"] * 1e3 for who in (*PICKS, "best")}
    return common.show({"case": f"gemm f32 {case}, {options.guesses} guesses", "unit": "ms", "ours": ms["among"],
                        "own": {"without neighbours": ms["alone"], "first guess": ms["first"]},
                        "peers": {"best schedule": ms["best"]}, "ratio": each["best_to_among"], "found": each})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guesses", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    kernels.set_up(argparse.Namespace(threads=os.cpu_count()))
    cases = [case for case in gemm.SETS["gpt2"] if max(case.m, case.n, case.k) < LARGEST]
    random.Random(options.seed).shuffle(cases)
    found = search(cases, options)
    rows = [row(case, each, options) for case, each in zip(cases, found["rows"])]
    ratios = {who: [each[f"best_to_{who}"] for each in found["rows"]] for who in PICKS}
    means = {who: round(common.geometric_mean(values), 3) for who, values in ratios.items()}
    within = {who: f"{sum(value >= 1 - WITHIN for value in values)} of {len(rows)}" for who, values in ratios.items()}
    common.report("near_shapes", rows, {"best over pick": means, "within 2 %": within, "samples": found["samples"]})


if __name__ == "__main__":
    main()
