"""Plain forms of what generated source names: modules by name, tensors as bytes. What is kept of a graph, of its subgraphs and of
its capture (graphs.py, subgraphs.py, again.py) is made of these."""

from __future__ import annotations

import importlib
import types

import torch

from . import compat


class NotKept(Exception):
    """Something in the graph has no plain form; it works, and is captured anew by each process."""


def dump_names(names: dict) -> dict:
    return {name: ("module", value.__name__) if isinstance(value, types.ModuleType) else ("value", value)
            for name, value in names.items() if name != "__builtins__"}  # fmt: skip


def load_names(names: dict) -> dict:
    return {name: importlib.import_module(value) if kind == "module" else value for name, (kind, value) in names.items()}


def dump_tensor(name: str, value: torch.Tensor) -> tuple:
    """Raises NotKept."""
    with compat.adapter().real_mode():
        value = value.detach()
        if not value.is_contiguous() or value.numel() == 0:
            raise NotKept(f"{name} is a tensor that is empty or not contiguous")
        return value.dtype, tuple(value.shape), str(value.device), value.cpu().flatten().view(torch.uint8).numpy().tobytes()


def load_tensor(dtype: torch.dtype, shape: tuple, device: str, data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).to(device)


__all__ = ["NotKept", "dump_names", "dump_tensor", "load_names", "load_tensor"]
