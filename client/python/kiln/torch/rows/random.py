"""The row of masks that kernels draw themselves (dropout.py)."""

from __future__ import annotations

import itertools

from ..dropout import keep_mask, kept_below
from ..text import DTypeName
from .table import Family, result_type

FAMILY = Family(is_recomputed=True)


@FAMILY.row(keep_mask)
def keep(b, node):
    seed, _, _, p = node.args
    words = b.pointwise("philox", b.value(seed), _places(b, result_type(node)[1]))
    return b.pointwise("lt", words, b.full(kept_below(p), "i64"), dtype="bool")


def _places(b, shape: tuple):
    """The number of each element, counted along the last dim first."""
    steps = itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)
    places = b.full(0, "i64")
    for dim, step in zip(reversed(range(len(shape))), steps):
        along = b.op("iota", (), "i64", shape, shape=shape, dim=dim, start=0.0, step=float(step), dtype=DTypeName("i64"))
        places = b.pointwise("add", places, along)
    return places
