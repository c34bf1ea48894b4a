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
        import kiln.regional  # noqa: F401
        from kiln.torch import captures

        captures.adapter()
    model = gpt2.make_model(arguments.layers, arguments.width, arguments.heads, arguments.vocabulary, arguments.dropout)
    batch = gpt2.make_batch(sequence=arguments.sequence, vocabulary=arguments.vocabulary)

    def stepper(run):
        return gpt2.training_step(run, model, batch) if arguments.mode == "train" else gpt2.forward_step(run, batch)

    def timed(function):
        """(seconds by the clock, seconds of this process's threads): what else the machine does is in the first."""
        start, start_cpu = time.perf_counter(), time.process_time()
        function()
        return time.perf_counter() - start, time.process_time() - start_cpu

    def loss_and_gradients(run):
        loss = run(**batch).loss
        if arguments.mode == "forward":
            return loss.item(), {}
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad(set_to_none=True)
        return loss.item(), gradients

    def largest_difference(ours, theirs):
        """Of all gradients, each against the largest element of its own: a loss is one number, and rounds much away."""
        return max(((ours[name] - each).abs().max() / each.abs().max()).item() for name, each in theirs.items())

    eager = stepper(model)
    eager_times = [timed(eager) for _ in range(arguments.eager_steps)]
    eager_loss, eager_gradients = loss_and_gradients(model)  # after its first step, which is timed as that
    runs, compiled = [], []

    def compile_and_step():
        runs.append(gpt2.compiled(model, arguments.compiler))
        compiled.append(stepper(runs[0]))
        compiled[0]()

    first = timed(compile_and_step)
    later = [timed(compiled[0]) for _ in range(arguments.steps)]
    result = {"compiler": arguments.compiler, "layers": arguments.layers, "mode": arguments.mode,
              "threads": torch.get_num_threads()}
    for i, kind in enumerate(("s", "cpu_s")):
        result |= {f"first_{kind}": first[i], f"step_{kind}": statistics.median(t[i] for t in later)}
        if eager_times:
            result |= {f"eager_{kind}": min(t[i] for t in eager_times), f"eager_first_{kind}": eager_times[0][i]}
    if arguments.compiler in ("kiln", "backend"):
        result["stats"] = kiln.stats()  # of the steps: a loss may need programs that they do not
    loss, gradients = loss_and_gradients(runs[0])
    result["loss_error"] = abs(loss - eager_loss)
    if eager_gradients:
        result["gradient_error"] = largest_difference(gradients, eager_gradients)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
