"""What this machine's processor has, as torch says, and what the one has that graphs are built for, if it is a processor."""

from __future__ import annotations

import contextvars
import functools

import torch

from .scoped import set_within

_elsewhere = contextvars.ContextVar("elsewhere", default="")


def of_target(name: str):
    """Within, graphs are built for the target, like "x86-64-v4-amx"."""
    return set_within(_elsewhere, name)


def has(feature: str) -> bool:
    """Whether this machine's processor has it; the name is torch's, like "avx512_bf16"."""
    return bool(_capabilities().get(feature))


def builds_for_amx() -> bool:
    """Whether graphs are built for a processor that has AMX: this machine's, unless another target is named."""
    name = _elsewhere.get()
    return "amx" in name.split("-") if name else has("amx_tile")


def builds_for_a_device() -> bool:
    """Whether the target that is named is no processor's."""
    name = _elsewhere.get()
    return bool(name) and not name.startswith("x86-64")


@functools.cache
def _capabilities() -> dict:
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


__all__ = ["builds_for_a_device", "builds_for_amx", "has", "of_target"]
