#!/usr/bin/env python3
"""Is every step fast? GPT-2 124M, batch 1, 512 tokens, f32: forward and training step, Kiln both ways against eager and
Inductor, in one process, interleaved. --rounds N; --modes forward,train; --compilers kiln,backend,eager,inductor."""
import argparse
import copy

import common
import gpt2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--modes", default="forward,train")
    parser.add_argument("--compilers", default="kiln,backend,eager,inductor")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(2)
    base = gpt2.make_model()
    ids = gpt2.tokens()
    rows = []
    for mode in arguments.modes.split(","):
        steps = {}
        for compiler in arguments.compilers.split(","):
            model = copy.deepcopy(base)
            run = gpt2.compiled(model, compiler)
            steps[compiler] = gpt2.training_step(run, model, ids) if mode == "train" else gpt2.forward_step(run, ids)
            steps[compiler]()
        samples = common.interleave(steps, arguments.rounds)
        rows.append(common.row(f"GPT-2 124M {mode}", samples))
    common.report("step_time", rows, {r["case"]: {"against_" + n: round(v / r["ours"], 3) for n, v in {**r["own"], **r["peers"]}.items()}
                                      for r in rows})


if __name__ == "__main__":
    main()
