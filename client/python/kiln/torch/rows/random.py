"""Rows of numbers that kernels draw themselves (draws.py)."""

from __future__ import annotations

import itertools

from ..distributions import DISTRIBUTIONS
from ..draws import random_words
from ..text import Unsupported
from .creation import ascending
from .table import Family, result_type

FAMILY = Family(is_recomputed=True)


@FAMILY.row(random_words)
def words(b, node):
    seed, _, _, index, count = node.args
    return b.pointwise("philox", b.value(seed), _places(b, result_type(node)[1], index, count))


def _places(b, shape: tuple, start: int, step: int):
    """start, start + step, … for each element, the last dim's first."""
    places = b.full(start, "i64")
    steps = itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=step)
    for dim, step in zip(reversed(range(len(shape))), steps):
        places = b.pointwise("add", places, ascending(b, "i64", shape, dim, step=step))
    return places


@FAMILY.row(*DISTRIBUTIONS)
def distribution(b, node):
    raise Unsupported("made of words in torch's functions")  # of which all are said (expansion.py)
