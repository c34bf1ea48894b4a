"""The tensors in what torch's functions take and give."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def tensors_in(value) -> Iterator[torch.Tensor]:
    """The tensors of a tensor, or of dicts (ModelOutput is one), lists and tuples of them, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
