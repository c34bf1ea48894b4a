"""Compiled graphs as plain data, and back: what a capture keeps of them.

A graph is kept as its generated source, the text of its regions and the source of their fallback. Programs are not in
it: the process that loads it finds them in the mapped cache by the text's key, and asks the daemon for what has gone.
"""

from __future__ import annotations

import importlib
import types

import torch

from . import compat
from .again import Again
from .place import Place
from .runtime import CompiledGraph, EagerRegion, StaticRegion
from .symbolic import SymbolicRegion


class NotKept(Exception):
    """Something in the graph has no plain form; it works, and is captured anew by each process."""


def dump(graph: CompiledGraph) -> dict:
    """Raises NotKept."""
    return {
        "source": graph.source,
        "names": _dump_names(graph.names),
        "attributes": {name: _dump_attribute(name, value) for name, value in graph.attributes.items()},
        "outside": graph.outside,
        "again": _dump_again(graph.again) if graph.again else None,
    }


def load_again(state: dict) -> Again:
    source, names, *rest = state["again"]
    return Again(source, _load_names(names), {}, *rest)


def _dump_again(again: Again) -> tuple:
    if not again.why_not and not again.is_plain:
        return "", {}, [], False, "it holds what only the process has that captured it"
    return again.source, {} if again.why_not else _dump_names(again.names), again.autocast, again.draws, again.why_not


def load(state: dict) -> CompiledGraph:
    attributes = {name: _load_attribute(kind, value) for name, (kind, value) in state["attributes"].items()}
    return CompiledGraph(state["source"], _load_names(state["names"]), attributes, state["outside"])


def _dump_names(names: dict) -> dict:
    return {name: ("module", value.__name__) if isinstance(value, types.ModuleType) else ("value", value)
            for name, value in names.items() if name != "__builtins__"}  # fmt: skip


def _load_names(names: dict) -> dict:
    return {name: importlib.import_module(value) if kind == "module" else value for name, (kind, value) in names.items()}


def _dump_attribute(name: str, value) -> tuple:
    if isinstance(value, EagerRegion) and value.is_final:
        return "eager", (value.reason, *_dump_eager(value))
    if isinstance(value, EagerRegion) and value.state is not None:
        return "region", (*_dump_state(value), *_dump_eager(value))
    if isinstance(value, (StaticRegion, SymbolicRegion)):
        kind = "region" if isinstance(value, StaticRegion) else "symbolic"
        return kind, (*_dump_state(value), *_dump_eager(value.eager))
    if isinstance(value, torch.Tensor):
        with compat.adapter().real_mode():
            return "tensor", _dump_tensor(name, value.detach())
    raise NotKept(f"{name} is a {type(value).__name__}")


def _dump_eager(eager: EagerRegion) -> tuple:
    source, names = eager.code()
    return eager.ops, source, _dump_names(names)


def _load_eager(ops: tuple, source: str, names: dict) -> EagerRegion:
    eager = EagerRegion(None, None, (source, _load_names(names)))
    eager.ops = ops
    return eager


def _dump_tensor(name: str, value: torch.Tensor) -> tuple:
    if not value.is_contiguous() or value.numel() == 0:
        raise NotKept(f"{name} is a tensor that is empty or not contiguous")
    return value.dtype, tuple(value.shape), str(value.device), value.cpu().flatten().view(torch.uint8).numpy().tobytes()


def _load_tensor(dtype: torch.dtype, shape: tuple, device: str, data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).to(device)


def _dump_state(region) -> tuple:
    text, inputs, outputs, place, *symbols = region.state
    return text, inputs, outputs, str(place.device), *symbols


def _load_attribute(kind: str, value):
    if kind in ("region", "symbolic"):
        text, inputs, outputs, device, *symbols, ops, source, names = value
        state = (text, inputs, outputs, Place(torch.device(device)), *symbols)
        eager = _load_eager(ops, source, names)
        if kind == "symbolic":
            return SymbolicRegion(*state, eager)
        eager.state = state
        try:
            return StaticRegion(*state, eager)
        except Exception as error:  # noqa: BLE001: Kiln never makes its caller fail
            eager.reason = str(error)
            return eager
    if kind == "eager":
        reason, *code = value
        eager = _load_eager(*code)
        eager.reason, eager.is_final = reason, True
        return eager
    return _load_tensor(*value)
