"""Fractional max pools: each window's place is a random number's. Here they are functions of the ops that they are of; expansion.py
traces what is here.

Windows begin where torch has them (aten/src/ATen/native/FractionalMaxPooling.h): with `alpha` as far apart as evenly spread ones, window
i at int((i + sample) * alpha) - int(sample * alpha), and the last at the end."""

from __future__ import annotations

import torch

from .rows.table import require

aten = torch.ops.aten
WIDE = (torch.float32, torch.float64)  # torch rounds places in the dtype of the samples, which for halves are no such


def pool(x, kernel, positions, samples):
    """(The largest of each window, where in its plane it is): [batch, channels, extents] with samples [batch, channels, rank]."""
    require(x.dtype in WIDE, "a fractional pool of halves")
    rank = len(kernel)
    if x.dim() == rank + 1:
        return tuple(result.squeeze(0) for result in pool(x.unsqueeze(0), kernel, positions, samples))
    extents = x.shape[2:]
    if rank == 2:  # their samples begin with the last dim's
        samples = samples.flip(2)
    where = 0
    for d, (extent, size, count) in enumerate(zip(extents, kernel, positions, strict=True)):
        index = starts(samples[..., d], extent, size, count).unsqueeze(-1) + torch.arange(size, device=x.device)
        shape = [*index.shape[:2], *([1] * 2 * rank)]
        shape[2 + d], shape[2 + rank + d] = count, size
        where = where * extent + index.reshape(shape)
    where = where.expand(*x.shape[:2], *positions, *kernel).reshape(*x.shape[:2], *positions, -1)
    seen = x.flatten(2).gather(2, where.flatten(2)).reshape(where.shape)
    largest, place = seen.max(-1)
    return largest, where.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def starts(samples, extent: int, size: int, count: int):
    """Where windows begin along one dim: [batch, channels, count]."""
    last = extent - size
    alpha = torch.full((), last, dtype=samples.dtype) / max(count - 1, 1)  # rounded to their dtype
    numbers = torch.arange(count, device=samples.device)
    spread = ((numbers + samples.unsqueeze(-1)) * alpha).to(torch.int64) - (samples * alpha).to(torch.int64).unsqueeze(-1)
    return torch.where(numbers == count - 1, last, spread)


def pool_gradient(grad, x, kernel, positions, indices):
    flat = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-len(kernel))
    return flat.scatter_add(-1, indices.flatten(-len(kernel)), grad.flatten(-len(kernel))).reshape(x.shape)


POOLS = {
    aten.fractional_max_pool2d.default: pool,
    aten.fractional_max_pool3d.default: pool,
    aten.fractional_max_pool2d_backward.default: pool_gradient,
    aten.fractional_max_pool3d_backward.default: pool_gradient,
}
