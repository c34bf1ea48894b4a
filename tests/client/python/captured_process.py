"""One process of test_captures.py and test_halves.py: `captured_process.py ARCHITECTURE [--whole] [--dtype NAME | --autocast]`
compiles with kiln.compile, or as a whole with torch.compile(backend="kiln"), runs a forward, then a step of training, and prints
what was counted and how long the first of each took beside eager's, as one line of JSON. The model is of the dtype, or of f32
and computes in bf16."""

import copy
import functools
import json
import sys
import time

import torch
from captured_models import make_architecture

import kiln


def step(model, inputs, trains):
    model.train(trains)
    with torch.set_grad_enabled(trains):
        with torch.autocast("cpu", torch.bfloat16, enabled="--autocast" in sys.argv):
            output = model(**inputs)
        output = getattr(output, "loss", output)
        if trains:
            output.sum().backward()
    return output.detach()


def timed(function, *arguments):
    start = time.perf_counter()
    return function(*arguments), time.perf_counter() - start


model, inputs = make_architecture(sys.argv[1])
if "--dtype" in sys.argv:
    dtype = getattr(torch, sys.argv[sys.argv.index("--dtype") + 1])
    model.to(dtype)
    inputs = {name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in inputs.items()}
twin = copy.deepcopy(model)
if "--whole" in sys.argv:
    model, call = timed(functools.partial(torch.compile, backend="kiln"), model)
else:
    model, call = timed(kiln.compile, model)
report = {"call_s": call, "error": 0.0}
for name, trains in (("forward", False), ("training", True)):
    step(twin, inputs, trains)
    twin.zero_grad()
    expected, eager = timed(step, twin, inputs, trains)
    got, first = timed(step, model, inputs, trains)
    report[f"{name}_s"] = first - eager
    report["error"] = max(report["error"], ((got - expected).abs().max() / expected.abs().max()).item())
report |= {"frames": torch._dynamo.utils.counters["frames"]["ok"], "stats": kiln.stats(), "explain": kiln.explain()}
print(json.dumps(report))
