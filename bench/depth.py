#!/usr/bin/env python3
"""Does depth cost? GPT-2 with 48 layers against 2, kiln.compile, cold, width as GPT-2 124M: time to the end of the first
training step, less the steady step of the same process; and the number of distinct region plans. One eager step comes
before, so that what any first step costs, the first touch of all its memory, is not counted as Kiln's."""
import argparse
import statistics

import common
import gpt2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    seconds, regions = {2: [], 48: []}, {}
    for _ in range(arguments.rounds):
        for layers in seconds:
            with gpt2.Cache() as cache:
                result = cache.run("gpt2_process.py", "kiln", "--layers", layers, "--steps", 3, "--eager-steps", 1)
            seconds[layers].append(result["first_s"] - result["step_s"])
            regions[layers] = result["stats"]["regions"]
    medians = {layers: statistics.median(values) for layers, values in seconds.items()}
    rows = [common.row(f"{layers} layers, cold, first step less a step", {"kiln": values}) for layers, values in seconds.items()]
    common.report("depth", rows, {"48_over_2": round(medians[48] / medians[2], 3), "regions": regions,
                                  "more_regions": regions[48] - regions[2]})


if __name__ == "__main__":
    main()
