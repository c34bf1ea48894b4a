#!/usr/bin/env python3
"""Is an optimizer's step fast? AdamW over the parameters of GPT-2 124M, f32: kiln.compile(optimizer) and
torch.compile(optimizer.step, backend="kiln") against eager, torch's fused kernel and Inductor, interleaved. --rounds N;
--layers N; --ways kiln,backend,eager,fused,inductor."""
import argparse

import common
import gpt2


def make(way, model):
    """(optimizer, its step) of a model of its own."""
    import torch

    fused = way == "fused"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if fused else None)
    gpt2.compiled_optimizer(optimizer, "eager" if fused else way)
    return lambda: optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--ways", default="kiln,backend,eager,fused,inductor")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(2)
    steps = {}
    for way in arguments.ways.split(","):
        model = gpt2.make_model(layers=arguments.layers)
        for param in model.parameters():
            param.grad = torch.randn_like(param)
        steps[way] = make(way, model)
    samples = common.interleave(steps, arguments.rounds, warmup=3)
    rows = [common.row(f"AdamW, GPT-2 124M's parameters, {arguments.layers} layers", samples)]
    common.report("optimizer_step", rows, {"against_" + name: round(value / rows[0]["ours"], 3)
                                           for name, value in {**rows[0]["own"], **rows[0]["peers"]}.items()})


if __name__ == "__main__":
    main()
