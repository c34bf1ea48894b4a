"""The row of masks that kernels draw themselves (dropout.py)."""

from __future__ import annotations

import itertools

from ..dropout import keep_mask, kept_below
from .creation import ascending
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
        places = b.pointwise("add", places, ascending(b, "i64", shape, dim, step=step))
    return places
