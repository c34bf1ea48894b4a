"""Compiled graphs as plain data, and back: what a capture keeps of them.

A graph is kept as its generated source, the text of its regions and the source of their fallback. Programs are not in
it: the process that loads it finds them in the mapped cache by the text's key, and asks the daemon for what has gone.
"""

from __future__ import annotations

import importlib
import types

import torch

from .runtime import CompiledGraph, Counted, EagerRegion, StaticRegion


class NotKept(Exception):
    """Something in the graph has no plain form; it works, and is captured anew by each process."""


def dump(graph: CompiledGraph) -> dict:
    """Raises NotKept."""
    return {
        "source": graph.source,
        "names": _dump_names(graph.names),
        "attributes": {name: _dump_attribute(name, value) for name, value in graph.attributes.items()},
        "counted": (graph.counted.compiled, graph.counted.fallback),
    }


def load(state: dict) -> CompiledGraph:
    attributes = {name: _load_attribute(kind, value) for name, (kind, value) in state["attributes"].items()}
    graph = CompiledGraph(state["source"], _load_names(state["names"]), attributes)
    graph.counted = Counted(*state["counted"])
    graph.counted.add()
    return graph


def _dump_names(names: dict) -> dict:
    return {name: ("module", value.__name__) if isinstance(value, types.ModuleType) else ("value", value)
            for name, value in names.items() if name != "__builtins__"}  # fmt: skip


def _load_names(names: dict) -> dict:
    return {name: importlib.import_module(value) if kind == "module" else value for name, (kind, value) in names.items()}


def _dump_attribute(name: str, value) -> tuple:
    if isinstance(value, StaticRegion):
        return "region", (*value.state, _dump_eager(value.eager))
    if isinstance(value, EagerRegion):
        return "eager", _dump_eager(value)
    if isinstance(value, torch.Tensor):
        return "tensor", value.detach().clone()
    raise NotKept(f"{name} is a {type(value).__name__}")


def _load_attribute(kind: str, value):
    if kind == "region":
        text, inputs, outputs, eager = value
        eager = EagerRegion(None, None, _load_eager(eager))
        try:
            return StaticRegion(text, inputs, outputs, eager)
        except Exception:  # noqa: BLE001: Kiln never makes its caller fail
            return eager
    return EagerRegion(None, None, _load_eager(value)) if kind == "eager" else value


def _dump_eager(eager: EagerRegion) -> tuple:
    source, names = eager.code()
    return source, _dump_names(names)


def _load_eager(state: tuple) -> tuple:
    source, names = state
    return source, _load_names(names)
