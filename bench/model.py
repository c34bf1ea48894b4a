#!/usr/bin/env python3
"""Is every step fast? Models of models.py: forward without gradients; train, loss and gradients; step, the same with
dropout, and AdamW compiled with the model. Kiln both ways against eager and Inductor, in one process, interleaved, 2 threads,
each sample after a step of its own kind, as steps follow one another.
With --memory, instead: peak memory of a step, each compiler in processes of its own, in turn: the most that was resident during
steady steps, less what was before the model existed.
--models gpt2,llama,bert,vit,t5; --modes forward,train,step; --dtypes f32,bf16;
--compilers kiln,backend,tuned,eager,inductor,autotune (tuned: the backend in mode max-autotune, as a later process of any mode
finds it; autotune: Inductor's); --rounds N; --processor: seconds that all threads were on a processor, for a machine that does
other work; with OMP_WAIT_POLICY=passive, or threads that wait for one another count."""
import argparse
import copy
import json
import pathlib
import re
import time

import common
import gpt2
import models

DROPOUT = 0.1
SAMPLE_S = 5e-2  # of steps, at least one, after one that does not count


def whole_step(run, model, batch, compiler):
    import torch

    optimizer = gpt2.compiled_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-4), compiler)

    def step():
        run(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def make_step(mode, model, batch, compiler):
    run = gpt2.compiled(model, compiler)
    if mode == "step":
        return whole_step(run, model, batch, compiler)
    return gpt2.training_step(run, model, batch) if mode == "train" else gpt2.forward_step(run, batch)


def make_model(name, mode, dtype):
    import torch

    return models.make(name, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype], DROPOUT if mode == "step" else 0.0)


def measure(name, mode, dtype, compilers, rounds, clock):
    import torch

    torch.compiler.reset()
    title, base, batch = make_model(name, mode, dtype)
    steps = {compiler: make_step(mode, copy.deepcopy(base), batch, compiler) for compiler in compilers}
    samples = common.interleave(steps, rounds, warmup=2, sample_s=SAMPLE_S, clock=clock)
    return common.row(f"{title} {dtype} {mode}", samples, own=("backend", "tuned"))


def resident_mib(field):
    """VmRSS: now; VmHWM: the most since it was reset."""
    return int(re.search(rf"{field}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1024


def peak_memory(name, mode, dtype, compiler):
    """Prints what one process needed. Imports are not what is measured: in each process, also eager's, all are over before."""
    import kiln.torch.entry  # noqa: F401
    import torch
    import torch._dynamo
    import torch._functorch.aot_autograd
    import transformers  # noqa: F401

    torch.set_num_threads(2)
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.zeros(1))  # which imports more
    before = resident_mib("VmRSS")
    title, model, batch = make_model(name, mode, dtype)
    step = make_step(mode, model, batch, compiler)
    for _ in range(3):
        step()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    for _ in range(3):
        step()
    print(json.dumps({"title": title, "mib": resident_mib("VmHWM") - before}))


def memory_row(name, mode, dtype, compilers, rounds):
    """Processes differ by a tenth: what is free in the allocator's heap lies in other holes each time."""
    samples = {compiler: [] for compiler in compilers}
    for _ in range(rounds):
        for compiler, found in samples.items():
            with gpt2.Cache() as cache:
                one = cache.run("model.py", "--memory-of", compiler, "--models", name, "--modes", mode, "--dtypes", dtype)
            found.append(one["mib"])
    return common.row(f"{one['title']} {dtype} {mode}, peak memory", samples, unit="MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="11 of steps, 3 of processes whose memory is asked for")
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--modes", default="forward,train,step")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--compilers", default="kiln,backend,eager,inductor")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--memory-of", choices=[*gpt2.COMPILERS, "tuned", "autotune"])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    names, modes, dtypes, compilers = (getattr(arguments, what).split(",") for what in ("models", "modes", "dtypes", "compilers"))
    if arguments.memory_of:
        return peak_memory(names[0], modes[0], dtypes[0], arguments.memory_of)
    cases = [(name, mode, dtype) for mode in modes for dtype in dtypes for name in names]
    if arguments.memory:
        rows = common.until_interrupted(memory_row(*case, compilers, arguments.rounds or 3) for case in cases)
        return common.report("memory", rows, common.ratios(rows))
    import torch

    torch.set_num_threads(2)
    clock = time.process_time if arguments.processor else time.perf_counter
    rows = [measure(*case, compilers, arguments.rounds or 11, clock) for case in cases]
    summary = {row["case"]: {"against_" + n: round(v / row["ours"], 3) for n, v in {**row["own"], **row["peers"]}.items()}
               for row in rows}
    if "inductor" in compilers:
        for mode in modes:
            ratios = [row["peers"]["inductor"] / row["ours"] for row in rows if row["case"].endswith(f" {mode}")]
            summary[f"{mode}: geometric mean against inductor"] = round(common.geometric_mean(ratios), 3)
    common.report("model, processor seconds" if arguments.processor else "model", rows, summary)


if __name__ == "__main__":
    main()
