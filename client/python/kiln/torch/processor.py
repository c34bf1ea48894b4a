"""What the processor has that graphs are built for: this machine's, as torch says, unless another target is named."""

from __future__ import annotations

import contextvars
import functools

import torch

from .scoped import set_within

# The features that this package asks for, by torch's names, and the words of a target's name that say that it has them.
WORDS = {"avx2": ("v3", "v4"), "avx512_f": ("v4",), "avx512_bf16": ("bf16", "amx"), "amx_tile": ("amx",)}
_elsewhere = contextvars.ContextVar("elsewhere", default="")


def of_target(name: str):
    """Within, it is the target's, like "x86-64-v4-amx"."""
    return set_within(_elsewhere, name)


def has(feature: str) -> bool:
    """Whether the processor has it."""
    name = _elsewhere.get()
    return any(word in name.split("-") for word in WORDS[feature]) if name else bool(_capabilities().get(feature))


@functools.cache
def _capabilities() -> dict:
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


__all__ = ["has", "of_target"]
