#!/usr/bin/env python3
"""Does a cold compile take seconds or tens of seconds? GPT-2 124M, training: the time from captured graphs (forward and
backward, out of Dynamo and AOTAutograd) to code that can run, caches empty, each sample a process of its own.

    python cold_compile.py [--rounds N] [--json FILE]
    python cold_compile.py --one COMPILER          one sample, as JSON

Kiln: its compilers for AOTAutograd, from call to bound programs: starting the daemon, text, key, miss, build, verdict,
publishing and mapping are in it, until all that was begun is there. Inductor: compile_fx_inner, its compiler for the same
two graphs. Joint partitioning counts for neither. kiln.compile captures a block once: fewer and smaller graphs for the same
model, reported beside.
"""
import argparse
import json
import time

import common
import gpt2

COMPILERS = ("kiln", "backend", "inductor")


def timed(function, seconds):
    """`function`, noting how long each call took. Calls inside calls are not counted twice."""
    depth = [0]

    def call(*arguments, **keywords):
        depth[0] += 1
        start = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            depth[0] -= 1
            if depth[0] == 0:
                seconds.append(time.perf_counter() - start)
    return call


def compile_inductor(model, seconds):
    import torch
    from torch._inductor import compile_fx

    inner = timed(compile_fx.compile_fx_inner, seconds)
    return torch.compile(model, backend=lambda gm, inputs: compile_fx.compile_fx(gm, inputs, inner_compile=inner))


def compile_kiln(model, compiler, seconds):
    import kiln.regional
    import kiln.torch.entry
    from kiln.torch import waiting

    compile_or_eager = kiln.torch.entry.compile_or_eager

    def compile_and_wait(*arguments):
        """Until the code is there: what is compiled is otherwise waited for by the first call, which torch's own run comes before."""
        result = compile_or_eager(*arguments)
        for build in list(waiting.building):
            build.thread.join()
        return result

    measured = timed(compile_and_wait, seconds)
    kiln.torch.entry.compile_or_eager = kiln.regional.compile_or_eager = measured
    return gpt2.compiled(model, compiler)


def one(compiler):
    """Graphs compiled in the first training step of this process, and how long each took."""
    import torch
    import torch._dynamo

    torch.set_num_threads(2)
    seconds = []
    model = gpt2.make_model()
    run = compile_inductor(model, seconds) if compiler == "inductor" else compile_kiln(model, compiler, seconds)
    gpt2.training_step(run, model, gpt2.make_batch())()
    result = {"compiler": compiler, "graphs": len(seconds), "seconds": seconds}
    if compiler != "inductor":
        import kiln

        result["stats"] = kiln.stats()
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=COMPILERS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.one:
        return one(arguments.one)
    samples, graphs, compilations = {name: [] for name in COMPILERS}, {}, {}
    for _ in range(arguments.rounds):
        for name in COMPILERS:
            with gpt2.Cache() as cache:
                result = cache.run("cold_compile.py", "--one", name)
            samples[name].append(sum(result["seconds"]))
            graphs[name] = result["graphs"]
            compilations[name] = result.get("stats", {}).get("compilations")
    case = "from captured graphs to code, training step, caches empty"
    rows = [common.row(f"{case}: {name}", {name: samples[name], "inductor": samples["inductor"]}, ours=name)
            for name in ("backend", "kiln")]
    common.report("cold_compile", rows, {"against_inductor": {r["case"].split()[-1]: round(r["ratio"], 2) for r in rows},
                                         "graphs": graphs, "compilations": compilations})


if __name__ == "__main__":
    main()
