#!/usr/bin/env python3
"""Is every step fast? Models of models.py: forward without gradients; train, loss and gradients; step, the same with
dropout, and AdamW compiled with the model. Kiln both ways against eager and Inductor, in one process, interleaved, 2 threads.
--models gpt2,llama,bert,vit,t5; --modes forward,train,step; --dtypes f32,bf16; --compilers kiln,backend,eager,inductor,autotune
(Inductor's max-autotune); --rounds N."""
import argparse
import copy

import common
import gpt2
import models

DROPOUT = 0.1


def whole_step(run, model, batch, compiler):
    import torch

    optimizer = gpt2.compiled_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-4), compiler)

    def step():
        run(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def make_step(mode, base, batch, compiler):
    model = copy.deepcopy(base)
    run = gpt2.compiled(model, compiler)
    if mode == "step":
        return whole_step(run, model, batch, compiler)
    return gpt2.training_step(run, model, batch) if mode == "train" else gpt2.forward_step(run, batch)


def measure(name, mode, dtype, compilers, rounds):
    import torch

    torch.compiler.reset()
    title, base, batch = models.make(name, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype], DROPOUT if mode == "step" else 0.0)
    steps = {compiler: make_step(mode, base, batch, compiler) for compiler in compilers}
    samples = common.interleave(steps, rounds, warmup=2)
    row = common.row(f"{title} {dtype} {mode}", samples)
    print(f"{row['case']}: ratio {row['ratio']:.3f}", {name: round(min(values), 4) for name, values in samples.items()}, flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--modes", default="forward,train,step")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--compilers", default="kiln,backend,eager,inductor")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(2)
    names, modes, dtypes, compilers = (getattr(arguments, what).split(",") for what in ("models", "modes", "dtypes", "compilers"))
    rows = [measure(name, mode, dtype, compilers, arguments.rounds) for mode in modes for dtype in dtypes for name in names]
    summary = {row["case"]: {"against_" + n: round(v / row["ours"], 3) for n, v in {**row["own"], **row["peers"]}.items()}
               for row in rows}
    if "inductor" in compilers:
        for mode in modes:
            ratios = [row["peers"]["inductor"] / row["ours"] for row in rows if row["case"].endswith(f" {mode}")]
            summary[f"{mode}: geometric mean against inductor"] = round(common.geometric_mean(ratios), 3)
    common.report("model", rows, summary)


if __name__ == "__main__":
    main()
