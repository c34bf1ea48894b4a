#!/usr/bin/env python3
"""Do ranks of a job compile what they share once? torchrun starts one rank, then --ranks of them, with an empty cache each time:
a GPT-2 with random weights, compiled, in DistributedDataParallel over gloo. From a barrier, imports aside, each takes a first
training step, then more. Time: the slowest rank's first step, N ranks against one; beside it eager's. Compilations: of all
ranks, against one. Ranks have a thread each; where there are more of them than processors, they wait for each other.

    python ranks.py [--ranks 8] [--rounds N] [--json FILE] [--layers N] [--width N] …
    python -m torch.distributed.run ranks.py --rank kiln|eager      one rank of a job
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import common
import gpt2

WAYS = ("kiln", "eager")


def add_model(parser):
    for name, default in (("layers", 12), ("width", 256), ("heads", 4), ("vocabulary", 8192), ("sequence", 128), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)


def rank(way, arguments):
    import torch
    import torch._dynamo  # imports are not what is measured
    import torch._functorch.aot_autograd
    import torch.distributed as dist

    import kiln.regional  # noqa: F401
    from kiln.torch import captures

    captures.adapter()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = gpt2.make_model(arguments.layers, arguments.width, arguments.heads, arguments.vocabulary)
    batch = gpt2.make_batch(sequence=arguments.sequence, vocabulary=arguments.vocabulary)
    run = torch.nn.parallel.DistributedDataParallel(gpt2.compiled(model, way))
    step = gpt2.training_step(run, run, batch)
    seconds = []
    for _ in range(1 + arguments.steps):
        dist.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    said = {"first_s": seconds[0], "step_s": statistics.median(seconds[1:]), "stats": kiln.stats()}
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, said)
    if dist.get_rank() == 0:
        print(json.dumps(ranks), flush=True)
    dist.barrier()
    os._exit(0)  # taking gloo apart may wait for ever for ranks that are gone, compiled or not


def job(number, way, model):
    """What each of so many ranks saw, of a job with a cache of its own."""
    with gpt2.Cache() as cache:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number),
                   str(gpt2.ROOT / "bench" / "ranks.py"), "--rank", way, *model]
        process = subprocess.run(command, env=cache.environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                                 check=False)
        if process.returncode != 0:
            raise RuntimeError(process.stderr[-3000:])
        return json.loads(process.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", choices=WAYS)
    parser.add_argument("--json")
    add_model(parser)
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(arguments.rank, arguments)
    names = ("layers", "width", "heads", "vocabulary", "sequence", "steps")
    model = [text for name in names for text in (f"--{name}", str(getattr(arguments, name)))]
    jobs = {"one": (1, "kiln"), "many": (arguments.ranks, "kiln"), "eager": (arguments.ranks, "eager")}
    seen = {name: [] for name in jobs}
    for _ in range(arguments.rounds):
        for name, (number, way) in jobs.items():
            seen[name].append(job(number, way, model))
    slowest = {kind: {name: [max(each[kind] for each in ranks) for ranks in of_name] for name, of_name in seen.items()}
               for kind in ("first_s", "step_s")}
    rows = [common.row(f"{arguments.ranks} ranks, {what}", slowest[kind], ours="many")
            for kind, what in (("first_s", "first step"), ("step_s", "later steps"))]
    compilations = {name: statistics.median(sum(each["stats"]["compilations"] for each in ranks) for ranks in seen[name])
                    for name in ("one", "many")}
    first = {name: statistics.median(slowest["first_s"][name]) for name in ("one", "many")}
    common.report("ranks", rows, {"compilations": compilations,
                                  "compilations_against_one": round(compilations["many"] / compilations["one"], 3),
                                  "first_against_one": round(first["many"] / first["one"], 3)})


if __name__ == "__main__":
    main()
