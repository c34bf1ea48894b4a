#!/usr/bin/env python3
"""One process's start: makes a GPT-2, compiles it one way, takes a few steps, prints what each took as JSON.

    python gpt2_process.py COMPILER [--mode train|forward] [--layers N] [--width N] …
"""
import argparse
import json
import statistics
import time

import gpt2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler", choices=gpt2.COMPILERS)
    parser.add_argument("--mode", choices=["train", "forward"], default="train")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--eager-steps", type=int, default=3)
    arguments = parser.parse_args()

    import torch
    import torch._dynamo  # imports are not what is measured
    import torch._functorch.aot_autograd

    torch.set_num_threads(2)
    if arguments.compiler in ("kiln", "backend"):
        import kiln  # noqa: F401
        import kiln.torch  # noqa: F401
    model = gpt2.make_model(arguments.layers, arguments.width, arguments.heads, arguments.vocabulary, arguments.dropout)
    ids = gpt2.tokens(sequence=arguments.sequence, vocabulary=arguments.vocabulary)

    def stepper(run):
        return gpt2.training_step(run, model, ids) if arguments.mode == "train" else gpt2.forward_step(run, ids)

    eager = stepper(model)
    eager_s = []
    for _ in range(arguments.eager_steps):
        start = time.perf_counter()
        eager()
        eager_s.append(time.perf_counter() - start)
    start = time.perf_counter()
    step = stepper(gpt2.compiled(model, arguments.compiler))
    step()
    first_s = time.perf_counter() - start
    steps_s = []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        step()
        steps_s.append(time.perf_counter() - start)
    result = {"compiler": arguments.compiler, "layers": arguments.layers, "mode": arguments.mode, "first_s": first_s,
              "step_s": statistics.median(steps_s), "eager_s": min(eager_s, default=None), "threads": torch.get_num_threads()}
    if arguments.compiler in ("kiln", "backend"):
        result["stats"] = kiln.stats()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
