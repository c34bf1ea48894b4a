"""The tensors in what torch's functions take and give."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

SYMBOLIC_EXTENT = 64


def tensors_in(value) -> Iterator[torch.Tensor]:
    """The tensors of a tensor, or of dicts (ModelOutput is one), lists and tuples of them, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def relayout(tensor: torch.Tensor, strides: tuple) -> torch.Tensor:
    """A copy of the tensor in these strides."""
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    copy.copy_(tensor.detach())
    return copy


def span_of(shape, strides) -> int:
    """Elements of memory from a tensor's first element to its last, gaps included."""
    return 0 if 0 in shape else 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))


def extents_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """With SYMBOLIC_EXTENT in the place of each that is not known yet."""
    return tuple(e if type(e) is int else SYMBOLIC_EXTENT for e in tensor.shape)


def elements_of(tensor: torch.Tensor) -> int:
    return math.prod(extents_of(tensor))


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether an extent is 0. Extents that only the run tells may not be asked: they are not."""
    return any(isinstance(extent, int) and extent == 0 for extent in tensor.shape)
