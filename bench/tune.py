#!/usr/bin/env python3
"""Does the tuner find what there is to find, and at what price? Parts:

  picks   for each problem, what the service's own tuner picks from its candidates, against every schedule that the
          implementations list, timed the same way (schedule_search.h). The pick and the three best of the search then meet
          again, in turn. A row's ratio is the best one's time over the pick's, the median over turns
  faults  what the tuner picks of a problem beside a loop that never rests, and what it picks where the candidates come worst
          first, against what it picks alone; a row's ratio is the time of that one over the pick's
  gpt2    tuning all products and attention of a GPT-2 124M training step: a cold cache, KILN_AUTOTUNE_MODE=max, one process;
          its first step less that of a process that tunes nothing; --repeats N of both, in turn

Samples are taken as the tuner takes them: in an execution worker with as many threads as the machine has processors, four at
most, each repetition after the caches were driven out.

--shapes FILE; --kinds gemm,attention; --dtypes f32,bf16; --sample N problems of each kind and dtype, --seed N; --parts picks,faults,gpt2
"""
import argparse
import json
import os
import random
import subprocess

import attention
import common
import gemm
import gpt2
import kernels

WITHIN = 0.02
FAULTS = ("beside a busy loop", "worst first")


def problems(kind, dtype, options):
    """{name: graph} of a kind and dtype: all, or a random sample. Softcap is several kernels and no problem."""
    module = {"gemm": gemm, "attention": attention}[kind]
    if options.shapes:
        cases = module.cases_in(options.shapes, dtype)
    else:
        cases = gemm.SETS["gpt2"] if kind == "gemm" else attention.CASES
    cases = [case for case in cases if not getattr(case, "cap", 0)]
    chosen = random.Random(options.seed).sample(cases, min(options.sample or len(cases), len(cases)))
    return {f"{kind} {dtype} {case}": case.text(dtype) for case in chosen}


def searched(search, text, options):
    """(what a search of schedule_search.h found, the samples of each schedule that met in its final)."""
    found = json.loads(kernels.checked(search(text.encode(), b"", options.rounds)))
    return found, {name: about.pop("samples") for name, about in found.items() if isinstance(about, dict) and "schedule" in about}


def pick(name, text, options):
    found, samples = searched(kernels.library().kiln_bench_search, text, options)
    values = {key: found[key]["seconds"] * 1e3 for key in samples}
    return common.show({"case": name, "unit": "ms", "ours": values["pick"], "own": {"analytic": values["analytic"]},
                        "peers": {"best schedule": values["best"]}, "ratio": found["best_to_pick"],
                        "spread": common.spreads({key: samples[key] for key in ("pick", "best", "analytic")}), "found": found})


def each_problem(measure, options):
    return common.until_interrupted(measure(name, text, options) for kind in options.kinds.split(",")
                                    for dtype in options.dtypes.split(",") for name, text in problems(kind, dtype, options).items())


def picks(options):
    rows = each_problem(pick, options)
    good = [row for row in rows if row["ratio"] >= 1 - WITHIN]
    kept = [row for row in rows if row["found"]["best_to_analytic"] >= 1 - WITHIN]
    totals = {who: {what: round(sum(row["found"][who][what] for row in rows), 1) for what in ("samples", "seconds")}
              for who in ("tuner", "search")}
    return rows, {"within 2 %": f"{len(good)} of {len(rows)}", "analytic pick within 2 %": f"{len(kept)} of {len(rows)}",
                  **common.ratios(rows), "schedules": sum(row["found"]["schedules"] for row in rows), **totals}


def faulty_picks(name, text, options):
    """A row for each fault."""
    found, samples = searched(kernels.library().kiln_bench_search_with_faults, text, options)
    alone, last = (found[key]["seconds"] * 1e3 for key in ("alone", "the last"))
    return [common.show({"case": f"{name}, {fault}", "unit": "ms", "ours": found[fault]["seconds"] * 1e3,
                         "own": {"the model's last": last}, "peers": {"picked alone": alone},
                         "ratio": found[fault]["alone_to_it"], "spread": common.spreads({fault: samples[fault]}),
                         "is_same": found[fault]["schedule"] == found["alone"]["schedule"]}) for fault in FAULTS]


def faults(options):
    rows = [row for rows in each_problem(faulty_picks, options) for row in rows]
    of_fault = {fault: [row for row in rows if row["case"].endswith(fault)] for fault in FAULTS}
    return rows, {fault: {"same pick": f"{sum(row['is_same'] for row in mine)} of {len(mine)}",
                          "within 2 %": f"{sum(row['ratio'] >= 1 - WITHIN for row in mine)} of {len(mine)}", **common.ratios(mine)}
                  for fault, mine in of_fault.items()}


def records(cache):
    """What `kiln show` prints of each record in the cache."""
    def kiln(*arguments):
        program = kernels.LIBRARY.parents[1] / "bin" / "kiln"
        done = subprocess.run([program, *arguments, "--json"], env=cache.environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    listed = kiln("ls", "--kind", "record", "--limit", "10000")["entries"]
    return [kiln("show", entry["digest"])["entry"]["record"] for entry in listed]


def training_set(options):
    """GPT-2's training step, tuned before its first one and not tuned at all."""
    first = {"tuned": [], "not tuned": []}
    for _ in range(options.repeats):
        for way, mode in (("not tuned", "off"), ("tuned", "max")):
            with gpt2.Cache() as cache:
                first[way].append(cache.run("gpt2_process.py", "kiln", "--steps", 3, KILN_AUTOTUNE_MODE=mode)["first_s"])
                found = records(cache)  # the last one's are of a process that tuned
    samples = sum(1 + len(candidate["seconds"]) + candidate["disturbed"] for record in found for candidate in record["candidates"])
    changed = sum(record["winner"] != 0 for record in found)
    row = common.row("GPT-2 124M, training: first step, cold, tuned", first, ours="tuned", own=("not tuned",))
    return [row], {"seconds for tuning": round(row["ours"] - row["own"]["not tuned"], 1), "kernels": len(found), "samples": samples,
                   "kernels whose first candidate did not win": changed}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", metavar="FILE")
    parser.add_argument("--kinds", default="gemm,attention")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--parts", default="picks,faults,gpt2")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    kernels.set_up(argparse.Namespace(threads=os.cpu_count()))
    rows, summary = [], {}
    for name, part in (("picks", picks), ("faults", faults), ("gpt2", training_set)):
        if name in options.parts.split(","):
            more, summary[name] = part(options)
            rows += more
    common.report("tune", rows, summary)


if __name__ == "__main__":
    main()
