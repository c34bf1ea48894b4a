"""Runs a torch module once, so that what it compiles is in the cache: what `kiln warm --torch` starts.

    python -m kiln.warm module:function [--train] [--whole] [--target A,B] [--shape JSON]

`function()` returns a module and its example inputs: a tuple of arguments or a dict of keywords; it is called with the
numbers of --shape as keywords. Graphs are built for this
host and for each target. Stdout is one JSON object with the counters of kiln.stats(), `targets` (nodes built and left for
each), `missed` (kiln.explain()'s misses) and the seconds it took. Exits with 5 when a graph, or everything, was left to torch, here or on a target.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import json
import sys
import time


def load(source: str, shape: dict[str, int]):
    """The module and its (arguments, keywords)."""
    module_name, function_name = source.split(":", 1)
    function = getattr(importlib.import_module(module_name), function_name)
    model, inputs = function(**shape)
    if isinstance(inputs, dict):
        return model, (), inputs
    if isinstance(inputs, (tuple, list)):
        return model, tuple(inputs), {}
    raise TypeError(f"{source} gave inputs of type {type(inputs).__name__}, expected a tuple or a dict")


def scalar_of(output):
    """Something to start a backward from: the loss if there is one, else the sum of all floating outputs."""
    import torch

    from .torch.tensors import tensors_in

    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    differentiable = [t for t in tensors_in(output) if t.requires_grad]
    if not differentiable:
        raise ValueError("--train: no output depends on a parameter that is trained")
    return sum(t.sum() for t in differentiable)


def warm(source: str, train: bool, whole: bool, targets: list[str], shape: dict[str, int]) -> dict:
    import torch

    import kiln

    from ._session import session

    start = time.perf_counter()
    session().is_forced = True
    session().check, session().wait = "first", "always"  # whatever is configured
    session().targets = {target: collections.Counter(nodes_compiled=0, nodes_left=0) for target in targets}
    model, arguments, keywords = load(source, shape)
    model.train(train)
    compiled = torch.compile(model, backend="kiln") if whole else kiln.compile(model)
    with contextlib.nullcontext() if train else torch.no_grad():
        output = compiled(*arguments, **keywords)
    if train:
        scalar_of(output).backward()
    missed = [why for why in kiln.explain() if "key" in why]
    return {**kiln.stats(), "targets": session().targets, "missed": missed, "seconds": round(time.perf_counter() - start, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="kiln.warm", description=__doc__)
    parser.add_argument("source", help="module:function")
    parser.add_argument("--train", action="store_true", help="run the backward too")
    parser.add_argument("--whole", action="store_true", help='torch.compile(backend="kiln") instead of kiln.compile')
    parser.add_argument("--target", default="", help="more targets, with commas between")
    parser.add_argument("--shape", type=json.loads, default={}, help="what the function is called with: a JSON object of numbers")
    options = parser.parse_args()
    targets = list(filter(None, options.target.split(",")))
    with contextlib.redirect_stdout(sys.stderr):  # what the module prints is no answer
        stats = warm(options.source, options.train, options.whole, targets, options.shape)
    json.dump(stats, sys.stdout)
    compiled = [stats["nodes_compiled"], *(built["nodes_compiled"] for built in stats["targets"].values())]
    return 5 if stats["graphs_eager"] or not all(compiled) else 0


if __name__ == "__main__":
    sys.exit(main())
