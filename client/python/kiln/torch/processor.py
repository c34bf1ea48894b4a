"""What the processor of this machine has, as torch says."""

from __future__ import annotations

import functools

import torch


def has(feature: str) -> bool:
    """Whether the processor has it; the name is torch's, like "avx512_bf16"."""
    return bool(_capabilities().get(feature))


@functools.cache
def _capabilities() -> dict:
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


__all__ = ["has"]
