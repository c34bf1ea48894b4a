#!/usr/bin/env python3
"""What does tuning in the background cost a running job? A small GPT-2 trains in this process; windows in which a daemon has
untuned programs alternate with windows in which it is stopped. A row's ratio is the median step without a daemon over that
with one, pauses apart: 0.98 is the 2 % that background work may cost; windows' medians and windows' means, which also count
the few steps that a worker still disturbs before it has left.

  steady   step after step: the machine is busy
  pauses   a burst of steps, then a pause, as of a job that waits for data, shorter and longer than the two seconds of quiet
           after which the daemon begins to race
  sparse   a step, then a pause that leaves the machine quiet on average, as of a server that is asked now and then: races
           go on meanwhile

--seconds S of a window, --windows N of each kind; --cases steady,sparse,…
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import time

import common
import gemm
import gpt2
import kernels

BIN = kernels.LIBRARY.parents[1] / "bin"
# Steps of a burst, and the pause after it in seconds.
CASES = {"steady": (1, 0), "pauses of 1 s": (20, 1), "pauses of 4 s": (20, 4), "sparse": (1, 0.3)}
SETTLE_S = 3  # the quiet that the daemon waits for, and a worker's start


class Tuner:
    """The daemon of a cache, which tunes while it runs, and programs for it to tune."""

    def __init__(self, cache):
        self.cache, self.tuned = cache, 0

    def kiln(self, *arguments, mode="background"):
        environment = dict(self.cache.environment, KILN_AUTOTUNE_MODE=mode)
        done = subprocess.run([BIN / "kiln", *arguments, "--json"], env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def supply(self, count):
        """Programs of a product each that have not raced."""
        files = [pathlib.Path(self.cache.path, f"{i}.kiln") for i in range(count)]
        for i, file in enumerate(files):
            file.write_text(gemm.Gemm(256 + 8 * i, 768, 768, "nn").text("f32"))
        self.kiln("warm", *files, mode="off")
        self.kiln("daemon", "stop")

    def __enter__(self):
        self.kiln("daemon", "start")

    def __exit__(self, *_):
        self.tuned += self.kiln("stats")["counters"]["kernels_tuned"]
        self.kiln("daemon", "stop")


def training(cache):
    """A step of a small model, compiled into this cache by a daemon that has left."""
    os.environ.update(cache.environment, KILN_AUTOTUNE_MODE="off")
    model = gpt2.make_model(layers=4, width=256, heads=4, vocabulary=2000)
    step = gpt2.training_step(gpt2.compiled(model, "kiln"), model, gpt2.make_batch(1, 128, 2000))
    for _ in range(5):
        step()
    cache.stop_daemon()
    return step


def run_for(step, burst, pause_s, seconds):
    """Seconds of each step."""
    samples, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(burst):
            start = time.perf_counter()
            step()
            samples.append(time.perf_counter() - start)
        time.sleep(pause_s)
    return samples


def compare(case, step, tuner, options):
    """Windows of both kinds in turn, every other pair in the other order."""
    burst, pause_s = CASES[case]
    samples, before = {"kiln": [], "no daemon": []}, tuner.tuned
    for pair in range(options.windows):
        for name in sorted(samples, reverse=pair % 2 == 1):
            with tuner if name == "kiln" else contextlib.nullcontext():
                run_for(step, burst, pause_s, SETTLE_S)
                samples[name].append(run_for(step, burst, pause_s, options.seconds))
    rows = []
    for what, of in (("median", statistics.median), ("mean", statistics.fmean)):
        of_windows = {name: [of(window) for window in windows] for name, windows in samples.items()}
        rows.append(common.row(f"{case}: {what} step", of_windows, unit="ms", scale=1e3))
    print(f"{case}: {tuner.tuned - before} kernels raced", flush=True)
    return rows, tuner.tuned - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--programs", type=int, default=120)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows, raced = [], {}
    with gpt2.Cache() as cache:
        step, tuner = training(cache), Tuner(cache)
        tuner.supply(options.programs)
        for case in options.cases.split(","):
            more, raced[case] = compare(case, step, tuner, options)
            rows += more
    medians = [row for row in rows if row["case"].endswith("median step")]
    common.report("background_cost", rows, {"kernels raced meanwhile": raced, "median steps": common.ratios(medians)})


if __name__ == "__main__":
    main()
