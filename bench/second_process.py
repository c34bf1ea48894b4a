#!/usr/bin/env python3
"""Does a second process start at once, whatever the model? Each of six architectures, training, through kiln.compile: one
process fills a cache, the daemon is stopped, then fresh processes start from the mapped cache alone. Of these are reported

  - how many frames Dynamo captured, and how many kernels were compiled: none is expected of either;
  - the first step, loading included, less an eager step of the same process: below 0 where Kiln's step is faster by more
    than the start costs;
  - the call of kiln.compile() itself, in a process in which nothing has imported Dynamo before.

Times are by the clock. --rounds N; --models gpt2,llama,…"""
import argparse
import json
import statistics
import sys
import time

import common
import gpt2
import models


def timed(function, *arguments):
    start = time.perf_counter()
    return function(*arguments), time.perf_counter() - start


def one(name):
    """What this process saw, as JSON."""
    import torch

    torch.set_num_threads(2)
    title, model, batch = models.make(name, torch.float32)
    eager_step = gpt2.training_step(model, model, batch)
    eager = [timed(eager_step)[1] for _ in range(3)]
    is_imported = "torch._dynamo" in sys.modules
    import kiln

    run, call = timed(kiln.compile, model)
    step = gpt2.training_step(run, model, batch)
    first = timed(step)[1]
    later = min(timed(step)[1] for _ in range(3))
    print(json.dumps({"title": title, "eager_s": min(eager), "call_s": call, "first_s": first, "step_s": later,
                      "dynamo_was_imported": is_imported, "frames": torch._dynamo.utils.counters["frames"]["ok"],
                      "compilations": kiln.stats()["compilations"]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--one", choices=models.MODELS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.one:
        return one(arguments.one)
    rows, summary = [], {}
    for name in arguments.models.split(","):
        with gpt2.Cache() as cache:
            cache.run("second_process.py", "--one", name)
            cache.stop_daemon()
            results = [cache.run("second_process.py", "--one", name, KILN_NO_DAEMON="1") for _ in range(arguments.rounds)]
        title = results[0]["title"]
        rows.append(common.row(f"{title}: first step less an eager one", {"kiln": [r["first_s"] - r["eager_s"] for r in results]}))
        rows.append(common.row(f"{title}: kiln.compile() itself", {"kiln": [r["call_s"] for r in results]}))
        summary[title] = {"new captures": max(r["frames"] for r in results),
                          "compilations": max(r["compilations"] for r in results),
                          "first step less an eager one, s": round(statistics.median(r["first_s"] - r["eager_s"] for r in results), 3),
                          "kiln.compile(), s": round(statistics.median(r["call_s"] for r in results), 3),
                          "Dynamo was imported before": any(r["dynamo_was_imported"] for r in results)}
    common.report("second_process", rows, summary)


if __name__ == "__main__":
    main()
